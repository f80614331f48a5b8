"""How functions travel to the ranks and results travel back: by value, on CPU, with limits that speak up."""

import collections
import io
import pickle
import types
import warnings

import cloudpickle
import torch

WARN_BYTES = 10 * 10**6
REFUSE_BYTES = 100 * 10**6
RESULT_BYTES = 2 * 10**9


class _TooLarge(Exception):
    pass


class _Travelling(cloudpickle.Pickler):
    """Pickles functions by value and tensors as their own bytes, never a whole shared storage."""

    def __init__(self, limit_bytes, refuse_cuda):
        self.buffer = io.BytesIO()
        super().__init__(self.buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.limit_bytes, self.refuse_cuda, self.tensor_bytes = limit_bytes, refuse_cuda, 0

    def reducer_override(self, obj):
        if type(obj) in (torch.Tensor, torch.nn.Parameter):
            return self._reduce_tensor(obj)
        if type(obj).__name__ == "DTensor":
            raise TypeError("a DTensor cannot leave its group; use .to_local() or .full_tensor()")
        if type(obj).__name__ == "ndarray":
            self._add(obj.nbytes)
        return super().reducer_override(obj)

    def _reduce_tensor(self, tensor):
        if tensor.is_cuda and self.refuse_cuda:
            raise TypeError("a CUDA tensor cannot travel to the ranks; send it as tensor.cpu(), or make it inside the function")
        self._add(tensor.numel() * tensor.element_size())
        plain = tensor.detach().cpu().contiguous()
        if tensor.is_sparse or tensor.is_quantized:
            return super().reducer_override(plain)
        raw = pickle.PickleBuffer(plain.view(-1).view(torch.uint8).numpy()) if plain.numel() else b""
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return _tensor, (raw, plain.dtype, tuple(plain.shape), is_parameter, tensor.requires_grad, tensor.grad if tensor.is_leaf else None)

    def _add(self, n_bytes):
        self.tensor_bytes += n_bytes
        if self.tensor_bytes > self.limit_bytes:
            raise _TooLarge


def pack_function(fn, args, kwargs):
    """Returns fn with its arguments and everything it captures as bytes.

    Warns from 10 MB on and raises ValueError from 100 MB on, naming the largest captures (each rank gets its own
    copy). Raises TypeError naming what cannot be sent: locks, generators, open files, CUDA tensors.
    """
    if not callable(fn):
        raise TypeError(f"launch needs a function fn(rank, …), not {type(fn).__name__}")
    try:
        data = _dumps((fn, args, kwargs), REFUSE_BYTES, refuse_cuda=True)
    except _TooLarge:
        data = None
    except Exception as error:
        raise TypeError(_culprits(fn, args, kwargs, error)) from None
    if data is None or len(data) > REFUSE_BYTES:
        largest = _largest(fn, args, kwargs)
        raise ValueError(
            f"{_name(fn)} would take more than {REFUSE_BYTES // 10**6} MB to every rank ({largest}); make the data inside the "
            "function, or save it to a file and load it there"
        )
    if len(data) > WARN_BYTES:
        warnings.warn(
            f"{_name(fn)} takes {len(data) / 1e6:.0f} MB to every rank ({_largest(fn, args, kwargs)}); data made or loaded "
            "inside the function would start faster",
            stacklevel=4,
        )
    return data


def pack_result(value):
    """Returns a rank's result as bytes: tensors as CPU copies.

    Raises ValueError above 2 GB, and TypeError for what cannot be sent back.
    """
    too_large = f"the result is larger than {RESULT_BYTES // 10**9} GB; save it to a file in the function and return the file's name"
    try:
        data = _dumps(value, RESULT_BYTES, refuse_cuda=False)
    except _TooLarge:
        raise ValueError(too_large) from None
    except Exception as error:
        raise TypeError(f"the result, {type(value).__name__}, cannot be sent back: {error}") from None
    if len(data) > RESULT_BYTES:
        raise ValueError(too_large)
    return data


def _dumps(value, limit_bytes, refuse_cuda):
    pickler = _Travelling(limit_bytes, refuse_cuda)
    pickler.dump(value)
    return pickler.buffer.getbuffer()


def _tensor(raw, dtype, shape, is_parameter, requires_grad, grad):
    if len(raw):
        tensor = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).view(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.grad = grad
    return tensor


def _captures(fn, args, kwargs):
    """Yields (name, value) of all that travels with fn: arguments, closures, defaults and the globals it uses.

    Functions and classes that travel by value are followed; each name comes once.
    """
    queue = collections.deque([("argument " + str(i + 1), a) for i, a in enumerate(args)])
    queue.extend(kwargs.items())
    queue.append((_name(fn), fn))
    seen = set()
    while queue:
        name, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        inside = list(_inside(value))
        if not inside and not isinstance(value, types.ModuleType):
            yield name, value
        queue.extend(inside)


def _inside(value):
    if isinstance(value, types.MethodType):
        yield f"{value.__func__.__name__}'s object", value.__self__
        value = value.__func__
    if isinstance(value, type) and value.__module__ == "__main__":
        yield from ((name, member) for name, member in vars(value).items() if isinstance(member, types.FunctionType))
    if hasattr(value, "func") and hasattr(value, "keywords"):
        yield from [(_name(value.func), value.func), *value.keywords.items()]
        yield from (("a bound argument", argument) for argument in value.args)
    if not isinstance(value, types.FunctionType) or _importable(value):
        return
    code = value.__code__
    for name, cell in zip(code.co_freevars, value.__closure__ or ()):
        yield name, _cell(cell)
    yield from ((name, value.__globals__[name]) for name in _names(code) if name in value.__globals__)
    yield from (("a default argument", default) for default in value.__defaults__ or ())
    yield from (value.__kwdefaults__ or {}).items()


def _importable(function):
    try:
        pickle.dumps(function)
        return function.__module__ != "__main__"
    except Exception:
        return False


def _cell(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code):
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return names


def _name(fn):
    return getattr(fn, "__qualname__", type(fn).__name__).replace("<locals>.", "")


def _culprits(fn, args, kwargs, error):
    found = []
    for name, value in _captures(fn, args, kwargs):
        try:
            _dumps(value, REFUSE_BYTES, refuse_cuda=True)
        except _TooLarge:
            pass
        except Exception as reason:
            what = "a CUDA tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            found.append((f"{name} ({what})", str(reason) if isinstance(value, torch.Tensor) else ""))
    if not found:
        return f"{_name(fn)} cannot be sent to the ranks: {error}"
    names = ", ".join(name for name, _ in found)
    reason = next((f"; {reason}" for _, reason in found if reason), "; make it inside the function instead")
    return f"{_name(fn)} uses what cannot be sent to the ranks: {names}{reason}"


def _largest(fn, args, kwargs, count=3):
    sizes = []
    for name, value in _captures(fn, args, kwargs):
        try:
            sizes.append((len(_dumps(value, float("inf"), refuse_cuda=False)), name))
        except Exception:
            continue
    top = sorted(sizes, reverse=True)[:count]
    return ", ".join(f"{name}: {size / 1e6:.0f} MB" for size, name in top if size > 10**6)
