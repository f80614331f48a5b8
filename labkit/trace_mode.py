"""torch without arithmetic: tensors have shapes and storages but no memory, and every operation is noted.

A FakeTensorMode that remembers, for each operation and the shapes of what it was given, what came out: a model repeats
the same few hundred calls, and torch's own way of answering them takes ten times as long.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from labkit import trace_costs

_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_ON_NUMBERS = (_ITEM, torch.ops.aten.add_.Tensor)  # what optimizers do with their count of steps, whose value is known
_REMEMBERED = ("aten",)
_FORGOTTEN = {"aten::set_", "aten::resize_", "aten::_local_scalar_dense", "aten::lift_fresh", "aten::lift"}
CPU = torch.device("cpu")


class Tracer(FakeTensorMode):
    """While it is entered, new tensors are fake ones on the CPU, and `on_kernel(Kernel)` is told what a device would do.

    `phase()` says which part of the step it is; `functional(function, arguments, made)` is told of torch's functional
    collectives. `known` keeps what was found out, from one Tracer to the next.
    """

    def __init__(self, *, on_kernel, phase, functional, known):
        super().__init__(allow_non_fake_inputs=True)
        self._on_kernel, self._phase, self._functional = on_kernel, phase, functional
        self._known = known
        with torch._C._DisableTorchDispatch():
            self._attributes = dict(vars(FakeTensor(self, torch.empty(0, device="meta"), CPU)))
        self.is_recording = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        kwargs = kwargs or {}
        try:
            key = (function, *map(_key, args), *map(_key, kwargs.items()))
            known = self._known.get(key)
        except (_Unknown, TypeError):
            key = known = None
        if known is None:
            return self._find_out(key, function, types, args, kwargs)
        outputs, kernels = known
        if self.is_recording and kernels is not None:
            self._note(function, args, kwargs, kernels)
        return self._made(outputs, args)

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled here, and the guard against it would cost as much as all else

    def forget_conversions(self):
        """Drops torch's weak references to tensors that it has converted: they keep a module's from being replaced."""
        self.fake_tensor_converter.meta_converter.tensor_memo.clear()

    def _find_out(self, key, function, types, args, kwargs):
        if _is_on_number(function, args):
            made = function(args[0].constant, *args[1:])
            return made if function is _ITEM else args[0]
        made = super().__torch_dispatch__(function, types, args, kwargs)
        if made is NotImplemented:
            return made
        if function.namespace == "_c10d_functional":
            self._functional(function, (*args, *kwargs.values()), made)
        kernel = trace_costs.kernel(function, (*args, *kwargs.values()), made, self._phase())
        kernels = None if kernel is None else {kernel.phase: kernel}
        if self.is_recording and kernel is not None:
            self._on_kernel(kernel)
        if key is not None and function.namespace in _REMEMBERED and function._schema.name not in _FORGOTTEN:
            outputs = _outputs(function, args, made)
            if outputs is not None:
                self._known[key] = outputs, kernels
        return made

    def _note(self, function, args, kwargs, kernels):
        phase = self._phase()
        if phase not in kernels:
            one = next(iter(kernels.values()))
            kernels[phase] = type(one)(one.name, one.flops, one.moved_bytes, one.dtype, one.shape, phase, one.count, one.causal)
        self._on_kernel(kernels[phase])

    def _made(self, outputs, args):
        if isinstance(outputs, _Several):
            return outputs.kind([self._one(output, args) for output in outputs.outputs])
        return self._one(outputs, args)

    def _one(self, output, args):
        if output is None:
            return None
        if output.same is not None:
            return args[output.same]
        if output.view_of is None:
            with torch._C._DisableTorchDispatch():
                empty = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device="meta")
        else:
            storage = args[output.view_of].untyped_storage()
            with in_kernel_invocation_manager(self):
                empty = torch.empty_strided((0,), (1,), dtype=output.dtype, device="meta")
                empty.set_(storage, output.offset, output.shape, output.stride)
        return self._fake(empty, output.device)

    def _fake(self, empty, device):
        """What FakeTensor(self, empty, device) makes, in a third of the time."""
        fake = torch.Tensor._make_subclass(FakeTensor, empty, False, dispatch_device=True, device_for_backend_keys=device)
        torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(self._attributes, _fake_device=device)
        return fake


def _is_on_number(function, args):
    """Whether this reads, or adds a plain number to, a tensor whose value is known."""
    if function not in _ON_NUMBERS or type(args[0]) is not FakeTensor or args[0].constant is None:
        return False
    return function is _ITEM or not isinstance(args[1], torch.Tensor)


class _Unknown(Exception):
    pass


class _Output:
    """How to make one result again: as an argument itself, as a view of one, or anew."""

    __slots__ = ("same", "view_of", "shape", "stride", "offset", "dtype", "device")

    def __init__(self, tensor, same, view_of):
        self.same, self.view_of = same, view_of
        self.shape, self.stride, self.offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        self.dtype, self.device = tensor.dtype, tensor.fake_device


class _Several:
    def __init__(self, kind, outputs):
        self.kind, self.outputs = kind, outputs


def _key(value):
    """A value as part of the question whose answer is remembered; raises _Unknown where the answer depends on more."""
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None:
            raise _Unknown
        return value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device
    if kind is list or kind is tuple:
        return (kind, *map(_key, value))
    if isinstance(value, torch.Tensor):
        raise _Unknown
    return kind, None if kind is torch.Generator else value


def _outputs(function, args, made):
    """How to make the results again, or None where that cannot be said."""
    if made is None:
        return None if not function._schema.is_mutable else _Several(_nothing, ())
    if isinstance(made, torch.Tensor):
        return _output(function, args, made)
    if isinstance(made, (list, tuple)) and all(one is None or isinstance(one, torch.Tensor) for one in made):
        outputs = [None if one is None else _output(function, args, one) for one in made]
        if all(output is not None for output, one in zip(outputs, made, strict=True) if one is not None):
            return _Several(list if isinstance(made, list) else tuple, tuple(outputs))
    return None


def _nothing(_):
    return None


def _output(function, args, tensor):
    if type(tensor) is not FakeTensor or tensor.constant is not None:
        return None
    same = next((at for at, argument in enumerate(args) if argument is tensor), None)
    if same is not None:
        return None if torch.Tag.inplace_view in function.tags else _Output(tensor, same, None)
    storage = tensor.untyped_storage()
    for at, argument in enumerate(args):
        if type(argument) is FakeTensor and argument.untyped_storage()._cdata == storage._cdata:
            return _Output(tensor, None, at)
    held = trace_costs.nbytes(tensor)
    return _Output(tensor, None, None) if held == storage.nbytes() and not tensor.storage_offset() else None
