"""What the ranks of a run held: per rank the bytes of each kind at the fullest moment, as a table and as a picture."""

import resource
import sys
from dataclasses import dataclass, field

from labkit.storages import KINDS


@dataclass(frozen=True)
class RankMemory:
    """What one rank held in the account's run, in bytes.

    .peak_bytes .by_kind .when   the fullest moment of the steps: in all, {kind: bytes}, and such as "backward, step 1"
    .before_update .after_step   {kind: bytes} before the last step's first update (None if there was none), and at its end
    .process_peak_bytes          the most by another count: the CUDA allocator's, or the resident set of the whole process
    Without an account, as after a plain `launch`, there is only the last one, and `by_kind` is empty.
    """

    rank: int
    process_peak_bytes: int
    peak_bytes: int
    by_kind: dict = field(default_factory=dict, hash=False)
    when: str = ""
    before_update: dict | None = field(default=None, hash=False)
    after_step: dict = field(default_factory=dict, hash=False)
    on_cuda: bool = False


class Memory(tuple):
    """One RankMemory per rank; prints as a table, draws itself as a picture."""

    @classmethod
    def of(cls, rows, *, name="", badge=""):
        memory = cls(rows)
        memory.name, memory.badge = name, badge
        return memory

    def __repr__(self):
        lines = [f"{'bytes at the peak':<18}" + _cells(f"rank {one.rank}" for one in self)]
        lines += [f"{kind:<18}" + _cells(f"{one.by_kind[kind]:,}" for one in self) for kind in KINDS if self._has_account]
        lines += [f"{'sum':<18}" + _cells(f"{one.peak_bytes:,}" for one in self)] if self._has_account else []
        lines += [f"{'when':<18}" + _cells(one.when for one in self)] if self._has_account else []
        if not self._has_account or any(one.on_cuda for one in self):
            whose = "allocator" if any(one.on_cuda for one in self) else "process"
            lines.append(f"{whose:<18}" + _cells(f"{one.process_peak_bytes:,}" for one in self))
        return "\n".join(lines)

    @property
    def figure(self):
        return self.draw()

    def draw(self, *, limit_bytes=None, title=""):
        """Each rank's peak as a bar of its kinds; `limit_bytes` draws the memory of a card beside them."""
        return draw_memories({self.name: self}, limit_bytes=limit_bytes, title=title)

    @property
    def _has_account(self):
        return all(one.by_kind for one in self)


def draw_memories(memories, *, limit_bytes=None, title=""):
    """The peaks of several runs beside one another, from {name: Memory}; ValueError where one has no account."""
    from labkit.canvas import short
    from labkit.draw_memory import draw_memory

    groups = {name: [one.by_kind for one in memory] for name, memory in memories.items()}
    if lacking := [name for name, kinds in groups.items() if not all(kinds)]:
        raise ValueError(f"{lacking[0] or 'the run'} has no account by kind: only runs of labkit.train have one")
    largest = max(memories.values(), key=len, default=None)
    badge = f"measured on {largest.badge}" if largest else ""
    peaks = [f"{short(one.process_peak_bytes)}B" for memory in memories.values() for one in memory if one.on_cuda]
    note = f"by the CUDA allocator: {', '.join(peaks)}" if peaks else ""
    return draw_memory(groups, limit_bytes=limit_bytes, title=title or "peak memory by kind", badge=badge, note=note)


def peak_bytes(device):
    """Returns the most memory that this rank held: the allocator's peak on CUDA, the process's resident set on CPU.

    On CPU it includes what is shared with the other ranks, such as torch's own code.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _cells(texts):
    return "".join(f"{text:>20}" for text in texts)
