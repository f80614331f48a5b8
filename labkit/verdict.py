"""Who was at fault: one RankError from all that a failing run showed."""

import linecache
import os
import re
import signal

from labkit.errors import RankError, signal_sentence
from labkit.notebook import place
from labkit.stacks import learners_frames, main_thread_frames

_LOST_CONNECTION = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|Socket Timeout"
    r"|remote process exited|Connection refused|Connect timeout|unhandled system error",
    re.IGNORECASE,
)
_MISMATCH = re.compile(r"[Rr]eceived data size doesn.t match expected size|op\.preamble\.length <= op\.nbytes")
MISMATCH_SENTENCE = (
    "the ranks called different collectives, or the same one with tensors of different sizes; every rank must make the "
    "same calls in the same order with the same sizes"
)
_ORDER = {"killed": 0, "exited": 1, "raised": 2, "lost": 3}


def failure_kind(state):
    """Returns "killed", "exited", "raised" or "lost" (a lost connection: a consequence), or None."""
    if state.failure is not None:
        if state.failure["kind"] == "raised" and _LOST_CONNECTION.search(state.failure["message"]):
            return "lost"
        return state.failure["kind"]
    if state.exit_code is None or state.result is not None:
        return None
    return "killed" if state.exit_code < 0 else "exited"


def judge(states, directory):
    """Returns (message, fields of the RankError) of the rank that failed first in cause, not in time."""
    failed = [state for state in states if failure_kind(state)]
    state = min(failed, key=lambda state: (_ORDER[failure_kind(state)], state.rank))
    kind = failure_kind(state)
    if state.failure is not None:
        return _reported(state, kind)
    frames = learners_frames(main_thread_frames(os.path.join(directory, f"stack-{state.rank}")))
    if kind == "killed":
        message = f"rank {state.rank} was ended by {signal_sentence(-state.exit_code)}"
        if -state.exit_code == signal.SIGABRT and any(_MISMATCH.search(other.stderr_tail) for other in states):
            message = f"rank {state.rank} was ended by signal 6 (SIGABRT): {MISMATCH_SENTENCE}"
        note = memory_note(state) if -state.exit_code == signal.SIGKILL else ""
        return message, _fields(state.rank, "killed", _listing(state.rank, frames) + note)
    message = f"rank {state.rank} exited with status {state.exit_code} before its function returned"
    return message, _fields(state.rank, "exited", _listing(state.rank, frames))


def judge_hang(states, status, directory, seconds):
    """Returns (message, fields) for ranks that make no progress; `seconds` is None where a peer has returned."""
    rows, listings = [], []
    for state in states:
        frames = learners_frames(main_thread_frames(os.path.join(directory, f"stack-{state.rank}")))
        where = f", {place(*frames[-1][:2])}" if frames and state.result is None else ""
        waits = status.waiting_in(state.rank)
        if state.result is not None:
            doing = "has returned"
        else:
            doing = f"waits in {waits}" if waits else "waits outside of any collective"
        rows.append(f"rank {state.rank} {doing}{where}")
        if state.result is None:
            listings.append(_listing(state.rank, frames))
    head = f"no rank made progress for {seconds:g} s" if seconds is not None else "hang"
    message = f"{head}: {'; '.join(rows)}. Every rank must make the same calls in the same order."
    return message, _fields(None, "hang", "".join(listings))


def _reported(state, kind):
    failure = state.failure
    frames = learners_frames(failure["frames"])
    listing = _listing(state.rank, frames)
    if failure["kind"] == "exited":
        message = f"rank {state.rank} exited with status {failure['code']} (sys.exit) before its function returned"
        return message, _fields(state.rank, "exited", listing)
    said = f"{failure['type']}: {failure['message']}" if failure["message"] else failure["type"]
    message = f"rank {state.rank} raised {said}"
    if kind == "lost":
        message = f"rank {state.rank} lost the connection to the others: {failure['type']}"
    return message, _fields(state.rank, "raised", f"{listing}{said}\n")


def _fields(rank, kind, traceback):
    return {"rank": rank, "kind": kind, "traceback": traceback}


def _listing(rank, frames):
    """Formats frames like a traceback, with the source lines that only the kernel knows (those of cells)."""
    lines = []
    for filename, line, name in frames:
        lines.append(f"  {place(filename, line)}, in {name}")
        source = linecache.getline(filename, line).strip()
        if source:
            lines.append(f"    {source}")
    return f"rank {rank}:\n" + "".join(f"{line}\n" for line in lines) if lines else ""


def memory_note(state):
    """Says how much memory the rank had when last looked at, beside the machine's limit."""
    from labkit.devices import machine

    limit = machine().memory_bytes / 2**30
    return f"rank {state.rank} held {state.memory_bytes / 2**30:.1f} GiB when last seen; the limit is {limit:.1f} GiB in all\n"
