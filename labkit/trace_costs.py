"""What one operation of torch costs a device: FLOPs and bytes, from the shapes of its tensors alone.

FLOPs are those of matrix products (2 b m n k) and of attention (4 B H T T' E forward, twice that backward), as in a
model's closed formula: attention's square is counted whole, causal or not, and what flash attention computes a second time
is not counted. Bytes are those of every tensor that is read or written, once each; views move none.
"""

import math

import torch
from torch.utils.flop_counter import flop_registry

from labkit.trace_records import Kernel

# Operations that only write their first argument, and those of which they read just the rows that are asked for.
_ONLY_WRITTEN = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "_foreach_zero_", "_foreach_copy_"}
_READ_IN_PART = {"embedding": 0, "gather": 0, "index": 0, "index_select": 0, "nll_loss_forward": 0, "nll_loss_backward": 1}
_WITHOUT_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "resize_", "set_"}
_SDPA = "_scaled_dot_product_"


def kernel(function, arguments, made, phase):
    """The Kernel of a call under the dispatcher, or None where a device has nothing to do.

    `arguments` are the positional arguments, then the keyword ones; `made` is what the call returned.
    """
    name = function._schema.name.partition("::")[2]
    given, results = tensors_in(arguments), tensors_in([made])
    if function.namespace != "aten" or name in _WITHOUT_WORK or not (given or results):
        return None
    if _is_view(function, given, results) or _on_host(given, results):
        return None
    moved = _moved_bytes(function, name, arguments, given, results)
    if name.startswith(_SDPA):
        return _attention(name, arguments, moved, phase)
    shape, flops = _product(function, arguments, made)
    return Kernel(name if not shape else "matmul", flops, moved, _dtype(given or results), shape, phase)


def tensors_in(values):
    """The tensors among these values and within their lists and tuples, in order."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def nbytes(tensor):
    """The bytes of a tensor's own elements: what is expanded counts once."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in strides if stride or size == 0) * tensor.element_size()


def _is_view(function, given, results):
    if function._schema.is_mutable or not results:
        return False
    held = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in held for tensor in results)


def _on_host(given, results):
    """Whether this is arithmetic on a number whose value is known, such as an optimizer's count of steps."""
    known = [tensor for tensor in (*given, *results) if getattr(tensor, "constant", None) is not None]
    return bool(known) and all(tensor.numel() == 1 for tensor in (*given, *results))


def _moved_bytes(function, name, arguments, given, results):
    read = list({id(tensor): tensor for tensor in given}.values())
    if name in _READ_IN_PART:
        looked_up = arguments[_READ_IN_PART[name]]
        rows = nbytes(results[0]) if name != "nll_loss_backward" else 0
        return sum(nbytes(tensor) for tensor in (*read, *results) if tensor is not looked_up) + rows
    written = results
    if function._schema.is_mutable:
        places = [at for at, argument in enumerate(function._schema.arguments) if argument.is_write and at < len(arguments)]
        written = tensors_in([arguments[at] for at in places])
        if name in _ONLY_WRITTEN:
            ids = set(map(id, written))
            read = [tensor for tensor in read if id(tensor) not in ids]
    return sum(map(nbytes, read)) + sum(map(nbytes, written))


def _product(function, arguments, made):
    """((batch, m, n, k), FLOPs) of a matrix product; ((), FLOPs) of anything else."""
    name = function._schema.name
    pair = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}.get(name)
    if pair is None:
        formula = flop_registry.get(function.overloadpacket)
        positional = arguments[: sum(not argument.kwarg_only for argument in function._schema.arguments)]
        return (), int(formula(*positional, out_val=made)) if formula else 0
    left, right = arguments[pair], arguments[pair + 1]
    batch = left.shape[0] if left.dim() == 3 else 1
    m, k = left.shape[-2:]
    n = right.shape[-1]
    return (batch, m, n, k), 2 * batch * m * n * k


def _attention(name, arguments, moved, phase):
    backward = name.endswith("backward")
    query, key = arguments[backward], arguments[backward + 1]
    batch, heads, queries, width = query.shape
    flops = 4 * batch * heads * queries * key.shape[-2] * width * (2 if backward else 1)
    causal = any(value is True for value in arguments)
    shape = (batch, heads, queries, key.shape[-2], width)
    name = "attention_backward" if backward else "attention"
    return Kernel(name, flops, moved, _dtype([query]), shape, phase, causal=causal)


def _dtype(tensors):
    floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    return str((floating or [tensors[0].dtype])[0]).removeprefix("torch.")
