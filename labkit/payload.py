"""How functions travel to the ranks and results travel back: by value, on CPU, with limits that speak up."""

import functools
import inspect
import io
import pickle
import sys
import types

import cloudpickle
import torch

from labkit import notices
from labkit.captures import captures, culprit, name_of

WARN_BYTES = 10 * 10**6
REFUSE_BYTES = 100 * 10**6
RESULT_BYTES = 2 * 10**9


def pack_function(fn, args, kwargs):
    """Returns fn with its arguments and everything it captures as bytes.

    Warns from 10 MB on and raises ValueError from 100 MB on, naming the largest captures (each rank gets its own
    copy). Raises TypeError naming what cannot be sent: locks, generators, open files, CUDA tensors.
    """
    if not callable(fn):
        raise TypeError(f"launch needs a function fn(rank, …), not {type(fn).__name__}")
    if what := never_runs(fn):
        remedy = "a call only makes an object and runs nothing; use a plain def and return values"
        raise TypeError(f"{name_of(fn)} is {what}: {remedy}")
    try:
        data = _dumps((fn, args, kwargs), REFUSE_BYTES)
    except _TooLarge:
        raise ValueError(
            f"{name_of(fn)} would take more than {REFUSE_BYTES // 10**6} MB to every rank ({_largest(fn, args, kwargs)}); "
            "make the data inside the function, or save it to a file and load it there"
        ) from None
    except Exception as error:
        raise TypeError(_refusal(fn, args, kwargs, error)) from None
    if len(data) > WARN_BYTES:
        notices.warn(
            f"{name_of(fn)} takes {len(data) / 1e6:.0f} MB to every rank ({_largest(fn, args, kwargs)}); data made or loaded "
            "inside the function would start faster",
            stacklevel=4,
        )
    return data


def pack_result(value):
    """Returns a rank's result as bytes: tensors as CPU copies.

    Raises ValueError above 2 GB, and TypeError for what cannot be sent back.
    """
    try:
        return _dumps(value, RESULT_BYTES, to_ranks=False)
    except _TooLarge:
        raise ValueError(
            f"the result is larger than {RESULT_BYTES // 10**9} GB; save it to a file in the function and return the file's name"
        ) from None
    except Exception as error:
        name, part = culprit("result", value, lambda one: _reason(one, to_ranks=False) is None)
        raise TypeError(f"the result cannot be sent back: {name} ({_kind(part)}): {error}") from None


def never_runs(fn):
    """What fn is, where calling it would not run its body."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        return "an async function"
    return "a generator function (it has a yield)" if inspect.isgeneratorfunction(fn) else None


class _TooLarge(Exception):
    pass


class _Sink(io.BytesIO):
    """Takes at most `limit_bytes`, and raises before it copies more; without `keep` it only counts."""

    def __init__(self, limit_bytes, keep=True):
        super().__init__()
        self.limit_bytes, self.keep, self.n_bytes = limit_bytes, keep, 0

    def write(self, data):
        n_bytes = memoryview(data).nbytes
        self.add(n_bytes)
        return super().write(data) if self.keep else n_bytes

    def add(self, n_bytes):
        self.n_bytes += n_bytes
        if self.n_bytes > self.limit_bytes:
            raise _TooLarge


class _Travelling(cloudpickle.Pickler):
    """Pickles functions by value and tensors as their own bytes, never a whole shared storage."""

    def __init__(self, sink, to_ranks):
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self.sink, self.arrays, self.to_ranks = sink, _Sink(sink.limit_bytes, keep=False), to_ranks

    def reducer_override(self, obj):
        if isinstance(obj, types.CodeType):
            # cloudpickle 3.1 replaces the file name; a traceback needs it to find the learner's cell.
            make, parts = self.dispatch_table[types.CodeType](obj)
            return _code, (make, parts, obj.co_filename)
        if type(obj) in (torch.Tensor, torch.nn.Parameter) and _is_plain(obj):
            return self._array(obj.numel() * obj.element_size()) or self._reduce_tensor(obj)
        if type(obj).__name__ == "ndarray":
            return self._array(obj.nbytes) or super().reducer_override(obj)
        if type(obj).__name__ == "DTensor":
            raise TypeError("a DTensor cannot leave its group; use .to_local() or .full_tensor()")
        for name in ("stdout", "stderr"):
            if obj is getattr(sys, name):
                return getattr, (sys, name)
        if isinstance(obj, io.IOBase) and not isinstance(obj, (io.BytesIO, io.StringIO)):
            raise TypeError("an open file belongs to one process")
        return super().reducer_override(obj)

    def _array(self, n_bytes):
        """Counts an array before it is copied; returns what stands for it where only sizes are asked for."""
        self.arrays.add(n_bytes)
        if self.sink.keep:
            return None
        self.sink.add(n_bytes)
        return bytes, ()

    def _reduce_tensor(self, tensor):
        if tensor.is_cuda and self.to_ranks:
            raise TypeError("send it as tensor.cpu(), or make it inside the function")
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        raw = pickle.PickleBuffer(plain.view(-1).view(torch.uint8).numpy()) if plain.numel() else b""
        grad = tensor.grad if tensor.is_leaf else None
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return _tensor, (raw, plain.dtype, tuple(plain.shape), is_parameter, tensor.is_leaf and tensor.requires_grad, grad)


def _is_plain(tensor):
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type in ("cpu", "cuda")


def _code(make, parts, filename):
    return make(*parts).replace(co_filename=filename)


def _tensor(raw, dtype, shape, is_parameter, requires_grad, grad):
    if len(raw):
        raw = raw if isinstance(raw, bytearray) else bytearray(raw)
        tensor = torch.frombuffer(raw, dtype=torch.uint8).view(dtype).view(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad_(requires_grad)
    tensor.grad = grad
    return tensor


def _dumps(value, limit_bytes, *, to_ranks=True):
    sink = _Sink(limit_bytes)
    _Travelling(sink, to_ranks).dump(value)
    return sink.getbuffer()


def _size(value):
    sink = _Sink(float("inf"), keep=False)
    _Travelling(sink, to_ranks=False).dump(value)
    return sink.n_bytes


def _reason(value, *, to_ranks=True):
    """Returns why a value cannot travel, or None."""
    try:
        _dumps(value, REFUSE_BYTES, to_ranks=to_ranks)
    except _TooLarge:
        return None
    except Exception as error:
        return str(error)
    return None


def _refusal(fn, args, kwargs, error):
    """Says in one sentence what cannot be sent, by name."""
    found = [(name, value) for name, value in captures(fn, args, kwargs) if _reason(value) is not None]
    found = [culprit(name, value, lambda one: _reason(one) is None) for name, value in found]
    if not found:
        return f"{name_of(fn)} cannot be sent to the ranks: {error}"
    names = ", ".join(f"{name} ({_kind(value)})" for name, value in found)
    tensors = [_reason(value) for _, value in found if isinstance(value, torch.Tensor)]
    advice = tensors[0] if tensors else "make it inside the function instead"
    return f"{name_of(fn)} uses what cannot be sent to the ranks: {names}; {advice}"


def _kind(value):
    if isinstance(value, torch.Tensor):
        return f"a {value.device.type.upper()} tensor" if type(value) is torch.Tensor else f"a {type(value).__name__}"
    name = "open file" if isinstance(value, io.IOBase) else type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _largest(fn, args, kwargs, count=3):
    sizes = []
    for name, value in captures(fn, args, kwargs):
        try:
            sizes.append((_size(value), name))
        except Exception:  # what cannot be measured cannot be the reason: it travelled
            continue
    top = sorted(sizes, reverse=True)[:count]
    return ", ".join(f"{name}: {size / 1e6:.0f} MB" for size, name in top if size > 10**6)
