"""The one-way channel of a rank: framed messages, written whole by the rank, read in pieces by the kernel."""

import os
import pickle
import struct
import threading

_HEADER = struct.Struct("<Q?")  # how many bytes follow, and whether they are a result, which is not pickled again


class Channel:
    """The rank's end."""

    def __init__(self, descriptor):
        self._descriptor, self._lock, self._owner = descriptor, threading.Lock(), os.getpid()

    def send(self, kind, value):
        """Sends a small value under its kind; blocks while the pipe is full."""
        self._write(pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL), is_result=False)

    def send_result(self, data):
        """Sends what the function returned, packed before."""
        self._write(data, is_result=True)

    def _write(self, body, *, is_result):
        if os.getpid() != self._owner:
            raise RuntimeError("only the rank itself can log; this is a process that it started")
        with self._lock:
            for part in (_HEADER.pack(len(body), is_result), body):
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]


class Inbox:
    """The kernel's end: bytes become messages."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data):
        """Returns the messages that these bytes complete, as [(kind, value)]."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEADER.size:
            length, is_result = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            messages.append(("result", body) if is_result else pickle.loads(body))
        return messages
