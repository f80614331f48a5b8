"""Plans: what is predicted of layouts, which of them fit, and why the others do not, as values that print themselves."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from statistics import median

from labkit.layouts import Layout, Refusal
from labkit.prediction import UNVALIDATED
from labkit.runs.configuration import Configuration
from labkit.runs.estimate import Estimate
from labkit.runs.tables import markdown

FITTED_CARD = "RTX 4090"
HEAD = ("", "layout", "tokens/s", "80 % interval", "MFU", "GiB", "")


@dataclass(frozen=True, repr=False)
class Plan:
    """One layout: what is predicted of it, or why it was refused, or what it can reach at most."""

    layout: Layout
    run: Configuration | None = None
    estimate: Estimate | None = None
    refusal: Refusal | None = None
    note: str = ""

    def __repr__(self):
        if self.refusal:
            return f"{self.layout}: {self.refusal.text}"
        if not self.estimate:
            return f"{self.layout}: {self.note}"
        low, high = self.interval
        told = f"{self.tokens_per_s:,.0f} tokens/s ({low:,.0f} … {high:,.0f}), {self.estimate.peak_mem_gb:.1f} GiB a card"
        return "; ".join([f"{self.layout}: {told}", *self.estimate.warnings, *self.doubts])

    @property
    def doubts(self):
        """What of this plan no published run has confirmed, which its interval does not cover either."""
        card = self.run.machine.card.name if self.run else FITTED_CARD
        other = f"unvalidated: all runs of the fit were made on an {FITTED_CARD}, not on an {card}"
        return [UNVALIDATED] * (self.layout.tp > 1) + [other] * (card != FITTED_CARD)

    @property
    def tokens_per_s(self):
        return self.estimate.tokens_per_s

    @property
    def interval(self):
        """(low, high) tokens per second; the estimate's own interval is of the step time."""
        fast_s, slow_s = self.estimate.interval
        return self.run.tokens_per_step / slow_s, self.run.tokens_per_step / fast_s


@dataclass(frozen=True, repr=False)
class Plans:
    """All layouts of a training on so many cards.

    .ranked  those that fit and are the fastest, best first; .slower  those that fit and cannot be among them
    .failed  those that were refused, each with its .refusal; .best  the first one, or None
    """

    title: str
    ranked: tuple = ()
    slower: tuple = ()
    failed: tuple = ()

    @property
    def best(self):
        return self.ranked[0] if self.ranked else None

    def where(self, **fields):
        """The plans of all layouts with these ways, such as where(tp=8) or where(zero=3, micro_batch=1)."""
        known = Layout.__dataclass_fields__
        if unknown := [name for name in fields if name not in known]:
            raise ValueError(f"a layout has no {', '.join(unknown)}; it has {', '.join(known)}")
        every = self.ranked + self.slower + self.failed
        return [one for one in every if all(getattr(one.layout, name) == value for name, value in fields.items())]

    def reasons(self):
        """{kind of refusal: (number of layouts, the one that fails by least)}, the commonest first."""
        kinds = Counter(one.refusal.kind for one in self.failed)
        nearest = {kind: min((one for one in self.failed if one.refusal.kind == kind), key=_lack) for kind in kinds}
        return {kind: (count, nearest[kind]) for kind, count in kinds.most_common()}

    def __repr__(self):
        lines = [self.title]
        if self.ranked:
            lines.append(markdown(HEAD, map(_row, enumerate(self.ranked, 1))))
        else:
            lines.append("no layout fits")
        if self.slower:
            lines.append(f"{len(self.slower)} more fit and are slower")
        lines += [f"{count} refused for {kind}, such as {one!r}" for kind, (count, one) in self.reasons().items()]
        lines += [f"* {doubt}" for doubt in dict.fromkeys(doubt for one in self.ranked for doubt in one.doubts)]
        lines.append(judged())
        return "\n".join(lines)


@cache
def judged():
    """How far predictions of step times are from published runs that took no part in the fit, in one line."""
    from labkit.runs.judgement import stored

    runs = stored()
    rows, sources = ([abs(math.expm1(getattr(one, left))) for one in runs] for left in ("row", "page"))
    return (
        f"error of the step time on {len(runs)} published runs: median {median(rows):.1%} with the run left out of the fit, "
        f"{median(sources):.1%} with all runs of its source left out"
    )


def _lack(one):
    return one.refusal.over_bytes


def _row(numbered):
    place, one = numbered
    low, high = one.interval
    mark = "*" if one.doubts else ""
    rate, interval = f"{one.tokens_per_s:,.0f}", f"{low:,.0f} … {high:,.0f}"
    return place, one.layout, rate, interval, f"{one.estimate.mfu:.1%}", f"{one.estimate.peak_mem_gb:.1f}", mark
