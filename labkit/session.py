"""One run, seen from the kernel: starts the ranks, hears them out, and ends them, however it goes."""

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import time

from labkit import process_table, server_link, verdict
from labkit.errors import RankError, Stopped
from labkit.listener import Listener, RankState
from labkit.progress import Progress
from labkit.status import Status

FORK = sys.platform == "linux"  # elsewhere forking after importing torch is not safe
GONE_S = 5.0  # by then no rank is left
CAUSE_S, LOST_CAUSE_S = 0.2, 0.5  # how long to wait for the cause behind a first sign of failure
DUMP_S, LEAVE_S = 0.3, 1.0
_next_run = iter(range(1, sys.maxsize))


class Session:
    """A run of `plan["world_size"]` ranks.

    `prints` takes what they print; `view` is told of each turn of the loop and draws, or not.
    """

    def __init__(self, plan, *, timeout, prints, view, interrupts):
        self.plan, self.timeout, self.prints, self.view, self.interrupts = plan, timeout, prints, view, interrupts
        self.states = [RankState(rank) for rank in range(plan["world_size"])]
        self.listener = Listener(self.states, prints, interrupts)
        self.records = self.listener.records
        self.status = self.directory = None
        self._server = self._run = self._life = self._release = self._failed_at = None

    def run(self, function_data):
        """Runs the ranks to their end; raises RankError or Stopped, and leaves no process behind."""
        try:
            self._start(function_data)
            self._pump()
            self._let_go()
        finally:
            self._end()

    def _end(self):
        """Ends whatever rank is left and gives back everything that the run held."""
        self._hang_up()
        self.listener.close()
        if self.status is not None:
            self.status.close()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, function_data):
        self._run = next(_next_run)
        self._server = server_link.connect(self.interrupts)
        with contextlib.ExitStack() as ours:
            self.directory = os.path.join(self._server.directory, f"run-{self._run}")
            os.mkdir(self.directory, 0o700)
            self.plan["directory"] = self.directory
            self.status = Status(os.path.join(self.directory, "status"), self.plan["world_size"], create=True)
            payload = _payload_file(pickle.dumps(self.plan), function_data)
            ours.callback(os.close, payload)
            life_r, self._life = os.pipe()
            ours.callback(os.close, life_r)
            release_r, self._release = os.pipe()
            ours.callback(os.close, release_r)
            with _closing([self.listener.open_status()]) as writables:
                self._server.ask("begin", [*writables, life_r], run=self._run, ranks=len(self.states))
            for state in self.states:
                self.interrupts.check()
                with _closing(self.listener.open_rank(state)) as writables:
                    descriptors = [payload, *writables, release_r]
                    answer = self._server.ask("rank", descriptors, run=self._run, rank=state.rank, fork=FORK)
                if "trouble" in answer:
                    raise RuntimeError(f"rank {state.rank} cannot be started: {answer['trouble']}")
                state.pid = answer["pid"]

    def _pump(self):
        on_cuda = any(str(device).startswith("cuda") for device in self.plan["devices"])
        progress = Progress(self.listener, self.status, self.timeout, on_cuda=on_cuda)
        while any(state.result is None for state in self.states):
            self.listener.turn(0.1)
            now = time.monotonic()
            self.prints.show(now)
            if self.view.tick(self):
                progress.note(time.monotonic())  # the ranks may have waited for the picture
            if self.interrupts.seen:
                self._hang_up()
                raise Stopped(f"stopped: all {len(self.states)} ranks have ended")
            self._look_for_failure(now, progress)

    def _look_for_failure(self, now, progress):
        kinds = {verdict.failure_kind(state) for state in self.states} - {None}
        if kinds:
            self._failed_at = self._failed_at or now
            patience = LOST_CAUSE_S if kinds == {"lost"} else CAUSE_S
            if self.listener.gone or all(state.ended for state in self.states) or now - self._failed_at >= patience:
                self._fail()
        elif self.listener.gone and any(state.result is None for state in self.states):
            raise server_link.ServerGone("labkit's fork server was ended, and all ranks with it; the next run starts a new one")
        elif progress.idle_s(now) >= self.timeout:
            self._hang(self.timeout)
        elif progress.lonely(now):
            self._hang(None)

    def _fail(self):
        # How ranks end from here on is labkit's doing and no longer counts; what they had said is still read.
        ends = [state.exit_code for state in self.states]
        self._hang_up()
        for state, exit_code in zip(self.states, ends, strict=True):
            state.exit_code = exit_code
        self._raise(*verdict.judge(self.states, self.status, self.directory))

    def _hang(self, seconds):
        with contextlib.suppress(server_link.ServerGone):
            self._server.ask("dump", run=self._run)
        deadline = time.monotonic() + DUMP_S
        while time.monotonic() < deadline:
            self.listener.turn(0.05)
        judged = verdict.judge_hang(self.states, self.status, self.directory, seconds)
        self._hang_up()
        self._raise(*judged)

    def _raise(self, message, fields):
        raise RankError(message, **fields)

    def _hang_up(self):
        """Lets the fork server end the ranks that are left, and waits until they have gone."""
        if self._life is not None:
            with contextlib.suppress(server_link.ServerGone):
                self._server.ask("kill", run=self._run)
            os.close(self._life)
            self._life = None
            self._await_gone(GONE_S)
            self._end_families()
        if self._release is not None:
            os.close(self._release)
            self._release = None

    def _let_go(self):
        """Lets ranks that have returned leave; one that cannot within a second is ended with the rest."""
        # One byte for each rank: the end of the pipe does not show where a fork of the kernel holds it too.
        os.write(self._release, bytes(len(self.states)))
        self._await_gone(LEAVE_S)

    def _await_gone(self, seconds):
        deadline = time.monotonic() + seconds
        while not self.listener.gone and time.monotonic() < deadline:
            self.listener.turn(0.05)

    def _end_families(self):
        """Ends what ranks had started where the fork server, ended itself, did not report them as gone."""
        left = [state.pid for state in self.states if state.pid is not None and state.exit_code is None]
        if left:
            process_table.kill_families(left)


@contextlib.contextmanager
def _closing(descriptors):
    """Closes the descriptors at its end: the fork server and the rank have their own copies by then."""
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


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
