"""Panels of curves against the step, which can be updated: only their lines move from one frame to the next."""

import math
from statistics import median

from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import ALARM, INK, SOFT, panel, plain, rank_colour, short
from labkit.series import loss_curve, number_curves, rate_curve, running_median

WAITING = "waiting for steps …"
REFERENCE = {"color": "#E69F00", "linewidth": 1.6, "linestyle": (0, (3, 2.5))}


class StepPanel:
    """Axes whose horizontal axis is the step; `steps` in all, or as many as have been seen."""

    def __init__(self, figure, place, ylabel, steps):
        self.axes = panel(figure, *place, xlabel="step", ylabel=ylabel)
        self.axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=(1, 2, 5, 10)))
        self.axes.yaxis.set_major_locator(MaxNLocator(6 if place[3] > 100 else 3, steps=(1, 2, 2.5, 5, 10)))
        self.axes.yaxis.set_major_formatter(FuncFormatter(plain))
        self._steps = steps
        self._figure = figure

    def moving_line(self, **look):
        """An empty line that is drawn anew in each frame."""
        (line,) = self.axes.plot([], [], animated=True, **look)
        self._figure.moving.append(line)
        return line

    def moving_text(self, **look):
        """An empty text above the right end, drawn anew in each frame."""
        look = {"ha": "right", "va": "bottom", "fontsize": 8.5, "transform": self.axes.transAxes, **look}
        text = self.axes.text(1, 1.02, "", animated=True, **look)
        self._figure.moving.append(text)
        return text

    def fit(self, steps, values, *, from_zero=False):
        """Limits that hold all finite values, rounded outwards so that they seldom change while a run goes on."""
        first = min(steps, default=0)
        last = first + self._steps - 1 if self._steps else max(steps, default=first)
        margin = 0.02 * max(last - first, 1)
        right = last if self._steps else first + _outward(0, max(last - first, 1))[1]
        finite = [value for value in values if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0, 1)
        _limit(self.axes, (first - margin, right + margin), _outward(0 if from_zero else low, high))


class LossPanel(StepPanel):
    """The loss; one device's losses dashed; a mark where it is not a finite number any more."""

    def __init__(self, figure, place, steps, reference):
        super().__init__(figure, place, "loss (nats per token)", steps)
        self._losses = reference
        self.line = self.moving_line(color=INK, linewidth=1.6, zorder=3, label="loss")
        self.end = self.moving_line(color=INK, marker="o", markersize=4, linestyle="", zorder=4)
        self.reference = self.moving_line(**REFERENCE, zorder=5, label="one device")
        if reference:
            look = {"loc": "lower left", "fontsize": 8.5, "frameon": False, "labelcolor": SOFT}
            self.axes.legend(handles=[self.line, self.reference], **look)
        self.text = self.moving_text(color=INK)

    def update(self, records):
        """Show the loss of these records."""
        steps, losses = loss_curve(records)
        self.line.set_data(steps, losses)
        self.end.set_data(steps[-1:], losses[-1:])
        first = steps[0] if steps else 0
        self.reference.set_data(range(first, first + len(self._losses)), self._losses)
        self.fit(steps, [*losses, *self._losses])
        broken = next((step for step, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)), None)
        self.text.set_color(INK if broken is None else ALARM)
        if broken is not None:
            self.text.set_text(f"not finite from step {broken} on")
        elif steps:
            self.text.set_text(f"{short(losses[-1])} at step {steps[-1]}")
        else:
            self.text.set_text(WAITING)


class RatePanel(StepPanel):
    """Tokens/s of each step, faint, and their running median; the first step (warm-up) is not part of the median."""

    def __init__(self, figure, place, steps):
        super().__init__(figure, place, "tokens/s", steps)
        self.dots = self.moving_line(color=SOFT, marker="o", markersize=3, linestyle="", alpha=0.4, markeredgewidth=0)
        self.line = self.moving_line(color=INK, linewidth=1.6, zorder=3, label="running median")
        self.text = self.moving_text(color=INK)

    def update(self, records):
        """Show the speed of these records."""
        steps, rates = rate_curve(records)
        self.dots.set_data(steps, rates)
        self.line.set_data(steps[1:], running_median(rates[1:]))
        self.fit(steps, rates, from_zero=True)
        self.text.set_text(f"median {short(median(rates[1:]))}" if rates[1:] else WAITING)


class RankPanel(StepPanel):
    """One logged number, one line per rank in the rank's colour."""

    def __init__(self, figure, place, name, steps=None, *, is_lowest=True):
        super().__init__(figure, place, name, steps)
        if not is_lowest:
            self.axes.set_xlabel("")
            self.axes.tick_params(labelbottom=False)
        self._name, self.lines = name, {}

    def update(self, records):
        """Show the number in these records."""
        curves = number_curves(records, self._name)
        for rank, (steps, values) in curves.items():
            if rank not in self.lines:
                look = {"color": rank_colour(rank), "marker": ".", "markersize": 4, "linewidth": 1.3}
                self.lines[rank] = self.moving_line(label=f"rank {rank}", **look)
            self.lines[rank].set_data(steps, values)
        self.fit(*([v for curve in curves.values() for v in curve[part]] for part in (0, 1)))


def _limit(axes, x, y):
    if (axes.get_xlim(), axes.get_ylim()) != (x, y):  # setting them would have the whole figure drawn anew
        axes.set(xlim=x, ylim=y)


def _outward(low, high):
    """The limits, moved out to round numbers and 2 % beyond (zero stays where it is)."""
    spread = high - low or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(spread))
    step = step / 2 if spread < 5 * step else step
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    if top == bottom:
        bottom, top = bottom - step if bottom else 0, top + step
    margin = 0.02 * (top - bottom)
    return bottom - margin if bottom else 0.0, top + margin
