"""The kernel's end of the fork server: started once per kernel, asked for ranks, gone with the kernel."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

START_TIMEOUT_S = 120
_lock = threading.Lock()
_link = None


class ServerGone(RuntimeError):
    """The fork server ended; a new one is started with the next run."""


class Link:
    """A running fork server."""

    def __init__(self):
        self.owner = os.getpid()
        self.directory = tempfile.mkdtemp(prefix="labkit-")
        self.socket, theirs = socket.socketpair()
        self.errors = open(os.path.join(self.directory, "server-errors"), "w+")
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environ.pop("PYTHONSTARTUP", None)
        path = [entry or os.getcwd() for entry in sys.path]
        code = (
            f"import sys; sys.path[:] = {path!r}; from labkit.server import main; "
            f"main({theirs.fileno()}, {self.directory!r}, {self.owner})"
        )
        # A session of its own: Jupyter's Stop signals the kernel's whole process group.
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            pass_fds=[theirs.fileno()],
            env=environ,
            start_new_session=True,
        )
        theirs.close()
        self.ready = False

    def alive(self):
        return self.owner == os.getpid() and self.process.poll() is None

    def wait_ready(self, interrupts):
        """Blocks until the server has imported torch; raises what `interrupts.check` raises if Stop is pressed."""
        if self.ready:
            return
        interrupts.wait_readable(self.socket, START_TIMEOUT_S)
        self._answer("did not start")
        self.ready = True

    def ask(self, operation, descriptors=(), **fields):
        """Sends one message with file descriptors and returns the server's answer."""
        try:
            socket.send_fds(self.socket, [json.dumps({"op": operation, **fields}).encode()], list(descriptors))
        except OSError:
            raise ServerGone(self._why("is gone")) from None
        return self._answer("is gone")

    def _answer(self, trouble):
        line = b""
        self.socket.settimeout(START_TIMEOUT_S)
        while not line.endswith(b"\n"):
            try:
                part = self.socket.recv(4096)
            except OSError:
                part = b""
            if not part:
                raise ServerGone(self._why(trouble))
            line += part
        return json.loads(line)

    def _why(self, trouble):
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        return f"labkit's fork server {trouble}" + (f": {said[-1]}" if said else "")

    def close(self):
        """Ends the server; it ends what it started and removes its directory."""
        with contextlib.suppress(OSError):
            self.socket.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            shutil.rmtree(self.directory, ignore_errors=True)
        self.errors.close()


@contextlib.contextmanager
def link(interrupts):
    """Yields the kernel's fork server, ready; one thread at a time may speak to it."""
    global _link
    with _lock:
        if _link is None or not _link.alive():
            if _link is not None and _link.owner == os.getpid():
                _link.close()
            _link = Link()
        _link.wait_ready(interrupts)
        yield _link
