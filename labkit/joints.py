"""Which ranks' calls belong together, the stream that each call waits in, and what moves when all have come."""

from labkit.deadlock import check_agreement, payload_of
from labkit.trace_records import Collective, Copy, HostWork, Message


class Joint:
    """One transfer: it starts when the last of the `needed` tasks has arrived."""

    __slots__ = ("key", "needed", "tasks", "arrived", "transfer", "start_s")

    def __init__(self, key, needed):
        self.key, self.needed, self.tasks, self.arrived = key, needed, [], 0
        self.transfer = self.start_s = None


class Joints:
    """The transfers of one replay that are not done, by key: `open`."""

    def __init__(self, machine):
        self.open = {}
        self._machine, self._calls, self._known = machine, {}, {}

    def join(self, task):
        """The Joint to which a task belongs, with the task in it; raises Deadlock where the ranks do not agree."""
        key, needed = self._key(task)
        joint = self.open.get(key)
        if joint is None:
            joint = self.open[key] = Joint(key, needed)
        joint.tasks.append(task)
        check_agreement(joint.tasks)
        return joint

    def done(self, joint):
        """Forgets a transfer that is over."""
        del self.open[joint.key]

    def transfer(self, tasks):
        """The links.Transfer of the tasks of one joint; the largest payload counts where ranks have uneven ones."""
        entry, rank = tasks[0].entry, tasks[0].rank
        machine, nbytes = self._machine, max(payload_of(task.entry) for task in tasks)
        if isinstance(entry, Collective):
            ask = machine.collective, entry.operation, tuple(entry.group), nbytes
        elif isinstance(entry, Message):
            ask = machine.message, *_ends(entry, rank), nbytes
        elif isinstance(entry, Copy):
            ask = machine.copy, rank, entry.direction, nbytes
        else:
            ask = machine.host_work, rank, nbytes
        key = type(entry), *ask[1:]
        if key not in self._known:
            self._known[key] = ask[0](*ask[1:])
        return self._known[key]

    def _key(self, task):
        entry, rank = task.entry, task.rank
        if isinstance(entry, Collective):
            base, needed = (Collective, tuple(sorted(entry.group)), entry.key), len(entry.group)
        elif isinstance(entry, Message):
            base, needed = (Message, *_ends(entry, rank), entry.tag), 2
        else:
            return (type(entry), rank, entry.id), 1
        number = self._calls[rank, base] = self._calls.get((rank, base), -1) + 1
        return (*base, number), needed


def stream_of(entry):
    """The stream of a device on which an entry waits its turn, or None: messages may overtake, and so may `after`."""
    if entry.after is not None or isinstance(entry, Message):
        return None
    if isinstance(entry, Collective):
        return Collective, tuple(sorted(entry.group))
    return (Copy, entry.direction) if isinstance(entry, Copy) else HostWork


def _ends(message, rank):
    return (rank, message.peer) if message.operation == "send" else (message.peer, rank)
