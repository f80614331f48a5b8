"""What lives where: which weights, gradients, optimizer state and activations each rank really holds."""

import contextlib
from dataclasses import dataclass

from labkit import jobs
from labkit.held import Held
from labkit.launcher import run_ranks
from labkit.training import build, refuse_wrong_request, strategy_name

KINDS = ("weights", "gradients", "optimizer state", "activations")


@dataclass(frozen=True)
class Holding:
    """What one rank holds of one part of the model: `nbytes` in all, and a fingerprint of the contents."""

    rank: int
    kind: str
    name: str
    nbytes: int
    fingerprint: str


class Holdings(tuple):
    """All Holding rows of a run; prints as a table of bytes, draws itself as a picture."""

    @classmethod
    def of(cls, rows, *, title, badge):
        holdings = cls(rows)
        holdings.title, holdings.badge = title, badge
        return holdings

    def total(self, rank, kind):
        """Returns the bytes of one kind on one rank."""
        return sum(row.nbytes for row in self if row.rank == rank and row.kind == kind)

    def replicated(self, kind):
        """Returns the share of a kind's bytes whose contents are the same on every rank, 0 to 1."""
        ranks = {row.rank for row in self}
        rows = [row for row in self if row.kind == kind]
        same = {row.name for row in rows if len({r.fingerprint for r in rows if r.name == row.name}) == 1}
        whole = sum(row.nbytes for row in rows)
        everywhere = {name for name in same if {r.rank for r in rows if r.name == name} == ranks}
        return sum(row.nbytes for row in rows if row.name in everywhere) / whole if whole else 0.0

    def __repr__(self):
        ranks = sorted({row.rank for row in self})
        lines = [f"{'bytes held by':<16}" + "".join(f"{f'rank {rank}':>14}" for rank in ranks) + f"{'same on all':>14}"]
        for kind in KINDS:
            cells = "".join(f"{self.total(rank, kind):>14,}" for rank in ranks)
            lines.append(f"{kind:<16}{cells}{self.replicated(kind):>13.0%}")
        return "\n".join(lines)

    @property
    def figure(self):
        from labkit.draw_placement import draw_placement

        rows = [{"rank": r.rank, "kind": r.kind, "name": r.name, "bytes": r.nbytes, "fingerprint": r.fingerprint} for r in self]
        return draw_placement(rows, title=self.title, badge=f"measured on {self.badge}")


def holdings(strategy, *, world_size=2, job=None):
    """Runs one update of a strategy and returns the Holdings of every rank, taken from its actual tensors.

    Kinds are those of the memory account (`MemoryAccount`): weights and optimizer state as they are after the update,
    gradients just before it, activations when autograd had saved most of them for the backward pass. What is made by hand
    counts with `rank.memory(kind, name)`. The default job is `small_job()`; ranks run on CPU cores.
    """
    refuse_wrong_request(strategy, job)
    job = job or jobs.small_job()
    run = run_ranks(hold_rank, (strategy, job), {}, world_size=world_size, device="cpu", warn=False)
    rows = [Holding(rank, *row) for rank, result in enumerate(run.results) for row in result]
    return Holdings.of(rows, title=f"what lives where: {strategy_name(strategy)}", badge=run.placement.badge)


def hold_rank(rank, strategy, job):
    """What each rank does: one update under account; returns (kind, part, bytes, fingerprint) rows."""
    held = Held(job, rank.device.type)
    rank._account = held.account
    with contextlib.closing(held), held.account:
        step = build(strategy, rank, held.job)
        (batch,) = job.batches(1)
        held.account.begin_step(0)
        step(*(tensor.to(rank.device) for tensor in batch))
        held.account.end_step()
        if held.gradients is None:
            held.before_update()
        return held.weights() + held.gradients + held.state() + held.activations
