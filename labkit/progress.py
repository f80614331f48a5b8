"""Whether ranks get on: what tells a long computation from a hang."""

import time

from labkit import process_table

LOOK_S, FAMILY_S = 0.25, 1.0
LONELY_S = 1.0  # how long ranks may wait for one that has returned
_IDLE_SHARE, _IDLE_S = 0.02, 0.02  # the CPU time that a rank uses even when it only waits: gloo's threads poll


class Progress:
    """Watches the ranks of a run.

    Progress is a message, a print, a collective begun or ended, and CPU time that a rank outside of a collective, a
    process that it started, or a loader worker uses.
    """

    def __init__(self, listener, status, timeout_s, *, on_cuda):
        self._listener, self._status, self._on_cuda = listener, status, on_cuda
        self._look_s, self._family_s = min(LOOK_S, timeout_s / 4), min(FAMILY_S, timeout_s / 4)
        self._looked_at, self._rows = 0.0, None
        self._own, self._families, self._alone = Used(), Used(), Used()
        self._alone_since = time.monotonic()
        self.note(self._alone_since)

    def note(self, now):
        """Counts this moment as progress."""
        self._since = now
        self._own.forget()
        self._families.forget()

    def idle_s(self, now):
        """Returns for how long no rank has made progress."""
        if self._listener.heard_at > self._since:
            self.note(self._listener.heard_at)
        if now - self._looked_at >= self._look_s:
            self._looked_at = now
            if self._moved(now):
                self.note(now)
        return now - self._since

    def lonely(self, now):
        """Returns whether some ranks have returned and all the others wait in a collective, in which nothing moves."""
        states = self._listener.states
        waiting = [state for state in states if state.result is None]
        alone = len(waiting) < len(states) and all(self._status.waiting_in(state.rank) for state in waiting)
        # A GPU's host spins while it waits; gloo uses the CPU only while data arrive.
        cpu_s = {} if self._on_cuda or not alone else {state.rank: self._look_at(state) or 0.0 for state in waiting}
        if not alone or self._alone.busy(now, cpu_s):
            self._alone.forget()
            self._alone_since = now
        return min(self.idle_s(now), now - self._alone_since) >= LONELY_S

    def _moved(self, now):
        states = [state for state in self._listener.states if not state.ended]
        rows = [self._status.row(state.rank) for state in states]
        moved, self._rows = rows != self._rows, rows
        seconds = {state.rank: self._look_at(state) for state in states}
        waits = self._status.waiting_in if self._on_cuda else self._status.blocked
        active = [state for state in states if not waits(state.rank)]
        cpu_s = {state.rank: seconds[state.rank] for state in active}
        if moved or None in cpu_s.values() or self._own.busy(now, cpu_s):
            return True
        if now - self._since < self._family_s or not active:
            return False
        table = process_table.processes()
        families = {state.rank: process_table.family(state.pid, table) for state in active}
        return self._families.busy(now, {rank: sum(one.cpu_s for one in found) for rank, found in families.items()})

    def _look_at(self, state):
        found = process_table.process(state.pid)
        if found is None:
            return None
        state.memory_bytes = found.memory_bytes
        return found.cpu_s


class Used:
    """CPU seconds by name, against what they were when first seen."""

    def __init__(self):
        self.forget()

    def forget(self):
        self._first = {}

    def busy(self, now, cpu_s):
        """Returns whether one of them has grown by more than what mere waiting takes."""
        for name, seconds in cpu_s.items():
            start, before = self._first.setdefault(name, (now, seconds))
            if seconds - before > _IDLE_S + _IDLE_SHARE * (now - start):
                return True
        return False
