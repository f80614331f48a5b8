"""What ranks say, as the kernel hears it: their messages, what they print, and how each of them ended."""

import contextlib
import fcntl
import functools
import json
import os
import selectors
import time

from labkit.channel import Inbox

_PIPE_BYTES = 1 << 20
_READS = 16  # of one channel in one turn: a large result must not keep Stop waiting


class RankState:
    """What the kernel knows of one rank."""

    def __init__(self, rank):
        self.rank, self.pid = rank, None
        self.result = self.failure = self.exit_code = None
        self.observed, self.stderr_tail, self.memory_bytes = {}, "", 0
        self.inbox, self.readers = Inbox(), {}  # descriptor -> what reads it

    @property
    def ended(self):
        return self.result is not None or self.failure is not None or self.exit_code is not None


class Listener:
    """Reads the pipes of a run's ranks into their states.

    .records   what the ranks logged, in the order of arrival
    .heard_at  time.monotonic() of the last message or print
    .gone      whether no rank is left, or nobody is left who could tell
    """

    def __init__(self, states, prints, interrupts):
        self.states, self.prints = states, prints
        self.records, self.heard_at, self.gone = [], time.monotonic(), False
        self._status_lines = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(interrupts, selectors.EVENT_READ, None)

    def open_status(self):
        """Returns the writable end of the pipe on which the fork server tells how ranks ended."""
        readable, writable = os.pipe()
        self._watch(readable, functools.partial(self._on_status, readable))
        return writable

    def open_rank(self, state):
        """Returns the writable ends of a rank's pipes: its channel, stdout and stderr."""
        writables = []
        for read in (self._on_channel, self._on_stdout, self._on_stderr):
            readable, writable = os.pipe()
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            state.readers[readable] = functools.partial(read, readable, state)
            self._watch(readable, state.readers[readable])
            writables.append(writable)
        return writables

    def turn(self, timeout_s):
        """Waits for at most `timeout_s` and reads what there is."""
        for key, _ in self._selector.select(timeout_s):
            # What came before in this turn may have read this descriptor to its end and closed it.
            if key.data is not None and key.fd in self._selector.get_map():
                key.data()

    def drain(self, state):
        """Reads what an ended rank had still written, so that its own words come before its end."""
        for read in list(state.readers.values()):
            read()

    def close(self):
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._forget(key.fd)
        self._selector.close()

    def _watch(self, descriptor, read):
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, read)

    def _forget(self, descriptor, state=None):
        if state is not None:
            del state.readers[descriptor]
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _on_status(self, descriptor):
        data = _read(descriptor)
        if data == b"":
            self.gone = True
            self._forget(descriptor)
            return
        *lines, self._status_lines = (self._status_lines + (data or b"")).split(b"\n")
        for line in map(json.loads, lines):
            state = self.states[line["rank"]]
            self.drain(state)
            state.exit_code = line["exit_code"]

    def _on_channel(self, descriptor, state):
        for _ in range(_READS):
            data = _read(descriptor)
            if not data:
                break
            self.heard_at = time.monotonic()
            for kind, value in state.inbox.feed(data):
                self._on_message(state, kind, value)
        if data == b"":
            self._forget(descriptor, state)

    def _on_message(self, state, kind, value):
        if kind == "records":
            self.records += value
        elif kind == "observed":
            state.observed = value
        elif kind == "result":
            state.result = value
        else:
            state.failure = value

    def _on_stdout(self, descriptor, state):
        self._on_print(descriptor, state, "stdout")

    def _on_stderr(self, descriptor, state):
        data = self._on_print(descriptor, state, "stderr")
        state.stderr_tail = (state.stderr_tail + (data or b"").decode(errors="replace"))[-8192:]

    def _on_print(self, descriptor, state, stream):
        data = _read(descriptor)
        if data:
            self.heard_at = time.monotonic()
            self.prints.feed(state.rank, stream, data)
        elif data == b"":
            self._forget(descriptor, state)
        return data


def _read(descriptor):
    """Returns what can be read now, b"" at the end of the stream, None if there is nothing yet."""
    try:
        return os.read(descriptor, _PIPE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
