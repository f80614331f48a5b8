"""Where torch tells the memory account what no operation shows: resized storages, tensors saved for backward, updates."""

import contextlib

import torch
from torch.autograd.function import BackwardCFunction
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@contextlib.contextmanager
def told_of_resizes(tell):
    """Calls tell(storage) whenever a storage has been resized by hand, as sharded strategies free weights."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage, size):
        resize(storage, size)
        tell(storage)

    torch.UntypedStorage.resize_ = resize_
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize


@contextlib.contextmanager
def told_of_updates(begin, end):
    """Calls begin() and end() around every optimizer's step."""
    handles = (
        register_optimizer_step_pre_hook(lambda *_: begin()),
        register_optimizer_step_post_hook(lambda *_: end()),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def told_of_saved(tell, original):
    """Calls tell(tensor) with all that autograd saves for backward.

    Under hooks an autograd.Function finds a new variable where it had saved a parameter, and a gradient that it gives to this
    one is lost; `original(tensor)` returns the parameter.
    """

    def pack(tensor):
        tell(tensor)
        return tensor

    def saved_tensors(function):
        return tuple(one if one is None else original(one) for one in torch._C._FunctionBase.saved_tensors.__get__(function))

    BackwardCFunction.saved_tensors = property(saved_tensors)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
    finally:
        del BackwardCFunction.saved_tensors
