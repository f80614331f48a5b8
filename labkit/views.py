"""Live views of a run: what is drawn, or printed in a terminal, while the kernel pumps its ranks' messages."""

import time

from labkit.live import Picture, in_notebook


class View:
    """One picture that follows a session; subclasses say what is drawn.

    `tick` draws when a new frame is due, `close` draws the final one, marked when the run failed. The first frame is
    drawn before there is anything in it, so that what ranks print comes below the picture and doesn't push it down.
    """

    text = "figure"

    def __init__(self):
        self.picture, self._seen = None, None

    def figure(self, session, failed=None):
        raise LookupError("a View draws through its subclasses")

    def tick(self, session):
        """Draws if a frame is due; returns whether ranks may have waited for it."""
        if not in_notebook() or len(session.records) == self._seen:
            return False
        if self.picture is None:
            self.picture = Picture(self.text)
        if not self.picture.due(time.monotonic(), busy=busy(session)):
            return False
        self._seen = len(session.records)
        self.picture.update(lambda: self.figure(session))
        return True

    def close(self, session, failure):
        """Leaves the last picture in the notebook, with the failure written on it if there was one."""
        if in_notebook() and (session.records or self.picture):
            self.picture = self.picture or Picture(self.text)
            failed = None if failure is None else str(failure)
            self.picture.update(lambda: self.figure(session, failed))


def busy(session):
    """Whether the ranks use all of the cores that this kernel could draw on."""
    import os

    used = {core for cores in session.plan["cores"] for core in cores}
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    return len(allowed) <= len(used)


class RecordsView(View):
    """Every number that ranks log, one panel a name; for `launch`. Nothing is drawn before there is one."""

    text = "figure: what the ranks logged"

    def __init__(self):
        super().__init__()
        self._seen = 0

    def figure(self, session, failed=None):
        from labkit.draw import draw_records

        return draw_records(tuple(session.records), failed=failed)
