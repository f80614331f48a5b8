"""The descriptors of a rank: its own streams, and nothing else that the fork server had open."""

import contextlib
import io
import os
import sys


def close_others(keep):
    """Closes all descriptors but these, of which programs that the rank starts get only the streams."""
    for descriptor in keep - {0, 1, 2}:
        os.set_inheritable(descriptor, False)
    for name in os.listdir("/dev/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


class _Whole(io.FileIO):
    """A file whose write takes all bytes, even where a signal cuts the system call short."""

    def write(self, data):
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


def open_streams():
    """Gives this rank its own streams: each write reaches the kernel at once, flushed or not."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = _Whole(descriptor, "w", closefd=False)
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False))


@contextlib.contextmanager
def quiet():
    """Keeps what gloo's C++ code prints about its connections out of the learner's cell."""
    saved = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
