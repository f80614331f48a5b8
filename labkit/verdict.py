"""Who was at fault: one message from all that a failing run showed."""

import linecache
import os
import re
import signal

from labkit.errors import signal_sentence
from labkit.notebook import place
from labkit.stacks import learners_frames, main_thread_frames

_LOST_CONNECTION = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|Socket Timeout"
    r"|remote process exited|Connection refused|Connect timeout|unhandled system error",
    re.IGNORECASE,
)
_TORCH_ERRORS = ("RuntimeError", "DistError", "DistBackendError", "DistNetworkError")
_MISMATCH = re.compile(r"[Rr]eceived data size doesn.t match expected size|op\.preamble\.length <= op\.nbytes")
MISMATCH_SENTENCE = (
    "the ranks called different collectives, or the same one with tensors of different sizes (signal 6, SIGABRT); every rank "
    "must make the same calls in the same order with the same sizes"
)
SAME_CALLS = "Every rank must make the same calls in the same order."
ONE_SIDED = {
    "waits in send": "Every rank sends before any receives: let one receive first, or send with isend.",
    "waits in recv": "Every rank receives before any sends: let one send first.",
}
_MANY_FRAMES, _END_FRAMES = 30, 10
_ORDER = {"killed": 0, "exited": 1, "raised": 2, "lost": 3}


def failure_kind(state):
    """Returns "killed", "exited", "raised" or "lost" (a lost connection: a consequence), or None."""
    if state.failure is not None:
        if state.failure["kind"] == "raised" and any(_is_lost(error) for error in state.failure["chain"]):
            return "lost"
        return state.failure["kind"]
    if state.exit_code is None or state.result is not None:
        return None
    return "killed" if state.exit_code < 0 else "exited"


def judge(states, status, directory):
    """Returns (message, fields of the RankError) for the rank that failed first in cause, not in time."""
    failed = [state for state in states if failure_kind(state)]
    state = min(failed, key=lambda state: (_ORDER[failure_kind(state)], state.rank))
    kind = failure_kind(state)
    if kind == "lost":
        return _lost(states, status, directory)
    if state.failure is not None:
        return reported(state)
    if state.exit_code == -signal.SIGABRT and any(_MISMATCH.search(other.stderr_tail) for other in states):
        return _mismatch(state.rank, states, directory)
    frames = _frames_in_dump(state, directory)
    if kind == "killed":
        message = f"rank {state.rank} was ended by {signal_sentence(-state.exit_code)}"
        note = _memory_note(state) if -state.exit_code == signal.SIGKILL else ""
        return message, _fields(state.rank, "killed", _listing(state.rank, frames) + note)
    message = f"rank {state.rank} exited with status {state.exit_code} before its function returned"
    return message, _fields(state.rank, "exited", _listing(state.rank, frames))


def judge_hang(states, status, directory, seconds):
    """Returns (message, fields) for ranks that make no progress; `seconds` is None where a peer has returned."""
    rows, listings = [], []
    for state in states:
        waits = status.waiting_in(state.rank)
        doing = f"waits in {waits}" if waits else "waits outside of any collective"
        if state.result is not None:
            rows.append((state.rank, "has returned", []))
        else:
            frames = _frames_in_dump(state, directory)
            rows.append((state.rank, doing, frames[-1:]))
            listings.append(_listing(state.rank, frames))
    head = f"no rank made progress for {seconds:g} s" if seconds is not None else "hang"
    return _hang(head, rows, listings)


def _lost(states, status, directory):
    """Judges a run in which ranks lost their connections and none has said why."""
    rows, listings = [], []
    for state in states:
        if failure_kind(state) == "lost":
            frames = learners_frames(state.failure["chain"][0]["frames"])
            rows.append((state.rank, "lost the connection to the others", frames[-1:]))
            listings.append(f"{_listing(state.rank, frames)}{_said(state.failure['chain'][0])}\n")
        elif state.result is not None:
            rows.append((state.rank, "has returned", []))
    if all(state.result is None for state in states):
        rank, doing, frames = rows[0]
        return _sentence(rank, doing, frames), _fields(rank, "raised", listings[0])
    return _hang("hang", rows, listings)


def _mismatch(rank, states, directory):
    """Judges a run in which gloo found tensors of different sizes; which rank saw it first is chance, so none is named."""
    frames = [
        learners_frames(state.failure["chain"][0]["frames"]) if state.failure else _frames_in_dump(state, directory)
        for state in states
    ]
    return MISMATCH_SENTENCE, _fields(rank, "killed", "".join(map(_listing, range(len(states)), frames)))


def _hang(head, rows, listings):
    """Rows are (rank, what it does, the frame where); returns one sentence, and a table above the listings."""
    table = [f"rank {rank}  {doing:<32}{place(*frames[-1][:2]) if frames else ''}".rstrip() for rank, doing, frames in rows]
    message = f"{head}: {'; '.join(_sentence(*row) for row in rows)}. {_advice(rows)}"
    return message, _fields(None, "hang", "\n".join(table) + "\n\n" + "".join(listings))


def _advice(rows):
    doings = {doing for _, doing, _ in rows}
    return ONE_SIDED.get(doings.pop(), SAME_CALLS) if len(doings) == 1 else SAME_CALLS


def _sentence(rank, doing, frames):
    return f"rank {rank} {doing}" + (f", {place(*frames[-1][:2])}" if frames else "")


def reported(state):
    """Returns (message, fields of the RankError) for a rank that has said itself what it raised."""
    failure = state.failure
    outermost = failure["chain"][0]
    listing = _listing(state.rank, learners_frames(outermost["frames"]))
    if failure["kind"] == "exited":
        said = f": {failure['said']}" if failure["said"] else ""
        message = f"rank {state.rank} exited with status {failure['code']} (sys.exit) before its function returned{said}"
        return message, _fields(state.rank, "exited", listing)
    listing += f"{_said(outermost)}\n"
    for cause in failure["chain"][1:]:
        frames = learners_frames(cause["frames"])
        listing += f"{cause['link']} {_said(cause)}\n" + "".join(f"{line}\n" for line in _lines(frames))
    return f"rank {state.rank} raised {_said(outermost)}", _fields(state.rank, "raised", listing)


def _said(error):
    return f"{error['type']}: {error['message']}" if error["message"] else error["type"]


def _is_lost(error):
    return error["type"] in _TORCH_ERRORS and bool(_LOST_CONNECTION.search(error["message"]))


def _fields(rank, kind, traceback):
    return {"rank": rank, "kind": kind, "traceback": traceback}


def _frames_in_dump(state, directory):
    return learners_frames(main_thread_frames(os.path.join(directory, f"stack-{state.rank}")))


def _listing(rank, frames):
    """Formats frames like a traceback, headed by the rank."""
    return f"rank {rank}:\n" + "".join(f"{line}\n" for line in _lines(frames)) if frames else ""


def _lines(frames):
    """Formats frames with their source lines, which only the kernel knows for cells."""
    lines = []
    if len(frames) > _MANY_FRAMES:
        left_out = len(frames) - 2 * _END_FRAMES
        return [*_lines(frames[:_END_FRAMES]), f"  … {left_out} more calls …", *_lines(frames[-_END_FRAMES:])]
    for filename, line, name in frames:
        lines.append(f"  {place(filename, line)}, in {name}")
        linecache.checkcache(filename)
        source = linecache.getline(filename, line).strip()
        if source:
            lines.append(f"    {source}")
    return lines


def _memory_note(state):
    """Says how much memory the rank had when last looked at, beside the machine's limit."""
    from labkit.devices import machine

    limit = machine().memory_bytes / 2**30
    return f"rank {state.rank} held {state.memory_bytes / 2**30:.1f} GiB when last seen; the limit is {limit:.1f} GiB in all\n"
