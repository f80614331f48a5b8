"""A run of one rank in the kernel's own process, so that a debugger can step through it."""

import contextlib
import os
import pickle
import random
import tempfile

import numpy
import torch
import torch.distributed as dist

from labkit import groups, rank_process
from labkit.listener import RankState
from labkit.payload import pack_result
from labkit.status import Status


class InlineSession:
    """Takes what the one rank sends, in the form in which a Session holds it."""

    def __init__(self, plan):
        self.plan, self.states, self.records = plan, [RankState(0)], []

    def send(self, kind, value):
        if kind == "records":
            self.records += value
        elif kind == "observed":
            self.states[0].observed = value


def run_inline(fn, args, kwargs, plan):
    """Calls fn(rank, …) in this process; returns (InlineSession, result).

    Raises RuntimeError where this process has a process group already. Errors of fn come as they are, with all frames.
    """
    if dist.is_initialized():
        raise RuntimeError("this process has a process group already; call torch.distributed.destroy_process_group() first")
    session = InlineSession(plan)
    with tempfile.TemporaryDirectory(prefix="labkit-") as directory, _as_before():
        plan["directory"] = directory
        status = Status(os.path.join(directory, "status"), 1, create=True)
        os.environ.update(plan["environ"])
        handle = rank_process.set_up(plan, 0, session)
        try:
            result = fn(handle, *args, **kwargs)
            rank_process.send_observations(handle, session)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            status.close()
    return session, pickle.loads(pack_result(result))


@contextlib.contextmanager
def _as_before():
    """Leaves the kernel's environment, threads, random numbers and torch.distributed as they were."""
    environ, threads = dict(os.environ), torch.get_num_threads()
    states = random.getstate(), numpy.random.get_state()
    with groups.restored(), torch.random.fork_rng():
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environ)
            torch.set_num_threads(threads)
            random.setstate(states[0])
            numpy.random.set_state(states[1])
