"""What lives where: which weights, gradients, optimizer state and activations each rank really holds."""

import hashlib
from dataclasses import dataclass

import torch

from labkit import jobs
from labkit.launcher import run_ranks
from labkit.observed import ObservedJob
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

    Weights are those of the models that the strategy made with job.model(), gradients what they had just before the
    update, optimizer state what job.optimizer() holds after it, activations what autograd saved for the backward pass.
    The default job is `small_job()`; ranks run on CPU cores.
    """
    refuse_wrong_request(strategy, job)
    job = job or jobs.small_job()
    run = run_ranks(hold_rank, (strategy, job), {}, world_size=world_size, device="cpu", warn=False)
    rows = [Holding(rank, *row) for rank, result in enumerate(run.results) for row in result]
    return Holdings.of(rows, title=f"what lives where: {strategy_name(strategy)}", badge=run.placement.badge)


def hold_rank(rank, strategy, job):
    """What each rank does: one update under observation; returns (kind, part, bytes, fingerprint) rows."""
    observed = ObservedJob.of(job)
    step = build(strategy, rank, observed)
    notes, saved = observed.notes, {}

    def keep(tensor):
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor.detach())
        return tensor

    (batch,) = job.batches(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(*(tensor.to(rank.device) for tensor in batch))
    parameters = {name: p for model in notes.made for name, p in model.named_parameters()}
    own = {p.untyped_storage().data_ptr() for p in parameters.values()}
    activations = {"saved for backward": [t for address, t in saved.items() if address not in own]}
    state = {}
    for optimizer in notes.optimizers:
        for name, parameter in parameters.items():
            state.setdefault(part_of(name), []).extend(
                value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor)
            )
    kinds = (_by_part(parameters), _by_part(notes.gradients[0] if notes.gradients else {}), state, activations)
    return [
        (kind, part, sum(t.numel() * t.element_size() for t in tensors), _fingerprint(tensors))
        for kind, parts in zip(KINDS, kinds, strict=True)
        for part, tensors in parts.items()
        if tensors
    ]


def part_of(name):
    """Returns the part of the model that a parameter belongs to: embed, blocks.0, …, head."""
    words = name.split(".")
    return ".".join(words[:2]) if words[0] == "blocks" else words[0]


def _by_part(tensors):
    parts = {}
    for name, tensor in tensors.items():
        parts.setdefault(part_of(name), []).append(tensor)
    return parts


def _fingerprint(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
