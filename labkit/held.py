"""The tensors that a rank holds, by name: what the rows of `holdings` are made from. Kinds are those of the memory account."""

import hashlib
import weakref
from collections import Counter

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from labkit.memory_account import MemoryAccount
from labkit.observed import ObservedJob
from labkit.storages import plain_tensors

BY_HAND, UNNAMED, REST = "made by hand", "not in a model", "rest of its storage"


class Held:
    """Watches one rank; `rows(kind, tensors)` are (kind, part, bytes, fingerprint) of what is alive at that moment.

    Enter `account` and call the strategy with `job`. `gradients` holds the rows before the update, `activations` those of
    the moment at which autograd had saved most for the backward pass.
    """

    def __init__(self, job, device_type):
        self.account = MemoryAccount(device_type, watcher=self)
        self.job = ObservedJob.of(job, notes=self)
        self.gradients, self.activations = None, []
        self._names, self._models, self._optimizers = WeakIdKeyDictionary(), [], weakref.WeakSet()
        self._saved, self._most_bytes = {}, 0
        self._hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self._optimizers.add(optimizer))

    def close(self):
        self._hook.remove()

    def see_model(self, model, is_whole):
        self.account.see_model(model, is_whole)
        self._models.append(weakref.ref(model))
        self._see_names()

    def see_optimizer(self, optimizer, parameters):
        self.account.see_optimizer(optimizer, parameters)
        for parameter, master in zip(parameters, getattr(optimizer, "masters", ()), strict=False):
            self._names[master] = self._part(parameter)

    def saved(self, tensor):
        for entry in self.account.ledger.touch(tensor, ""):
            if entry.kind == "activations" and entry not in self._saved:
                self._saved[entry] = fingerprint([tensor])
        alive = [(entry.nbytes, known) for entry, known in self._saved.items()]
        nbytes = sum(size for size, _ in alive)
        if nbytes > self._most_bytes:
            contents = hashlib.sha256("".join(known for size, known in alive if size).encode()).hexdigest()[:16]
            self._most_bytes, self.activations = nbytes, [("activations", "saved for backward", nbytes, contents)]

    def before_update(self):
        self._see_names()
        pairs = [(part, p.grad) for p, part in self._names.items() if isinstance(p, torch.nn.Parameter) and p.grad is not None]
        self.gradients = self.rows("gradients", pairs)

    def weights(self):
        """Returns the rows of the weights that are alive."""
        self._see_names()
        return self.rows("weights", [(part, tensor) for tensor, part in self._names.items()])

    def state(self):
        """Returns the rows of what optimizers keep."""
        pairs = [(part, tensor) for tensor, part in self._names.items()]
        for optimizer in self._optimizers:
            for parameter, values in optimizer.state.items():
                pairs += [(self._part(parameter), one) for one in values.values() if isinstance(one, torch.Tensor)]
        return self.rows("optimizer state", pairs)

    def rows(self, kind, pairs):
        """Returns a row per part from (part, tensor) pairs, and one for what storages of this kind hold besides."""
        parts, nbytes, covered, seen = {}, Counter(), Counter(), set()
        for part, tensor in pairs:
            for plain, entry in self._entries(tensor):
                key = entry, plain.storage_offset(), plain.numel()
                if entry.kind == kind and entry.nbytes and key not in seen:
                    seen.add(key)
                    size = plain.numel() * plain.element_size()
                    nbytes[part], covered[entry] = nbytes[part] + size, covered[entry] + size
                    parts.setdefault(part, []).append(plain)
        for entry in list(self.account.ledger.entries.values()):
            rest = entry.nbytes - covered[entry]
            if entry.kind == kind and rest > 0:
                part = REST if covered[entry] else entry.label or (UNNAMED if entry.label is None else BY_HAND)
                parts.setdefault(part, []).append(_whole(entry))
                nbytes[part] += rest
        return [(kind, part, nbytes[part], fingerprint(tensors)) for part, tensors in parts.items()]

    def _entries(self, tensor):
        for plain in plain_tensors(tensor):
            for entry in self.account.ledger.touch(plain, ""):
                yield plain, entry

    def _see_names(self):
        for model in (one() for one in self._models):
            for name, parameter in model.named_parameters() if model is not None else ():
                self._names.setdefault(parameter, part_of(name))

    def _part(self, parameter):
        """Returns the part that a parameter belongs to; a shard belongs to that of the parameters whose storage it shares."""
        if parameter in self._names:
            return self._names[parameter]
        own = {id(entry) for _, entry in self._entries(parameter)}
        parts = {part for other, part in self._names.items() if any(id(entry) in own for _, entry in self._entries(other))}
        labels = {entry.label for _, entry in self._entries(parameter) if entry.label}
        return (parts if len(parts) == 1 else labels or {"shard"}).pop()


def part_of(name):
    """Returns the part of the model that a parameter belongs to: embed, blocks.0, …, head."""
    words = name.split(".")
    return ".".join(words[:2]) if words[0] == "blocks" else words[0]


def fingerprint(tensors):
    """Returns a short text that is the same for tensors of the same contents."""
    digest = hashlib.sha256()
    for tensor in tensors:
        for plain in plain_tensors(tensor.detach()):
            digest.update(plain.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _whole(entry):
    storage = entry.storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
