"""Where torch tells the memory account what no operation shows: resized storages, tensors saved for backward, updates."""

import contextlib

import torch
from torch.autograd.function import BackwardCFunction
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from labkit.storages import is_same


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
def told_of_saved(tell):
    """Calls tell(tensor) with all that autograd saves for backward.

    Under hooks an autograd.Function finds a new variable where it had saved a leaf, such as a parameter, and a gradient that
    it gives to this one is lost: here it finds the leaf.
    """
    leaves = WeakIdKeyDictionary()

    def pack(tensor):
        if tensor.is_leaf and tensor.requires_grad:
            leaves[tensor] = True
        tell(tensor)
        return tensor

    def saved_tensors(function):
        found = torch._C._FunctionBase.saved_tensors.__get__(function)
        return tuple(_leaf(one, leaves) if one is not None and one.is_leaf and one.requires_grad else one for one in found)

    BackwardCFunction.saved_tensors = property(saved_tensors)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
    finally:
        del BackwardCFunction.saved_tensors


def _leaf(tensor, leaves):
    """Returns the leaf with the same numbers in the same storage; where there is none, as of a wrapper, the tensor."""
    return next((one for one in list(leaves) if is_same(one, tensor)), tensor)
