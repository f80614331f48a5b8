"""Readings of running processes from /proc; where there is none (macOS), they are None or empty."""

import contextlib
import os
import signal
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One process as /proc shows it; cpu_s includes children that it has waited for.

    `start_ticks` are clock ticks since the machine's start; `ended` is true of one that nobody has waited for yet.
    """

    pid: int
    parent: int
    session: int
    cpu_s: float
    memory_bytes: int
    start_ticks: int
    ended: bool


def process(pid):
    """Returns the Process with this id, or None."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name, which comes before, may hold spaces and brackets.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = sum(map(int, fields[11:15]))
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=ticks / _TICKS,
        memory_bytes=int(fields[21]) * _PAGE,
        start_ticks=int(fields[19]),
        ended=fields[0] in "ZX",
    )


def processes():
    """Returns all processes that run now."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    return [found for found in map(process, pids) if found]


def family(leader, table):
    """Returns, of the processes in `table`, the session that `leader` leads and all that descends from it."""
    members = {found.pid: found for found in table if found.session == leader}
    grew = True
    while grew:
        more = {found.pid: found for found in table if found.parent in members and found.pid not in members}
        grew = bool(more)
        members |= more
    return list(members.values())


def children(pid):
    """Returns the ids of the processes whose parent is `pid`."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return [found.pid for found in processes() if found.parent == pid]


def kill_families(leaders):
    """Ends the process groups of these session leaders, and where /proc shows them all that descend from them."""
    table = processes()
    members = {found.pid for leader in leaders for found in family(leader, table)}
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
