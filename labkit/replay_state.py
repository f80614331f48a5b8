"""What the replay knows of each rank and of its part in each transfer."""

from collections import deque


class Task:
    """One rank's part in a transfer; `ready_s` is when its rank could begin, once `missing` other tasks are done."""

    __slots__ = ("rank", "entry", "joint", "queue", "ready_s", "missing", "labels", "arrives", "done_s", "waits", "dependents")

    def __init__(self, rank, entry, queue, ready_s, labels):
        self.rank, self.entry, self.queue, self.ready_s, self.labels = rank, entry, queue, ready_s, labels
        self.joint, self.missing, self.arrives, self.done_s = None, 0, False, None
        self.waits, self.dependents = [], []  # tasks of the same rank


class Actor:
    """One rank: how far its program is, when its device and host are free, and what it waits for."""

    def __init__(self, rank, program):
        self.rank, self.steps, self.own, self.at = rank, program.steps, program.own, 0
        self.device_s = self.host_s = self.busy_s = 0.0
        self.lost_s = 0.0  # what transfers in flight may still take from kernels
        self.stops = 0  # how often the host stopped
        self.tasks, self.queues, self.waits_for, self.stops_host = {}, {}, (), False
        self.awaited = {}  # id of a transfer that is yet to come: the tasks that depend on it
        self.labels, self.marks = {}, []
        self.rows, self.transfers = [], []  # what the device did, what was in flight

    @property
    def finished(self):
        return self.at == len(self.steps) and not self.waits_for

    def queue(self, key):
        """The tasks of one stream, the first of them at work; None for a stream of its own."""
        return None if key is None else self.queues.setdefault(key, deque())
