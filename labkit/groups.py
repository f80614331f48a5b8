"""torch.distributed as labkit's ranks see it: the plain calls, counted and watched.

`CountingGroup` stands where torch would put its own ProcessGroup, also for groups made later by new_group or a
device mesh, and passes every call on. So the calls of a learner, of DDP's C++ reducer, of FSDP and of DTensor are all
seen at the same place, whatever the backend.
"""

import contextlib
import functools

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.watch import torch_wait

# method of ProcessGroup -> (operation, position of the argument that holds the whole payload)
_METHODS = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "allgather_coalesced": ("all_gather", 0),
    "allgather_into_tensor_coalesced": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
    "barrier": ("barrier", None),
}
_MIRRORED = ("_register_backend", "_set_default_backend", "_set_group_name", "_set_group_desc", "set_timeout")
_FORWARDED = ("get_group_store", "_start_coalescing", "_end_coalescing", "_wait_for_pending_works", "abort", "shutdown")


class CountingGroup(dist.ProcessGroup):
    """A process group that counts each call and then lets torch's own group do it."""

    watch = None

    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.plain = dist.ProcessGroup(store, rank, size)


def _counted(method, operation, payload_at):
    def call(self, *args, **kwargs):
        watch = self.watch
        payload = _bytes_of(args[payload_at]) if payload_at is not None and len(args) > payload_at else 0
        if operation == "gather" and not payload:
            payload = _bytes_of(args[0])
        asynchronous = operation in ("send", "recv") or getattr(args[-1] if args else None, "asyncOp", False)
        start = watch.recorder.stamp()
        watch.begin(operation)
        try:
            work = getattr(self.plain, method)(*args, **kwargs)
        finally:
            watch.end()
        watch.called(operation, payload, self, args, work, start, asynchronous)
        return work

    return call


def _both(method):
    def call(self, *args):
        getattr(dist.ProcessGroup, method)(self, *args)
        return getattr(self.plain, method)(*args)

    return call


def _forward(method):
    def call(self, *args, **kwargs):
        return getattr(self.plain, method)(*args, **kwargs)

    return call


def _bytes_of(tensors):
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes_of, tensors)) if isinstance(tensors, (list, tuple)) else 0


for _method, (_operation, _at) in _METHODS.items():
    setattr(CountingGroup, _method, _counted(_method, _operation, _at))
for _method in _MIRRORED:
    setattr(CountingGroup, _method, _both(_method))
for _method in _FORWARDED:
    setattr(CountingGroup, _method, _forward(_method))


def watch_groups(watch):
    """Makes every process group that this process creates from now on a counted one."""
    CountingGroup.watch = watch
    make_group = distributed_c10d._new_process_group_helper

    @functools.wraps(make_group)
    def make_counting_group(*args, **kwargs):
        torch_group, distributed_c10d.ProcessGroup = distributed_c10d.ProcessGroup, CountingGroup
        try:
            return make_group(*args, **kwargs)
        finally:
            distributed_c10d.ProcessGroup = torch_group

    distributed_c10d._new_process_group_helper = make_counting_group
    distributed_c10d.Work.wait = lambda work, *timeout: CountingGroup.watch.wait(work, *timeout)


def accept_second_init(start_group, world_size):
    """Makes init_process_group, as scripts made for torchrun call it, agree with the group that is already there.

    Returns torch's own function. After destroy_process_group a new call starts the group again.
    """
    torch_init = dist.init_process_group

    @functools.wraps(torch_init)
    def init_process_group(*args, **kwargs):
        asked = kwargs.get("world_size", -1)
        if asked not in (-1, world_size):
            raise ValueError(f"init_process_group(world_size={asked}) in a run of {world_size} ranks; leave world_size out")
        if not dist.is_initialized():
            start_group()

    dist.init_process_group = distributed_c10d.init_process_group = init_process_group
    return torch_init


@contextlib.contextmanager
def restored():
    """Undoes at its end what `watch_groups` and `accept_second_init` changed in torch."""
    before = dist.init_process_group, distributed_c10d._new_process_group_helper
    try:
        yield
    finally:
        dist.init_process_group, distributed_c10d._new_process_group_helper = before
        distributed_c10d.init_process_group, distributed_c10d.Work.wait = before[0], torch_wait
