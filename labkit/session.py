"""One run, seen from the kernel: starts the ranks, hears them out, and ends them, however it goes."""

import contextlib
import fcntl
import functools
import json
import os
import pickle
import selectors
import shutil
import struct
import sys
import tempfile
import time

from labkit import process_table, verdict
from labkit.errors import RankError, Stopped
from labkit.server_link import ServerGone, link
from labkit.status import Status

GONE_S = 5.0  # by then no rank is left
CAUSE_S, LOST_CAUSE_S = 0.2, 0.5  # how long to wait for the cause behind a first sign of failure
LONELY_S = 1.0  # how long ranks may wait for one that has returned
_PIPE_BYTES = 1 << 20
_next_run = iter(range(1, sys.maxsize))


class RankState:
    """What the kernel knows of one rank."""

    def __init__(self, rank):
        self.rank, self.pid = rank, None
        self.buffer = bytearray()
        self.result = self.failure = self.exit_code = None
        self.observed, self.stderr_tail, self.memory_bytes = {}, "", 0
        self.readers = {}  # descriptor -> what reads it

    @property
    def ended(self):
        return self.result is not None or self.failure is not None or self.exit_code is not None


class Session:
    """A run of `plan["world_size"]` ranks.

    `prints` takes what they print; `view` is told of each turn of the loop and draws, or not.
    """

    def __init__(self, plan, *, timeout, prints, view, interrupts):
        self.plan, self.timeout, self.prints, self.view, self.interrupts = plan, timeout, prints, view, interrupts
        self.states = [RankState(rank) for rank in range(plan["world_size"])]
        self.records, self.status, self.directory = [], None, None
        self.selector = selectors.DefaultSelector()
        self.selector.register(interrupts, selectors.EVENT_READ, None)
        self.life = self.release = None
        self._gone, self._failed_at = False, None
        self._token, self._progress_at, self._looked_at = None, time.monotonic(), 0.0

    def run(self, function_data):
        """Runs the ranks to their end; raises RankError or Stopped, and leaves no process behind."""
        try:
            self._start(function_data)
            self._pump()
            self._let_go()
        finally:
            self.end()

    def end(self):
        """Ends whatever rank is left and gives back everything that the run held."""
        if self.life is not None:
            self._hang_up()
            self._await_gone(GONE_S)
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, int):
                self.selector.unregister(key.fileobj)
                os.close(key.fileobj)
        self.selector.close()
        if self.status is not None:
            self.status.close()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, function_data):
        run = next(_next_run)
        with link(self.interrupts) as server:
            self.directory = os.path.join(server.directory, f"run-{run}")
            os.mkdir(self.directory, 0o700)
            self.plan["directory"] = self.directory
            self.status = Status(os.path.join(self.directory, "status"), self.plan["world_size"], create=True)
            payload = _payload_file(pickle.dumps(self.plan), function_data)
            release_r, self.release = os.pipe()
            try:
                self._begin(server, run)
                for state in self.states:
                    self._start_rank(server, run, state, payload, release_r)
            finally:
                os.close(payload)
                os.close(release_r)
            self._dump = lambda: server.ask("dump", run=run)

    def _begin(self, server, run):
        status_r, status_w = os.pipe()
        life_r, self.life = os.pipe()
        self._watch(status_r, lambda: self._on_status(status_r))
        self._status_lines = b""
        server.ask("begin", [status_w, life_r], run=run, ranks=self.plan["world_size"])
        os.close(status_w)
        os.close(life_r)

    def _start_rank(self, server, run, state, payload, release_r):
        self.interrupts.check()
        pipes = [os.pipe() for _ in range(3)]
        handlers = (self._on_channel, self._on_output, self._on_errors)
        for (readable, writable), handler in zip(pipes, handlers, strict=True):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            state.readers[readable] = functools.partial(handler, readable, state)
            self._watch(readable, state.readers[readable])
        writables = [writable for _, writable in pipes]
        fork = sys.platform == "linux"
        answer = server.ask("rank", [payload, *writables, release_r], run=run, rank=state.rank, fork=fork)
        for writable in writables:
            os.close(writable)
        state.pid = answer["pid"]

    def _watch(self, descriptor, read):
        os.set_blocking(descriptor, False)
        self.selector.register(descriptor, selectors.EVENT_READ, read)

    def _pump(self):
        while not all(state.result is not None for state in self.states):
            self._turn(0.1)
            now = time.monotonic()
            self.prints.show(now)
            if self.view.tick(self):
                self._progress_at = time.monotonic()  # the ranks may have waited for the picture
            if self.interrupts.seen:
                self._abort()
                raise Stopped(f"stopped: all {len(self.states)} ranks have ended")
            self._look_for_failure(now)

    def _turn(self, timeout_s):
        for key, _ in self.selector.select(timeout_s):
            # What came before in this turn may have read this descriptor to its end and closed it.
            if key.data is not None and key.fd in self.selector.get_map():
                key.data()

    def _look_for_failure(self, now):
        kinds = {verdict.failure_kind(state) for state in self.states} - {None}
        if kinds:
            self._failed_at = self._failed_at or now
            patience = LOST_CAUSE_S if kinds == {"lost"} else CAUSE_S
            if now - self._failed_at >= patience or all(state.ended for state in self.states):
                self._fail()
        elif self._idle_s(now) >= self.timeout:
            self._hang(self.timeout)
        elif self._lonely() and self._idle_s(now) >= LONELY_S:
            self._hang(None)

    def _lonely(self):
        """Returns whether some ranks have returned and all the others wait in a collective."""
        returned = [state.result is not None for state in self.states]
        waiting = [self.status.waiting_in(state.rank) is not None for state in self.states]
        return any(returned) and all(r or w for r, w in zip(returned, waiting, strict=True))

    def _idle_s(self, now):
        """Returns for how long no rank has made progress."""
        if now - self._looked_at >= min(0.25, self.timeout / 4):
            self._looked_at = now
            token = [self._activity(state, now) for state in self.states]
            if token != self._token:
                self._token, self._progress_at = token, now
        return now - self._progress_at

    def _activity(self, state, now):
        """Returns a value that changes while the rank gets on: collectives, messages, or CPU time outside of them."""
        if state.ended:
            return "ended"
        state.memory_bytes = process_table.memory_bytes(state.pid) or 0
        row = self.status.row(state.rank)
        if self.status.waiting_in(state.rank):
            return row
        own = process_table.cpu_seconds(state.pid)
        if own is None:
            return row, now
        workers = process_table.session_cpu_seconds(state.pid) if now - self._progress_at > 1 else 0
        return row, own, workers

    def _fail(self):
        self._abort()
        self._raise(*verdict.judge(self.states, self.directory))

    def _hang(self, seconds):
        with contextlib.suppress(ServerGone):
            self._dump()
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            self._turn(0.05)
        judged = verdict.judge_hang(self.states, self.status, self.directory, seconds)
        self._abort()
        self._raise(*judged)

    def _raise(self, message, fields):
        raise RankError(message, **fields)

    def _abort(self):
        """Ends all ranks now. What they had said before is still read; how they end no longer counts."""
        ends = [state.exit_code for state in self.states]
        self._hang_up()
        self._await_gone(GONE_S)
        for state, exit_code in zip(self.states, ends, strict=True):
            state.exit_code = exit_code

    def _await_gone(self, seconds):
        deadline = time.monotonic() + seconds
        while not self._gone and time.monotonic() < deadline:
            self._turn(0.05)

    def _hang_up(self):
        for name in ("life", "release"):
            if getattr(self, name) is not None:
                os.close(getattr(self, name))
                setattr(self, name, None)

    def _let_go(self):
        """Lets ranks that have returned leave; one that cannot within a second is ended with the rest."""
        os.close(self.release)
        self.release = None
        self._await_gone(1.0)

    def _on_status(self, descriptor):
        data = _read(descriptor)
        if data == b"":
            self._gone = True
            self._forget(descriptor)
            return
        *lines, self._status_lines = (self._status_lines + (data or b"")).split(b"\n")
        for line in map(json.loads, lines):
            state = self.states[line["rank"]]
            self._drain(state)
            state.exit_code = line["exit_code"]

    def _drain(self, state):
        """Reads what an ended rank had still written, so that its own words come before its exit."""
        for read in list(state.readers.values()):
            read()

    def _on_channel(self, descriptor, state):
        while data := _read(descriptor):
            state.buffer += data
        if data == b"":
            self._forget(descriptor, state)
        while len(state.buffer) >= 8:
            (length,) = struct.unpack_from("<Q", state.buffer)
            if len(state.buffer) < 8 + length:
                return
            kind, value = pickle.loads(memoryview(state.buffer)[8 : 8 + length])
            del state.buffer[: 8 + length]
            self._on_message(state, kind, value)

    def _on_message(self, state, kind, value):
        self._progress_at = time.monotonic()
        if kind == "records":
            self.records += value
        elif kind == "observed":
            state.observed = value
        elif kind == "result":
            state.result = value
        else:
            state.failure = value

    def _on_output(self, descriptor, state, stream="stdout"):
        data = _read(descriptor)
        if data:
            self._progress_at = time.monotonic()
            self.prints.feed(state.rank, stream, data)
            if stream == "stderr":
                state.stderr_tail = (state.stderr_tail + data.decode(errors="replace"))[-8192:]
        elif data == b"":
            self._forget(descriptor, state)

    def _on_errors(self, descriptor, state):
        self._on_output(descriptor, state, "stderr")

    def _forget(self, descriptor, state=None):
        if state is not None:
            del state.readers[descriptor]
        self.selector.unregister(descriptor)
        os.close(descriptor)


def _read(descriptor):
    """Returns what can be read now, b"" at the end of the stream, None if there is nothing yet."""
    try:
        return os.read(descriptor, _PIPE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _payload_file(*parts):
    """Returns a descriptor of a nameless file that holds the parts one after the other."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("labkit")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with os.fdopen(os.dup(descriptor), "wb") as file:
        for part in parts:
            file.write(part)
    return descriptor
