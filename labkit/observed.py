"""A job that notes what a strategy does with it: the models it makes and the gradients it updates them with."""

import dataclasses

import torch

from labkit.jobs import Job


class ObservedJob(Job):
    """The same job; `.notes` is told what is made from it on this rank, by `see_model` and `see_optimizer`."""

    @classmethod
    def of(cls, job, *, notes=None):
        fields = {entry.name: getattr(job, entry.name) for entry in dataclasses.fields(job)}
        observed = cls(**fields)
        object.__setattr__(observed, "notes", Notes() if notes is None else notes)
        return observed

    def replace(self, **changes):
        changed = super().replace(**changes)
        object.__setattr__(changed, "notes", self.notes)
        return changed

    def model(self, *, embed=True, blocks=None, head=True):
        blocks = None if blocks is None else tuple(blocks)
        model = super().model(embed=embed, blocks=blocks, head=head)
        self.notes.see_model(model, is_whole=embed and head and (blocks is None or len(blocks) == self.blocks))
        return model

    def optimizer(self, parameters):
        parameters = [entry[1] if isinstance(entry, tuple) else entry for entry in parameters]
        optimizer = super().optimizer(parameters)
        self.notes.see_optimizer(optimizer, parameters)
        return optimizer


class Notes:
    """What a rank made of the job, and what the models that it holds whole were before each update."""

    def __init__(self):
        self.made, self.updated = [], set()
        self.whole, self.initial, self.gradients = [], None, []

    def see_model(self, model, is_whole):
        self.made.append(model)
        if is_whole:
            self.whole.append((model, {name: tuple(p.shape) for name, p in model.named_parameters()}))

    def see_optimizer(self, optimizer, parameters):
        self.updated.update(map(id, parameters))
        if hasattr(optimizer, "register_step_pre_hook"):
            optimizer.register_step_pre_hook(lambda *_: self.before_update())

    def before_update(self):
        """Notes the gradients, and before the first update the values, of the whole model if there is one."""
        parameters = self._parameters()
        if parameters is None:
            return
        if self.initial is None:
            self.initial = _copies(parameters)
        if any(id(parameter) in self.updated for parameter in parameters.values()):  # else shards of them are
            self.gradients.append(_copies({n: p.grad for n, p in parameters.items() if p.grad is not None}))

    def final(self):
        """Returns the whole model's values, or None where this rank holds none or did not train it."""
        parameters = self._parameters()
        if parameters is None or not any(p.grad is not None for p in parameters.values()) and not self._moved(parameters):
            return None
        return _copies(parameters)

    def _parameters(self):
        """Returns {name: parameter} of the last whole model whose parameters still have their full shapes."""
        for model, shapes in reversed(self.whole):
            parameters = dict(model.named_parameters())
            if all(name in parameters and _is_whole(parameters[name], shape) for name, shape in shapes.items()):
                return {name: parameters[name] for name in shapes}
        return None

    def _moved(self, parameters):
        return self.initial is not None and any(
            not torch.equal(parameters[name].detach().cpu(), value) for name, value in self.initial.items()
        )


def _is_whole(parameter, shape):
    plain = type(parameter.data) is torch.Tensor
    return plain and tuple(parameter.shape) == shape and parameter.untyped_storage().size() > 0


def _copies(tensors):
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items() if type(tensor.data) is torch.Tensor}
