"""How a job's dtype becomes parameters, autocast and an optimizer."""

import contextlib

import torch


def parameter_dtype(dtype: torch.dtype, master_weights: bool) -> torch.dtype:
    """Return the dtype that parameters are kept in: float32 where the job runs under autocast."""
    return torch.float32 if is_autocast(dtype, master_weights) else dtype


def is_autocast(dtype: torch.dtype, master_weights: bool) -> bool:
    return dtype == torch.bfloat16 and not master_weights


def autocast(device_type: str, dtype: torch.dtype, master_weights: bool) -> contextlib.AbstractContextManager:
    """Return the context in which a strategy's step runs.

    Enter it anew for every step: until it ends, autocast goes on using the bfloat16 copies that it made of the weights.
    """
    if is_autocast(dtype, master_weights):
        return torch.autocast(device_type, dtype=dtype)
    return contextlib.nullcontext()


class MasterWeights:
    """An optimizer that updates a float32 copy of every bfloat16 parameter, and rounds the copy back into it.

    Micikevicius et al., "Mixed Precision Training", 2018: an update is often smaller than half a step of the rounded
    weight, and would be lost in it. 2 + 2 bytes of a parameter are its value and gradient, 12 are `masters` and `state`.
    """

    def __init__(self, parameters, optimizer_class, **arguments):
        self.parameters = list(parameters)
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        self.inner = optimizer_class(self.masters, **arguments)

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def state(self):
        return self.inner.state

    @torch.no_grad()
    def step(self) -> None:
        pairs = list(zip(self.parameters, self.masters, strict=True))
        for parameter, master in pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.inner.step()
        for parameter, master in pairs:
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
