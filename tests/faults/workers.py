"""What ranks of the fault tests import: a clock that the test can read too, and work."""

import os
import time
from pathlib import Path


class Moment:
    """When something happened, noted by the process to which it happened; CLOCK_MONOTONIC is the same in all of them."""

    def __init__(self, path):
        self.path = Path(path)

    def note(self):
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(str(time.monotonic()))
        fresh.rename(self.path)

    def age_s(self):
        return time.monotonic() - float(self.path.read_text())

    def wait(self, within_s=30):
        """Blocks until it has been noted."""
        deadline = time.monotonic() + within_s
        while not self.path.exists():
            assert time.monotonic() < deadline, f"{self.path.name} was not noted within {within_s} s"
            time.sleep(0.005)


def compute(seconds):
    """Uses the CPU and says nothing."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sum(range(10_000))


class Numbers:
    """A data set of 0 … 99."""

    def __len__(self):
        return 100

    def __getitem__(self, at):
        return at
