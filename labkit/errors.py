"""What a run can end with instead of results."""

import signal

SIGNAL_CAUSES = {
    signal.SIGKILL: "the system ended it; the usual reason is that host memory ran out",
    signal.SIGSEGV: "it touched memory that is not its own; the usual reason is a fault in compiled code",
    signal.SIGABRT: "compiled code gave up; what it said stands above",
    signal.SIGBUS: "the usual reason is that /dev/shm is full",
    signal.SIGTERM: "somebody asked it to end",
}


class RankError(RuntimeError):
    """One failure of a run, named once: which rank, what happened, and where.

    .rank       the rank at fault; None for a hang, which has no single one
    .kind       "raised", "exited", "killed" or "hang"
    .traceback  text that points at the learner's line; empty where a rank left none
    .run        what the run had recorded until then
    The message holds no process id, path, port or time, so that saved notebooks can be compared.
    """

    def __init__(self, message, *, rank, kind, traceback="", run=None):
        super().__init__(message)
        self.rank, self.kind, self.traceback, self.run = rank, kind, traceback, run
        if traceback:
            self.add_note(traceback.rstrip())  # shown below the error where it is not caught, never in str()

    def __reduce__(self):
        rebuild = {"rank": self.rank, "kind": self.kind, "traceback": self.traceback}
        return _rebuild, (str(self), rebuild)

    def _render_traceback_(self):
        """IPython's hook: the rank's own traceback instead of the launcher's frames."""
        return [*self.traceback.rstrip().splitlines(), f"RankError: {self}"]


class Stopped(KeyboardInterrupt):
    """The learner pressed Stop; all ranks are gone and the kernel's variables are as they were.

    .run holds what was recorded until then.
    """

    def __init__(self, message, *, run=None):
        super().__init__(message)
        self.run = run

    def _render_traceback_(self):
        return [str(self)]


def signal_sentence(number):
    """Returns "signal 9 (SIGKILL): <usual cause>" for a signal number."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    cause = SIGNAL_CAUSES.get(signal.Signals(number))
    return f"signal {number} ({name})" + (f": {cause}" if cause else "")


def _rebuild(message, fields):
    return RankError(message, **fields)
