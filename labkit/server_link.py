"""The kernel's end of the fork server: started once per kernel, asked for ranks, gone with the kernel."""

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

START_TIMEOUT_S, ANSWER_TIMEOUT_S = 120, 60
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_lock = threading.Lock()
_link = None


class ServerGone(RuntimeError):
    """The fork server ended; a new one is started with the next run."""


def connect(interrupts):
    """Returns the kernel's fork server, started if need be; raises Stopped if Stop is pressed while it starts."""
    global _link
    while not _lock.acquire(timeout=0.1):
        interrupts.check()
    try:
        if _link is not None and not _link.answers():
            _link.close()
            _link = None
        _link = _link or Link()
        _link.wait_ready(interrupts)
        return _link
    finally:
        _lock.release()


def start_early():
    """Starts the fork server while the kernel is still busy importing; never waits, and what fails shows at the first run."""
    global _link
    with _lock, contextlib.suppress(OSError):
        _link = _link or Link()


class Link:
    """A running fork server. `.directory` is private to it and to its ranks, and goes with it."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="labkit-")
        self._errors = os.path.join(self.directory, "server-errors")
        self._socket, theirs = socket.socketpair()
        self._asking, self._ready = threading.Lock(), False
        with open(self._errors, "w") as errors:
            self.process = _start_server(theirs.fileno(), self.directory, errors)
        theirs.close()

    def answers(self):
        """Returns whether the server is there, or still starting, with its directory: systems clean up old temporary files."""
        if self.process.poll() is not None or not os.path.isdir(self.directory):
            return False
        try:
            return not self._ready or self.ask("greet") == {}
        except ServerGone:
            return False

    def wait_ready(self, interrupts):
        """Blocks until the server has imported torch."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready:
            if interrupts.wait_readable(self._socket, max(0.0, deadline - time.monotonic())):
                self._answer("did not start")
                self._socket.settimeout(ANSWER_TIMEOUT_S)
                self._ready = True
            elif time.monotonic() > deadline:
                raise ServerGone(f"labkit's fork server did not start within {START_TIMEOUT_S} s")

    def ask(self, operation, descriptors=(), **fields):
        """Sends one message with file descriptors and returns the server's answer."""
        with self._asking:
            try:
                socket.send_fds(self._socket, [json.dumps({"op": operation, **fields}).encode()], list(descriptors))
            except OSError:
                raise ServerGone(self._why("was ended")) from None
            return self._answer("was ended")

    def _answer(self, trouble):
        line = b""
        while not line.endswith(b"\n"):
            try:
                part = self._socket.recv(4096)
            except OSError:
                part = b""
            if not part:
                raise ServerGone(self._why(trouble))
            line += part
        return json.loads(line)

    def _why(self, trouble):
        said = []
        with contextlib.suppress(FileNotFoundError), open(self._errors, errors="replace") as errors:
            said = errors.read().strip().splitlines()
        return f"labkit's fork server {trouble}" + (f": {said[-1]}" if said else "; the next run starts a new one")

    def close(self):
        """Ends the server, which ends what it started."""
        self._socket.close()
        if not self._ready:
            self.process.terminate()  # still importing, it would not notice for long
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        shutil.rmtree(self.directory, ignore_errors=True)


def _start_server(descriptor, directory, errors):
    path = [os.path.abspath(entry) for entry in sys.path]
    code = f"import sys; sys.path[:] = {path!r}; from labkit.server import main; main({descriptor}, {directory!r}, {os.getpid()})"
    # A session of its own: Jupyter's Stop signals the kernel's whole process group.
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        pass_fds=[descriptor],
        env={**os.environ, **_SINGLE_THREADED},
        start_new_session=True,
    )


@atexit.register
def close():
    """Ends the fork server, if there is one; the next run starts a new one."""
    global _link
    if _link is not None:
        _link.close()
        _link = None


def _forget_in_child():
    """A fork of the kernel starts a server of its own: two processes cannot talk through one socket."""
    global _lock, _link
    if _link is not None:
        _link._socket.close()
    _lock, _link = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)
