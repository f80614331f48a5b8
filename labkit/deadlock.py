"""What ranks wait for when none of them can go on, in sentences."""

from labkit.trace_records import Collective, Copy, HostWork, Message

MOST_TOLD = 8
SAME_SIZE = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send", "recv")


class Deadlock(ValueError):
    """Ranks wait for each other for ever, or do not agree on what they do together.

    .waits  ((rank, what it waits in, ranks that it waits for), …)
    """

    def __init__(self, message, waits=()):
        super().__init__(message)
        self.waits = tuple(waits)

    def __reduce__(self):
        return type(self), (str(self), self.waits)


def payload_of(entry):
    """The bytes of a transfer's entry."""
    return entry.moved_bytes if isinstance(entry, HostWork) else entry.payload_bytes


def name_of(entry):
    """A transfer in a few words, such as "all_reduce" or "send to rank 1"."""
    if isinstance(entry, Collective):
        return entry.operation
    if isinstance(entry, Message):
        return f"{entry.operation} {'to' if entry.operation == 'send' else 'from'} rank {entry.peer}"
    return f"copy {entry.direction.replace('_', ' ')}" if isinstance(entry, Copy) else entry.name


def check_agreement(tasks):
    """Raises Deadlock where the newest of the tasks of one transfer differs from the first: operation, group or size."""
    first, last = tasks[0], tasks[-1]
    if first is last or not isinstance(first.entry, Collective | Message):
        return
    one, other = first.entry, last.entry
    if isinstance(one, Message):
        differ = one.payload_bytes != other.payload_bytes
    else:
        differ = one.operation != other.operation
        differ = differ or (one.operation in SAME_SIZE and one.payload_bytes != other.payload_bytes)
    if differ:
        waits = [(first.rank, _told(one), (last.rank,)), (last.rank, _told(other), (first.rank,))]
        raise Deadlock(f"rank {first.rank} calls {_told(one)} where rank {last.rank} calls {_told(other)}", waits)


def report(actors, joints):
    """The Deadlock of a replay in which nothing can happen any more; `joints` are the transfers that are not done."""
    ended = {actor.rank for actor in actors if actor.finished}
    waits, told = [], []
    for actor in actors:
        for task in map(_cause, actor.waits_for.values() if actor.waits_for else ()):
            missing = _missing(task)
            waits.append((actor.rank, _told(task.entry), missing))
            told.append(f"rank {actor.rank} waits in {_told(task.entry)} for {_ranks(missing, ended)}")
    for task in (task for joint in joints for task in joint.tasks):
        if task.rank in ended:
            waits.append((task.rank, _told(task.entry), _missing(task)))
            told.append(f"rank {task.rank}'s {_told(task.entry)} is never met by {_ranks(_missing(task), ended)}")
    told = list(dict.fromkeys(told))
    more = [f"and {len(told) - MOST_TOLD} more"] if len(told) > MOST_TOLD else []
    return Deadlock("deadlock: " + "; ".join(told[:MOST_TOLD] + more), dict.fromkeys(waits))


def _cause(task):
    """The task itself, or the one before it in its stream, or that it depends on, which keeps it from beginning."""
    while not task.arrives:
        if task.queue is not None and task.queue[0] is not task:
            task = task.queue[0]
        else:
            task = next(one for one in task.waits if one.done_s is None)
    return task


def _missing(task):
    here = {one.rank for one in task.joint.tasks if one.arrives}
    if isinstance(task.entry, Collective):
        return tuple(rank for rank in task.entry.group if rank not in here)
    return (task.entry.peer,)


def _ranks(ranks, ended):
    names = [f"{rank}, which has ended" if rank in ended else str(rank) for rank in ranks[:MOST_TOLD]]
    more = f" and {len(ranks) - MOST_TOLD} more" if len(ranks) > MOST_TOLD else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}{more}"


def _told(entry):
    tag = getattr(entry, "tag", 0)
    number = tag[-1] if isinstance(tag, tuple) and tag else tag  # a tag may carry the group with it
    tagged = f" with tag {number}" if number else ""
    where = f" on ranks {_listed(entry.group)}" if isinstance(entry, Collective) else ""
    return f"{name_of(entry)} ({payload_of(entry):,} bytes{where}){tagged}"


def _listed(ranks):
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))
