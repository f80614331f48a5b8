"""Kernels: Python processes that execute cells, in process groups of their own."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import survivors

DRIVER = Path(__file__).with_name("kernel_driver.py")
START = "import os, time, torch, torch.distributed as dist, labkit\nfrom workers import Moment"


class Kernel:
    """Runs cells in a process of its own, whose working directory is `folder`; `with` ends it.

    prefix  words before its command line, of a program that replaces itself by the kernel
    """

    def __init__(self, folder, prefix=()):
        replies, theirs = os.pipe()
        path = os.pathsep.join([str(DRIVER.parent), str(DRIVER.parents[2])])
        self.process = subprocess.Popen(
            [*prefix, sys.executable, DRIVER, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            text=True,
        )
        os.close(theirs)
        survivors.KERNELS.add(self.process.pid)
        self._replies = os.fdopen(replies)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(10)
        survivors.KERNELS.discard(self.process.pid)
        self._replies.close()

    def send(self, cell):
        """Starts a cell and returns at once."""
        self.process.stdin.write(json.dumps(textwrap.dedent(cell)) + "\n")
        self.process.stdin.flush()

    def reply(self, within_s=60):
        """Returns what the cell ended with: error (a name or None), message, value."""
        assert select.select([self._replies], [], [], within_s)[0], f"no reply within {within_s} s"
        return json.loads(self._replies.readline())

    def run(self, cell, within_s=60):
        """Executes a cell and returns its last value; fails if it raises."""
        self.send(cell)
        reply = self.reply(within_s)
        assert reply["error"] is None, reply
        return reply["value"]

    def interrupt(self):
        """Does what Jupyter's Stop does: signals the kernel's whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        survivors.KERNELS.discard(self.process.pid)
