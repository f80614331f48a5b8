"""parity: is a strategy's result that of one device, and if not, why?"""

import functools
import math
from dataclasses import dataclass, field

import torch

from labkit import jobs
from labkit.diagnosis import diagnose
from labkit.launcher import run_ranks
from labkit.observed import ObservedJob
from labkit.training import build, one_device, refuse_wrong_request, strategy_name

KEPT_PARAMETERS = 1_000_000
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Parity:
    """How a strategy compares with one device; true when they are the same.

    .losses     the strategy's loss of each update
    .reference  one device's
    .max_error  the largest absolute difference, over losses of all ranks and final parameters
    .tolerance  how much of it counts as rounding
    .diagnosis  one line: the same, or where it departs and what that usually means
    """

    name: str
    world_size: int
    losses: tuple[float, ...]
    reference: tuple[float, ...]
    max_error: float
    tolerance: float
    diagnosis: str
    same: bool = field(default=False)

    def __bool__(self):
        return self.same

    def __repr__(self):
        ranks = f"{self.name} on {self.world_size} rank{'s' * (self.world_size > 1)}"
        if self.same:
            return f"{ranks}: same as one device after {len(self.losses)} updates (differences below {self.tolerance:g})"
        return f"{ranks}: NOT the same as one device. {self.diagnosis}"


def parity(strategy, *, world_size=2, steps=3, job=None, timeout=60):
    """Runs `steps` updates with the strategy and on one device, and compares.

    Compared are every loss that is not None, on every rank, and the final parameters where a rank holds the whole model
    made by job.model(); in bfloat16 only losses, since Adam turns the rounding of small gradients into large updates.
    Raises ValueError when no rank ever returns a loss. The default job is `small_job()`, on CPU ranks;
    `timeout` as in `launch`.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 3:
        raise ValueError(f"steps={steps!r}: use at least 3, since a wrong update shows in the loss only after it")
    refuse_wrong_request(strategy, job)
    job = job or jobs.small_job()
    ours = _follow(strategy, world_size, steps, job, timeout)
    if all(loss is None for report in ours for loss in report["losses"]):
        raise ValueError(f"{strategy_name(strategy)} returned no loss on any rank; at least one rank must return it from step")
    reference = _reference(steps, job, timeout) if job.parameters <= KEPT_PARAMETERS else _one_device(steps, job, timeout)
    tolerance = TOLERANCE[job.dtype]
    if job.dtype == torch.bfloat16:
        ours = [report | {"gradients": [], "final": None} for report in ours]
    max_error = _max_error(ours, reference)
    cause = diagnose(ours, reference, tolerance)
    return Parity(
        name=strategy_name(strategy),
        world_size=world_size,
        losses=_losses(ours, steps),
        reference=tuple(reference["losses"]),
        max_error=max_error,
        tolerance=tolerance,
        diagnosis=cause or "same as one device",
        same=cause is None and max_error <= tolerance,
    )


def follow_rank(rank, strategy, job, steps):
    """What each rank of `parity` does: trains, and returns what an observer saw."""
    observed = ObservedJob.of(job)
    step = build(strategy, rank, observed)
    losses = []
    for tokens, targets in job.batches(steps):
        loss = step(tokens.to(rank.device), targets.to(rank.device))
        losses.append(None if loss is None else float(loss))
    notes = observed.notes
    return {"losses": losses, "initial": notes.initial, "gradients": notes.gradients, "final": notes.final()}


def _follow(strategy, world_size, steps, job, timeout):
    run = run_ranks(follow_rank, (strategy, job, steps), {}, world_size=world_size, device="cpu", timeout=timeout, warn=False)
    return run.results


def _one_device(steps, job, timeout):
    return _follow(one_device, 1, steps, job, timeout)[0]


_reference = functools.lru_cache(maxsize=4)(_one_device)  # a lesson compares many strategies with the same one


def _losses(reports, steps):
    """Returns the loss of each step as the lowest rank that knows it says."""
    known = [[report["losses"][step] for report in reports if report["losses"][step] is not None] for step in range(steps)]
    return tuple(losses[0] if losses else math.nan for losses in known)


def _max_error(reports, reference):
    errors = [0.0]
    for report in reports:
        errors += [abs(a - b) for a, b in zip(report["losses"], reference["losses"], strict=True) if a is not None]
        for name, value in (report["final"] or {}).items():
            errors.append(float((value - reference["final"][name]).abs().max()))
    return math.inf if any(math.isnan(error) for error in errors) else max(errors)
