"""The fork server's children: how ranks are started, awaited and ended."""

import contextlib
import os
import signal
import time
import traceback

from labkit import process_table, rank_process

ORPHANS_S = 1.0


def start_rank(rank, descriptors, *, fork):
    """Starts one rank: by a fork where that is safe (Linux), else as a fresh Python; returns its process id."""
    server_pid = os.getpid()
    if not fork:
        return rank_process.start_fresh(rank, descriptors, server_pid)
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            rank_process.main(rank, descriptors, server_pid)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    return pid


def ended_child():
    """Returns (id, status) of a child that ended, status None where it is still to be waited for; None if there is none."""
    if hasattr(os, "waitid"):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended and (ended.si_pid, None)
    # macOS before Python 3.13 can only look and wait at once.
    pid, status = os.waitpid(-1, os.WNOHANG)
    return (pid, status) if pid else None


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_orphans():
    """Ends what ranks left behind in sessions of their own; called only while no rank runs."""
    deadline = time.monotonic() + ORPHANS_S
    while (pids := process_table.children(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)
