"""What torch must do otherwise while a rank is traced, since its tensors hold no values: modules, DDP, device meshes.

Everything is as before when the context ends.
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from labkit import groups

ENVIRONMENT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@contextlib.contextmanager
def pretended_group(rank, world_size, calls):
    """torch.distributed as rank `rank` of `world_size` sees it; no other rank is there, and `calls` is told of all calls."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # it makes the backend "fake" known

    environ, watch, init, wait = dict(os.environ), groups.CountingGroup.watch, dist.init_process_group, FakeWork.wait
    if dist.is_initialized():
        dist.destroy_process_group()

    def start_group():
        torch_init("fake", rank=rank, world_size=world_size, store=FakeStore())

    torch_init = getattr(init, "__wrapped__", init)
    dist.init_process_group = distributed_c10d.init_process_group = torch_init
    groups.accept_second_init(start_group, world_size)
    groups.CountingGroup.watch, FakeWork.wait = calls, lambda work, *timeout: calls.wait(work, *timeout)
    os.environ.update(zip(ENVIRONMENT, map(str, (rank, rank, world_size, world_size)), strict=True))
    try:
        start_group()
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        groups.CountingGroup.watch, FakeWork.wait = watch, wait
        dist.init_process_group = distributed_c10d.init_process_group = init
        os.environ.clear()
        os.environ.update(environ)


@contextlib.contextmanager
def patched(tracer, orders):
    """Modules that can be moved, meshes that know their ranks, and DDP with the buckets that it has after its first step.

    `orders` are GradientOrders.
    """
    before = torch.nn.Module._apply, DeviceMesh.__init__, DistributedDataParallel.__init__, dist.Reducer
    rebuild = dist.Reducer._rebuild_buckets
    torch.nn.Module._apply = _apply_without_copies(torch.nn.Module._apply, tracer)
    DeviceMesh.__init__ = _mesh_with_values(DeviceMesh.__init__)
    DistributedDataParallel.__init__ = _unsynchronised(DistributedDataParallel.__init__)
    dist.Reducer._rebuild_buckets = lambda _: False
    dist.Reducer = _rebuilt(dist.Reducer, orders)
    try:
        yield
    finally:
        torch.nn.Module._apply, DeviceMesh.__init__, DistributedDataParallel.__init__, dist.Reducer = before
        dist.Reducer._rebuild_buckets = rebuild


def _apply_without_copies(apply, tracer):
    def _apply(module, function, recurse=True):
        with torch.no_grad():
            if all(function(tensor) is tensor for tensor in (*module.parameters(), *module.buffers())):
                return module  # as `.to(rank.device)` where everything is there already
        tracer.forget_conversions()
        return apply(module, function, recurse)

    return _apply


def _mesh_with_values(initialise):
    def __init__(mesh, device_type, *arguments, **options):
        with unset_fake_temporarily():
            if isinstance(options.get("_rank_map"), FakeTensor):  # init_device_mesh has just counted them
                options["_rank_map"] = torch.arange(options["_rank_map"].numel(), dtype=torch.int)
            initialise(mesh, device_type, *arguments, **options)

    return __init__


def _unsynchronised(initialise):
    """DDP that does not send the first weights round, and hands each bucket to the group from Python."""

    def __init__(model, module, *arguments, **options):
        initialise(model, module, *arguments, **{**options, "init_sync": False})
        model.register_comm_hook(BucketReduction(model.process_group), _reduce)

    return __init__


class BucketReduction:
    """The buckets of one DDP model that are on their way."""

    def __init__(self, group):
        self.group, self.works = group, []

    def wait(self):
        """At the end of backward: waits for all buckets."""
        for work in self.works:
            work.wait()
        self.works = []


def _reduce(state, bucket):
    if not state.works:
        torch.autograd.Variable._execution_engine.queue_callback(state.wait)
    tensor = bucket.buffer()
    state.works.append(dist.all_reduce(tensor, group=state.group, async_op=True))
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def _rebuilt(make, orders):
    """DDP's reducer with the buckets that it rebuilds after its first step, from the order in which gradients arrive."""

    def reducer(parameters, buckets, limits, group, sparse, cap, find_unused, as_view, names, first_cap, *rest):
        order = orders.of(parameters)
        arriving, sparse_ones = [parameters[at] for at in order], [sparse[at] for at in order]
        parts, limits = dist._compute_bucket_assignment_by_size(arriving, [first_cap, cap], sparse_ones)
        buckets = [[order[at] for at in part] for part in parts]
        return make(parameters, buckets, limits, group, sparse, cap, find_unused, as_view, names, first_cap, *rest)

    return reducer


class GradientOrders:
    """In which order the gradients of each DDP model arrive, by its parameters' shapes."""

    def __init__(self):
        self._known, self._seen = {}, []

    def of(self, parameters):
        """The order as far as it is known, else the reverse one; it is watched from now on."""
        key, arrived = tuple(parameter.shape for parameter in parameters), {}
        assumed = self._known.get(key, list(reversed(range(len(parameters)))))
        for at, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, at=at: arrived.setdefault(at))
        self._seen.append((key, assumed, arrived))
        return assumed

    def were_right(self):
        """Whether all gradients arrived as assumed; what was seen is known from now on."""
        seen, self._seen = [one for one in self._seen if one[2]], []
        for key, _, arrived in seen:
            self._known[key] = list(arrived)
        return all(assumed == list(arrived) for _, assumed, arrived in seen)
