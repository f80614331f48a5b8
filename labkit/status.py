"""A page of memory shared by the kernel and its ranks: who waits in which collective.

Each rank writes only its own row, the kernel only the gate; every cell is one aligned 8-byte store, so no
lock is needed. Reading it costs the ranks nothing, unlike messages.
"""

import mmap
import os

OPERATIONS = "all_reduce broadcast reduce all_gather gather scatter reduce_scatter all_to_all send recv barrier wait".split()
BEGUN, ENDED, WAITING, OUTSTANDING = range(4)
_ROW = 8
_GATE = 0


class Status:
    """The shared page for `world_size` ranks, backed by the file at `path`."""

    def __init__(self, path, world_size, *, create=False):
        self.world_size = world_size
        size = 8 * _ROW * (world_size + 1)
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._cells = memoryview(self._memory).cast("Q")

    def row(self, rank):
        """Returns the four cells of a rank: begun, ended, waiting (0 or operation + 1), outstanding."""
        first = _ROW * (rank + 1)
        return tuple(self._cells[first : first + 4])

    def set(self, rank, cell, value):
        self._cells[_ROW * (rank + 1) + cell] = value

    def add(self, rank, cell, amount=1):
        self._cells[_ROW * (rank + 1) + cell] += amount

    def blocked(self, rank):
        """Returns whether the rank itself waits in a collective; it may compute while one is only outstanding."""
        return bool(self.row(rank)[WAITING])

    def waiting_in(self, rank):
        """Returns the operation that the rank waits in or that is outstanding, or None."""
        row = self.row(rank)
        code = row[WAITING] or row[OUTSTANDING]
        return OPERATIONS[code - 1] if code else None

    @property
    def gate(self):
        """How many rounds the kernel has let through: ranks wait for it while the kernel draws."""
        return self._cells[_GATE]

    def open_gate(self, rounds):
        self._cells[_GATE] = rounds

    def close(self):
        self._cells.release()
        self._memory.close()
