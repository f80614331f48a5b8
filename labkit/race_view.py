"""A race as the kernel sees it: rounds are collected, drawn, and followed by the next one or by the end."""

import time

from labkit.live import Picture, in_notebook, write
from labkit.views import View

LEAST_ROUNDS = 3
STOP = 2**62  # what the gate is opened to when no round follows


class RaceView(View):
    """Collects the rounds of a race, draws between them, and opens the gate to the next one."""

    text = "figure: speed-up against the number of ranks"

    def __init__(self, result, *, live):
        super().__init__()
        self.result, self._live = result, live

    def start(self, world_size, repeats, seconds):
        if self._live:
            self._draw_if_due()
        self.world_size, self.repeats, self._rounds = world_size, repeats, 0
        self._ends_at = None if seconds is None else time.monotonic() + max(0.0, seconds)

    def tick(self, session):
        ready = min(sum(record["rank"] == rank for record in session.records) for rank in range(self.world_size))
        if ready == self._rounds:
            return False
        self._rounds = ready
        rows = [record for record in session.records if record["step"] == ready - 1]
        self.result.add_round(self.world_size, _slowest(rows))
        late = self._ends_at is not None and time.monotonic() >= self._ends_at
        if ready >= self.repeats or (late and ready >= min(LEAST_ROUNDS, self.repeats)):
            session.status.open_gate(STOP)
        else:
            if self._live:
                self._draw_if_due()
            session.status.open_gate(ready)
        return True

    def close(self, session, failure):
        if failure is not None and self._live:
            self._draw(str(failure))

    def finish(self):
        """Draws the last frame, with what the strategies would do on cards that are not there."""
        if self._live:
            self.picture = self.picture or Picture(self.text)
            self.picture.update(lambda: self.result.figure)
            if not in_notebook():
                write("stdout", f"{self.result.table()}\n")

    def _draw_if_due(self):
        self.picture = self.picture or Picture(self.text)
        if self.picture.due(time.monotonic()):
            self._draw("")

    def _draw(self, failed):
        self.picture = self.picture or Picture(self.text)
        self.picture.update(lambda: self.result.draw(failed=failed))


def _slowest(rows):
    """Returns {contender: seconds of its slowest rank} for one round."""
    times = {}
    for row in rows:
        for name, seconds in row["times"].items():
            times[name] = max(times.get(name, 0.0), seconds)
    return times
