"""FSDP2 as it runs on GPUs: its collectives go beside the kernels, in streams of their own, which a CPU has not.

torch.distributed.fsdp: an all_gather begins as soon as the one before it is done and is waited for where its parameters are
unpacked; a reduce_scatter follows the gradients that it takes and is waited for before the next one, or at backward's end.
"""

import contextlib

from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

_FUNCTIONS = ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce")


@contextlib.contextmanager
def streams(calls):
    """While a rank is traced: FSDP's collectives are asynchronous, and `calls` is told when they are waited for."""
    functions = {name: getattr(groups, name) for name in _FUNCTIONS}
    finalize = groups.FSDPParamGroup.finalize_backward
    following = Streams(calls, *functions.values(), finalize)
    for name in _FUNCTIONS:
        setattr(groups, name, getattr(following, name))
    groups.FSDPParamGroup.finalize_backward = lambda group: following.finalize_backward(group)
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(groups, name, function)
        groups.FSDPParamGroup.finalize_backward = finalize


class Streams:
    """The functions of FSDP that begin collectives or wait for them, each around torch's own."""

    def __init__(self, calls, gather, copy_out, reduce, finalize):
        self.calls, self.gather, self.copy_out, self.reduce, self.finalize = calls, gather, copy_out, reduce, finalize
        self.gathering, self.latest_gather, self.reducing = {}, (), []

    def foreach_all_gather(self, *arguments, **options):
        with self.calls.beside(after=self.latest_gather) as begun:
            result = self.gather(*arguments, **options)
        self.latest_gather = tuple(entry.id for entry in begun) or self.latest_gather
        self.gathering[id(result)] = result, begun
        return result

    def foreach_all_gather_copy_out(self, result, *arguments, **options):
        _, begun = self.gathering.pop(id(result), (None, []))
        self.calls.wait_for(begun)
        return self.copy_out(result, *arguments, **options)

    def foreach_reduce(self, *arguments, **options):
        self._wait()
        with self.calls.beside() as begun:
            result = self.reduce(*arguments, **options)
        self.reducing += begun
        return result

    def finalize_backward(self, group):
        self._wait()
        return self.finalize(group)

    def _wait(self):
        self.calls.wait_for(self.reducing)
        self.reducing = []
