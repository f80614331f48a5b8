"""A schedule as text: a row per stage, a column per slot."""

from labkit.execution import execute
from labkit.operations import Operation

WIDTH = 100  # characters


def grid(schedule):
    """The grid of a Schedule, broken into blocks where it is wide: F forward, B backward, I and W its two halves.

    Each operation takes one slot, whatever its time; `.` is a slot in which a stage waits. `F3.1` is chunk 1. Orders
    that cannot be executed stand without waiting, one operation after the other.
    """
    rows = _slots(schedule)
    slots = max(map(len, rows))
    width = max((len(cell) for row in rows for cell in row), default=1) + 1
    labels = [f"stage {stage}" for stage in range(schedule.stages)]
    label_width = len(labels[-1]) + 2
    count = max(1, (WIDTH - label_width) // width)
    blocks = []
    for first in range(0, max(slots, 1), count):
        cells = ("".join(cell.ljust(width) for cell in row[first : first + count]) for row in rows)
        blocks.append("\n".join((label.ljust(label_width) + line).rstrip() for label, line in zip(labels, cells)))
    return "\n\n".join(blocks)


def _slots(schedule):
    done, position = execute(schedule.orders, schedule.chunks, lambda stage, operation: 1)
    named = schedule.chunks > 1
    if any(at < len(order) for at, order in zip(position, schedule.orders)):
        return [[_cell(operation, named) for operation in order] for order in schedule.orders]
    last = max((one.end_s for one in done), default=0)
    rows = [["."] * last for _ in schedule.orders]
    for one in done:
        rows[one.stage][one.start_s] = _cell(one.operation, named)
    return rows


def _cell(operation: Operation, named):
    return f"{operation.letter}{operation.micro_batch}" + (f".{operation.chunk}" if named else "")
