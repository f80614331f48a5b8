"""The free constants, fitted to published runs: damped Gauss-Newton on the logarithm of the step time, with priors.

Each constant starts at a judged value and is held to it by a prior as wide as one is unsure of it, so that few rows of one
source cannot pull it to where another source, which was left out, would be predicted badly.
"""

from dataclasses import dataclass, replace

import numpy as np

from labkit.runs import estimate
from labkit.runs.constants import JUDGED, STACK_WIDTH, Constants

STEP, DAMPING, TOLERANCE, HUBER = 0.02, 1e-3, 2e-4, 2.0
TRANSFERS = ("overhead_s", "overlap_cost", "copy", "staged", "staging", "processor", "network")
USUAL, NOISY = 0.04, 0.06  # what a row's own measurement is uncertain by: clocks, power, hosts; a row may say more


@dataclass(frozen=True)
class Point:
    """One row to fit: its configuration, the measured seconds of a step, and how uncertain these are."""

    id: str
    run: object
    measured_s: float
    width: float = USUAL


def names(points) -> list[str]:
    """Returns the constants that these rows can say something of; a software's factor is "stack: …"."""
    stacks = dict.fromkeys(f"stack: {point.run.stack.name}" for point in points)
    return [name for name in (*JUDGED, *stacks) if any(relevant(name, point.run) for point in points)]


def relevant(name: str, run) -> bool:
    """Returns whether a constant can change this run's step time at all."""
    if name.startswith("stack: "):
        return name == f"stack: {run.stack.name}"
    spread, moved = run.cards > 1, bool(run.offload)
    known = {
        "float8": run.dtype == "float8",
        "narrow": run.model.width < 128,
        "copy": moved,
        "staged": spread,
        "network": run.machine.servers > 1,
    }
    known |= {"processor": moved and not run.stack.direct, "overlap_cost": spread, "staging": spread, "spread": spread}
    return known.get(name, True)


def constants(wanted, x) -> Constants:
    """Returns the constants whose logarithms lie x away from their priors."""
    values = {name: JUDGED[name][0] * float(np.exp(shift)) for name, shift in zip(wanted, x) if name in JUDGED}
    stacks = {name[7:]: float(np.exp(shift)) for name, shift in zip(wanted, x) if name not in JUDGED}
    return replace(Constants(), **values, stacks=stacks)


def widths(wanted) -> np.ndarray:
    return np.array([JUDGED[name][1] if name in JUDGED else STACK_WIDTH for name in wanted])


def errors(points, wanted, x) -> np.ndarray:
    """Returns log(predicted ÷ measured) of each row."""
    chosen = constants(wanted, x)
    return np.array([np.log(estimate.step_s(point.run, chosen) / point.measured_s) for point in points])


def jacobian(points, wanted, x, base) -> np.ndarray:
    """Returns the errors' derivatives, [rows, constants], by differences; those that cannot matter are 0.

    Only for constants of transfers is the whole step replayed; the others change the kernels, and the step by as much.
    """
    chosen = constants(wanted, x)
    plain = np.array([estimate.kernels_s(point.run, chosen) for point in points])
    step_s = np.exp(base) * np.array([point.measured_s for point in points])
    slopes = np.zeros((len(points), len(wanted)))
    for column, name in enumerate(wanted):
        rows = [n for n, point in enumerate(points) if relevant(name, point.run)]
        shifted = x + STEP * (np.arange(len(x)) == column)
        if name in TRANSFERS:
            slopes[rows, column] = (errors([points[n] for n in rows], wanted, shifted) - base[rows]) / STEP
            continue
        other = constants(wanted, shifted)
        more = np.array([estimate.kernels_s(points[n].run, other) for n in rows]) - plain[rows]
        slopes[rows, column] = np.log1p(more / step_s[rows]) / STEP
    return slopes


def fit(points, *, start=None, rounds=8) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Returns names, shifts x, errors and Jacobian at the fit."""
    wanted = names(points)
    x = np.zeros(len(wanted)) if start is None else np.asarray(start, float)
    base = errors(points, wanted, x)
    slopes = jacobian(points, wanted, x, base)
    for _ in range(rounds):
        shift = step(points, wanted, x, base, slopes)
        for share in (1.0, 0.5, 0.25):
            tried = errors(points, wanted, x + share * shift)
            if loss(points, wanted, x + share * shift, tried) < loss(points, wanted, x, base):
                break
        else:
            break
        change = loss(points, wanted, x, base) - loss(points, wanted, x + share * shift, tried)
        x, base = x + share * shift, tried
        if change < TOLERANCE * len(points):
            break
        slopes = jacobian(points, wanted, x, base)
    return wanted, x, base, slopes


def step(points, wanted, x, base, slopes, keep=None) -> np.ndarray:
    """Returns the Gauss-Newton step of the rows `keep` (all by default), far-off rows weighing less (Huber's weights)."""
    scaled = base / np.array([point.width for point in points])
    weights = np.minimum(1.0, HUBER / np.maximum(np.abs(scaled), 1e-9)) / np.array([point.width for point in points]) ** 2
    weights = weights * (np.ones(len(points)) if keep is None else keep)
    prior = 1 / widths(wanted) ** 2
    normal = slopes.T @ (weights[:, None] * slopes) + np.diag(prior) * (1 + DAMPING)
    return -np.linalg.solve(normal, slopes.T @ (weights * base) + prior * x)


def loss(points, wanted, x, base) -> float:
    """Returns Huber's loss of the scaled errors, and the priors' squares."""
    scaled = np.abs(base / np.array([point.width for point in points]))
    rows = np.where(scaled < HUBER, scaled**2 / 2, HUBER * (scaled - HUBER / 2))
    return float(rows.sum() + ((x / widths(wanted)) ** 2).sum() / 2)
