"""Whether ranks start and reach each other, and whether earlier ones are still around."""

import os
import time

import torch
import torch.distributed as dist

from labkit import leftovers, server_link
from labkit.errors import RankError
from labkit.findings import Finding, broken, fine, look
from labkit.interrupts import Interrupts
from labkit.launcher import run_ranks

SETTLE_S = 2.0  # a fork server whose kernel has just ended needs a moment to end its ranks
TIMEOUT_S = 4.0
REMEDY = "free memory and processes (ulimit -u; docker run --pids-limit), then `make setup` if it stays so"


def fork_server(connect=server_link.connect) -> Finding:
    """Whether the process starts from which ranks are forked."""
    started = time.monotonic()
    try:
        with Interrupts() as interrupts:
            connect(interrupts)
    except (server_link.ServerGone, OSError) as error:
        return broken(str(error), REMEDY)
    return fine(f"ready after {time.monotonic() - started:.1f} s")


def two_ranks(run=run_ranks) -> Finding:
    """Whether two ranks on the CPU start and add two tensors together."""
    started = time.monotonic()
    try:
        results = run(add_ranks, (), {}, world_size=2, device="cpu", timeout=TIMEOUT_S, live=False, warn=False).results
    except (RankError, server_link.ServerGone) as error:
        return broken(str(error), REMEDY)
    if results != (3, 3):
        return broken(f"the all_reduce of 1 and 2 gave {' and '.join(map(str, results))}, not 3", "`make setup` reinstalls torch")
    return fine(f"all_reduce right on 2 CPU ranks, {time.monotonic() - started:.1f} s with start and end")


def add_ranks(rank) -> int:
    """The sum of rank + 1 over all ranks, by all_reduce."""
    total = torch.tensor(rank.rank + 1)
    dist.all_reduce(total)
    return int(total)


def old_ranks(find=leftovers.find, settle_s=SETTLE_S) -> Finding:
    """Whether processes or directories of kernels that are gone are left."""
    if leftovers.known(os.getpid()) is None:
        return fine("not looked for: this system shows no start times of processes")
    deadline = time.monotonic() + settle_s
    found = find()
    while any(one.processes for one in found) and time.monotonic() < deadline:
        time.sleep(0.1)
        found = find()
    if not found:
        return fine("none")
    return look(describe(found), "python -m labkit doctor --end-leftovers ends these and removes their directories")


def describe(found) -> str:
    """Leftovers in words, with the ids of their processes."""
    pids = [process.pid for one in found for process in one.processes]
    directories = f"{len(found)} private director{'y' if len(found) == 1 else 'ies'} of kernels that are gone"
    if not pids:
        return directories
    return f"{directories}, {len(pids)} process{'' if len(pids) == 1 else 'es'} running: {', '.join(map(str, pids))}"


def end_leftovers(find=leftovers.find, end=leftovers.end) -> Finding:
    """Ends what `old_ranks` finds, and says so."""
    found = find()
    stayed = end(found)
    if stayed:
        return broken(f"still running: {', '.join(str(one.pid) for one in stayed)}", "restart the machine if they hold a GPU")
    return fine(f"ended and removed: {describe(found)}" if found else "none")
