"""How many layers' weights are whole at once: looked for in all memory that is alive, whoever holds it."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.storages import plain_tensors, tensors_in


class WholeWeights(TorchDispatchMode):
    """Counts, after every operation on tensors, the layers of which some storage holds all weights.

    layers    per layer its weights in one row, as they lie in memory when they are whole
    .most     the largest number of layers that were whole at once; .when says in which phase, as `phase` was then
    """

    def __init__(self, layers):
        super().__init__()
        self.layers = [layer.detach().flatten() for layer in layers]
        self.storages, self.most, self.phase, self.when = {}, 0, "forward", "forward"
        self.least = min(map(len, self.layers))

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tensors_in([*args, *(kwargs or {}).values(), result]):
            for plain in plain_tensors(tensor):
                if plain.dtype == self.layers[0].dtype:
                    storage = plain.untyped_storage()
                    self.storages[id(storage)] = weakref.ref(storage)
        if (now := len(self.whole())) > self.most:
            self.most, self.when = now, self.phase
        return result

    def whole(self):
        """Returns the numbers of the layers that are whole now."""
        size = self.layers[0].element_size()
        alive = {key: storage for key, ref in self.storages.items() if (storage := ref()) is not None}
        self.storages = {key: self.storages[key] for key in alive}
        rows = [torch.empty(0, dtype=self.layers[0].dtype).set_(storage) for storage in alive.values()]
        rows = [row for row in rows if len(row) * size >= self.least * size]
        return [at for at, layer in enumerate(self.layers) if any(torch.equal(row[: len(layer)], layer) for row in rows)]
