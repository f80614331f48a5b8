"""Which processes that came from these tests are still there, found without labkit's help.

Every process inherits the environment in which its program was started, and a mark in it that only this test session has;
forks, sessions of their own and adoption by another parent don't change that.
"""

import os
import time
import uuid
from pathlib import Path

from labkit import process_table, server_link

KERNELS = {os.getpid()}  # with the fork server that each has as its only child, the processes that may stay
MARK = f"LABKIT_FAULTS={uuid.uuid4().hex}"
GONE_S = 5.0


def set_mark():
    """Marks what this process starts from now on, including a new fork server."""
    name, _, value = MARK.partition("=")
    os.environ[name] = value
    server_link.close()


def marked():
    """Returns the ids of all running processes with the mark, zombies left out."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if MARK.encode() in environment.split(b"\0"):
            found.add(int(folder.name))
    return found


def survivors():
    """Returns the ids of marked processes that are neither a kernel of these tests nor the fork server of one."""
    return marked() - KERNELS - {child for kernel in KERNELS for child in process_table.children(kernel)}


def of(family):
    """Returns those of the processes in `family` that still run."""
    now = {one.pid: one.start_ticks for one in process_table.processes() if not one.ended}
    return [one for one in family if now.get(one.pid) == one.start_ticks]


def assert_gone(within_s):
    """Fails unless all survivors are gone within some seconds; names those that are not."""
    deadline = time.monotonic() + within_s
    while left := survivors():
        assert time.monotonic() < deadline, [describe(pid) for pid in left]
        time.sleep(0.01)


def describe(pid):
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        return f"{pid}: {Path(f'/proc/{pid}/stat').read_text()[:60]} {command}"
    except OSError:
        return f"{pid}: gone by now"
