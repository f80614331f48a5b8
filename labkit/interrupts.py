"""Stop, as labkit sees it: a flag and a readable descriptor instead of an exception at any line."""

import contextlib
import os
import selectors
import signal
import threading

from labkit.errors import Stopped


class Interrupts:
    """While entered in the main thread, SIGINT is noted instead of raised; a second one changes nothing.

    Elsewhere than in the main thread nothing is changed, since signals do not arrive there.
    """

    def __init__(self):
        self.seen = 0
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._previous = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if previous not in (signal.SIG_IGN, None):
                self._previous = previous
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_):
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        os.close(self._read)
        os.close(self._write)

    def fileno(self):
        return self._read

    def check(self):
        if self.seen:
            raise Stopped("stopped while the ranks were starting")

    def wait_readable(self, source, timeout_s):
        """Blocks until `source` can be read and returns True, or False after `timeout_s`; raises Stopped at an interrupt."""
        with selectors.DefaultSelector() as selector:
            for one in (source, self):
                selector.register(one, selectors.EVENT_READ)
            readable = [key.fileobj for key, _ in selector.select(timeout_s)]
        self.check()
        return source in readable

    def _note(self, *_):
        self.seen += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")
