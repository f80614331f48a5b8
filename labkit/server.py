"""The fork server: one process with torch imported and a single thread, from which every rank is forked.

The kernel speaks to it through a socket pair, in JSON lines with file descriptors attached, and gets an answer to
each. Per run it holds the read end of a life line: when the kernel closes its end, or is killed, the server kills the run's
ranks with their process groups, and reports how each ended. Nothing listens anywhere, and nothing is unpickled here.
"""

import contextlib
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time

from labkit import children, process_table, rank_process
from labkit.leftovers import Register

POLL_S = 1.0


class Run:
    """One run's ranks that are still to be reaped, and the pipes that belong to it."""

    def __init__(self, expected, status_fd, life_fd):
        self.expected, self.status_fd, self.life_fd = expected, status_fd, life_fd
        self.pids, self.started, self.dying = {}, 0, False


class Server:
    def __init__(self, control, directory, kernel_pid):
        self.control, self.directory, self.kernel_pid = control, directory, kernel_pid
        self.runs = {}
        self.register = Register(directory, kernel_pid)
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, None)
        self.child_r, child_w = os.pipe()
        os.set_blocking(self.child_r, False)
        os.set_blocking(child_w, False)
        self.child_w = child_w
        signal.set_wakeup_fd(child_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.close())
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        self.selector.register(self.child_r, selectors.EVENT_READ, None)
        # Makes what a rank leaves behind this server's child (Linux), so that it can be ended.
        rank_process.prctl(rank_process.PR_SET_CHILD_SUBREAPER, 1)

    def serve(self):
        """Runs until the kernel closes the control socket or is gone."""
        while os.getppid() == self.kernel_pid:
            for key, _ in self.selector.select(POLL_S):
                if key.fileobj is self.control:
                    if not self.answer():
                        return
                elif key.data is not None:
                    self.kill(key.data)
            with contextlib.suppress(BlockingIOError):
                os.read(self.child_r, 4096)
            self.reap()

    def answer(self):
        """Does what one message asks for; returns False when the kernel has gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 16)
        except ConnectionError:
            return False
        if not data:
            return False
        message = json.loads(data)
        operation = message.pop("op")
        reply = getattr(self, "on_" + operation)(descriptors, **message)
        if operation != "begin":  # a run keeps its own
            for descriptor in descriptors:
                os.close(descriptor)
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(reply).encode() + b"\n")
        return True

    def on_greet(self, descriptors):
        return {}

    def on_begin(self, descriptors, run, ranks):
        status_fd, life_fd = descriptors
        self.runs[run] = Run(ranks, status_fd, life_fd)
        self.selector.register(life_fd, selectors.EVENT_READ, run)
        return {}

    def on_rank(self, descriptors, run, rank, fork):
        if run not in self.runs or self.runs[run].dying:
            pid = None
        else:
            try:
                pid = children.start_rank(rank, descriptors, fork=fork)
            except OSError as error:
                return {"pid": None, "trouble": error.strerror}
            self.runs[run].pids[pid] = rank
            self.register.add_rank(pid)
            self.runs[run].started += 1
        return {"pid": pid}

    def on_dump(self, descriptors, run):
        """Asks every rank of the run to write where it stands; see faulthandler in rank_process."""
        for pid in self.runs[run].pids if run in self.runs else ():
            os.kill(pid, rank_process.DUMP_SIGNAL)
        return {}

    def on_kill(self, descriptors, run):
        """Ends a run's ranks. Its life line would do, but for a process that was forked from the kernel and holds it too."""
        if run in self.runs:
            self.kill(run)
        return {}

    def kill(self, run):
        record = self.runs[run]
        if not record.dying:
            record.dying = True
            self.selector.unregister(record.life_fd)
            process_table.kill_families(list(record.pids))
            for pid in record.pids:
                os.kill(pid, signal.SIGKILL)  # one that does not lead its session yet
        self.finish(run)

    def reap(self):
        """Reports every child that ended; its process group is killed first, while its id is still reserved."""
        with contextlib.suppress(ChildProcessError):
            while (ended := children.ended_child()) is not None:
                pid, status = ended
                run = next((name for name, record in self.runs.items() if pid in record.pids), None)
                if run is not None:
                    children.kill_group(pid)
                if status is None:
                    _, status = os.waitpid(pid, 0)
                if run is not None:
                    self.report(run, pid, os.waitstatus_to_exitcode(status))

    def report(self, run, pid, exit_code):
        record = self.runs[run]
        line = json.dumps({"rank": record.pids.pop(pid), "exit_code": exit_code}) + "\n"
        with contextlib.suppress(OSError):
            os.write(record.status_fd, line.encode())
        self.finish(run)

    def finish(self, run):
        record = self.runs[run]
        if record.pids or not (record.dying or record.started == record.expected):
            return
        if not record.dying:
            self.selector.unregister(record.life_fd)
        del self.runs[run]
        if not self.runs:
            children.kill_orphans()
            self.register.forget_ranks()
        os.close(record.life_fd)
        os.close(record.status_fd)

    def close(self):
        """Ends all ranks of all runs, removes the private directory and leaves."""
        deadline = time.monotonic() + 5
        while self.runs and time.monotonic() < deadline:
            for run in list(self.runs):
                self.kill(run)
            self.reap()
            time.sleep(0.005)
        children.kill_orphans()
        shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)


def main(control_fd, directory, kernel_pid):
    """Imports what ranks need, says so, and serves."""
    server = Server(socket.socket(fileno=control_fd), directory, kernel_pid)
    rank_process.preload()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):
        server.control.sendall(b'{"ready": true}\n')
    server.serve()
    server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
