"""How well the prediction holds for rows that were not fitted: leaving out one row, one source, one software at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.runs import estimate, fit, given

INSIDE = 0.85  # the share of left-out rows that an interval is made to hold for; 0.8 is promised


@dataclass(frozen=True)
class Judged:
    """Logarithms of predicted ÷ measured of one row: fitted, and with the row, its source, its software left out."""

    id: str
    source: str
    cards: int
    fitted: float
    row: float
    page: float
    software: float


def judge() -> tuple[list[str], np.ndarray, list[Judged]]:
    """Returns names and shifts of the fit of all rows, and how each row fares when it is left out; takes minutes.

    A fit with rows left out is one Gauss-Newton step from the fit of all rows; the rows left out are then replayed.
    """
    points = given.points()
    names, x, errors, slopes = fit.fit(points)
    sources = given.sources()
    groups = {
        "row": [point.id for point in points],
        "page": [sources[point.id] for point in points],
        "software": [point.run.stack.name for point in points],
    }
    left = {kind: _left_out(points, group, (names, x, errors, slopes)) for kind, group in groups.items()}
    judged = [
        Judged(point.id, sources[point.id], point.run.cards, errors[n], *(left[kind][n] for kind in groups))
        for n, point in enumerate(points)
    ]
    return names, x, judged


def _left_out(points, groups: Sequence[str], fitted):
    """Errors of each row when its group was not fitted; nothing is then known of a software that has no other rows."""
    names, x, errors, slopes = fitted
    result = np.zeros(len(points))
    for group in dict.fromkeys(groups):
        keep = np.array([one != group for one in groups], float)
        moved = x + fit.step(points, names, x, errors, slopes, keep)
        chosen = fit.constants(names, moved)
        for n in np.flatnonzero(keep == 0):
            result[n] = np.log(estimate.step_s(points[n].run, chosen) / points[n].measured_s)
    return result


def widths(judged: list[Judged]) -> dict[str, float]:
    """Returns half-widths of the interval: for one card, for several (not less), and for software that was not fitted."""

    def quantile(errors):
        return float(np.quantile(np.abs(errors), INSIDE))

    one_card = quantile([one.row for one in judged if one.cards == 1])
    return {
        "ONE_CARD": one_card,
        "SEVERAL_CARDS": max(one_card, quantile([one.row for one in judged if one.cards > 1])),
        "UNKNOWN_SOFTWARE": quantile([one.software for one in judged]),
    }
