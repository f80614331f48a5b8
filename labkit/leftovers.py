"""What outlives its kernel: processes that the fork server had written down, and its private directory.

Normally nothing does: the fork server ends its ranks and removes its directory. Where it was itself ended by force, this
finds them again, and tells them by process id *and* start time, so that a later process with the same id is never meant.
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labkit import process_table
from labkit.cgroup import text_of

FILE = "processes"
GONE_S = 3.0


class Known(NamedTuple):
    """A process by its id and its start in clock ticks since the machine's start (field 22 of /proc/PID/stat)."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Leftover:
    """A private directory whose kernel is gone, with the processes of it that still run."""

    directory: Path
    processes: tuple[Known, ...] = ()


def known(pid: int) -> Known | None:
    """The running process with this id; None where there is none, or where the system shows no start times (macOS)."""
    found = process_table.process(pid)
    return Known(pid, found.start_ticks) if found and not found.ended else None


class Register:
    """The fork server's list of its kernel, itself and its ranks, in its private directory."""

    def __init__(self, directory: str, kernel_pid: int):
        self.path = os.path.join(directory, FILE)
        self.head = {"seat": _seat(), "kernel": known(kernel_pid), "server": known(os.getpid())}
        self.forget_ranks()

    def add_rank(self, pid: int) -> None:
        rank = known(pid)
        if rank:
            self._write("a", rank)

    def forget_ranks(self) -> None:
        self._write("w", self.head)

    def _write(self, mode, line):
        with contextlib.suppress(OSError), open(self.path, mode) as file:  # a full disk must not end a run
            file.write(json.dumps(line) + "\n")


def find(folder: str | None = None) -> list[Leftover]:
    """This user's leftovers in `folder` (the temp directory if None)."""
    return [found for found in map(_leftover, _own_directories(folder or tempfile.gettempdir())) if found]


def end(leftovers: list[Leftover]) -> list[Known]:
    """Ends the processes that still are the ones written down, removes their directories; returns those that stay."""
    deadline = time.monotonic() + GONE_S
    while True:
        left = [found for found in (_leftover(one.directory) for one in leftovers) if found]
        running = [process for one in left for process in one.processes]
        for process in running:
            if known(process.pid) == process:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        if not running or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for one in left:
        if not one.processes:
            shutil.rmtree(one.directory, ignore_errors=True)
    return running


def _own_directories(folder):
    for path in sorted(Path(folder).glob("labkit-*")):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                yield path


def _leftover(directory):
    """The Leftover in a directory, None where its kernel runs or where nobody can tell."""
    lines = text_of(directory / FILE).splitlines()
    try:
        head, *ranks = [json.loads(line) for line in lines]
        seat, kernel, server = head["seat"], Known(*head["kernel"]), Known(*head["server"])
        ranks = [Known(*rank) for rank in ranks]
    except (ValueError, TypeError, KeyError):
        return None
    # In another container or before a restart of the machine these ids meant other processes.
    if seat != _seat() or known(kernel.pid) == kernel:
        return None
    return Leftover(directory, _running([server, *ranks]))


def _running(leaders):
    """Those of the processes written down that run, with what they started."""
    table = process_table.processes()
    now = {one.pid: one for one in table}
    members = set()
    for leader in leaders:
        # A session's id is not given anew while one process of it runs, even where its leader is gone.
        if leader.pid not in now or now[leader.pid].start_ticks == leader.start_ticks:
            members.update(one for one in process_table.family(leader.pid, table) if one.start_ticks >= leader.start_ticks)
    return tuple(sorted(Known(one.pid, one.start_ticks) for one in members if not one.ended))


def _seat():
    """Tells apart the starts of machines, and the containers in which process ids are counted."""
    with contextlib.suppress(OSError):
        return f"{text_of(Path('/proc/sys/kernel/random/boot_id'))} {os.readlink('/proc/self/ns/pid')}"
    return ""
