"""The roofline: what devices can compute, against how much is computed with each byte that memory delivers.

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model" (2009).
"""

import math
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labkit.canvas import INK, SOFT, frame, panel, plain

HEIGHT_PX, LEFT_PX, BOTTOM_PX, WIDE_PX, HEADER_PX = 430, 74, 50, 640, 66
LABEL_PX, LETTER_PX = 138, 5.6
COLOURS = ("#0072B2", "#D55E00", "#555555", "#009E73")
MARKERS = ("o", "s", "D", "^")
DASHES = (0, (4, 2))


@dataclass(frozen=True)
class Roof:
    """What a device can do: FLOP/s, bytes per second, and whether both were measured (solid) or not (dashed)."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    measured: bool = False

    def __post_init__(self):
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0):
            raise ValueError(f"{self.name}: {self.flops_per_s} FLOP/s and {self.bytes_per_s} bytes/s; both must be above 0")

    @property
    def ridge(self):
        """FLOP per byte from which arithmetic, and no longer memory, is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def reach(self, intensity):
        """FLOP/s at so many FLOP per byte, at most."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


@dataclass(frozen=True)
class Work:
    """An operation that was timed: FLOPs, bytes that memory has to deliver and take at least, seconds."""

    name: str
    flops: float
    moved_bytes: float
    seconds: float

    @property
    def intensity(self):
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self):
        return self.flops / self.seconds

    @property
    def bytes_per_s(self):
        return self.moved_bytes / self.seconds


def draw_roofline(roofs, groups, *, title="", badge="", note=""):
    """FLOP/s against FLOP per byte, both logarithmic: a line per Roof, a marker per Work of {group: [Work, …]}.

    The number at a line's bend is its ridge. ValueError where there is no roof.
    """
    if not roofs:
        raise ValueError("there is no roof to draw; give at least one Roof")
    figure = frame(HEIGHT_PX, title=title, badge=badge, note=note)
    high = HEIGHT_PX - BOTTOM_PX - HEADER_PX
    look = {"xlabel": "FLOP per byte", "ylabel": "FLOP per second"}
    axes = panel(figure, LEFT_PX, BOTTOM_PX, WIDE_PX, high, **look)
    axes.set(xscale="log", yscale="log")
    timed = [work for some in groups.values() for work in some]
    left, right = _span([work.intensity for work in timed] + [roof.ridge for roof in roofs])
    lowest = min([roof.reach(left) for roof in roofs] + [work.flops_per_s for work in timed])
    axes.set(xlim=(left, right), ylim=(lowest / 2, 4 * max(roof.flops_per_s for roof in roofs)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, numticks=12))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_tick))
    for at, roof in enumerate(roofs):
        _draw_roof(axes, roof, COLOURS[at % len(COLOURS)], left, right)
    for at, (name, works) in enumerate(groups.items()):
        _draw_works(axes, name, works, MARKERS[at % len(MARKERS)])
    if groups:
        axes.legend(loc="lower right", frameon=False, fontsize=8.5, labelcolor=SOFT, handletextpad=0.3)
    _name_roofs(axes, roofs, high)
    return figure


def _span(intensities):
    return 10 ** math.floor(math.log10(min(intensities)) - 0.2), 10 ** math.ceil(math.log10(max(intensities)) + 0.2)


def _draw_roof(axes, roof, colour, left, right):
    x = np.array([left, roof.ridge, right])
    line = "-" if roof.measured else DASHES
    axes.plot(x, [roof.reach(one) for one in x], color=colour, linestyle=line, linewidth=1.6, label="_", zorder=2)
    place = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate(f"{roof.ridge:.3g}", (roof.ridge, roof.flops_per_s), color=colour, fontsize=8.5, **place)


def _draw_works(axes, name, works, marker):
    x, y = [work.intensity for work in works], [work.flops_per_s for work in works]
    axes.plot(x, y, linestyle="", marker=marker, markersize=5.5, color=INK, label=name, zorder=3)
    place = {"xytext": (6, -3), "textcoords": "offset points", "va": "top"}
    for work in works:
        axes.annotate(work.name, (work.intensity, work.flops_per_s), color=SOFT, fontsize=8, **place)


def _name_roofs(axes, roofs, high):
    """The names at the right, in the lines' colours; those of lines too near to one another are moved apart."""
    (low, top), taken = np.log10(axes.get_ylim()), []
    order = sorted(range(len(roofs)), key=lambda at: roofs[at].flops_per_s)
    for at in order:
        up = (math.log10(roofs[at].flops_per_s) - low) / (top - low) * high
        up = max(up, *(other + 17 for other in taken)) if taken else up
        taken.append(up)
        text = shorten(roofs[at].name, int(LABEL_PX / LETTER_PX), placeholder="…")
        axes.text(1.012, up / high, text, color=COLOURS[at % len(COLOURS)], fontsize=9, va="center", transform=axes.transAxes)


def _tick(value, _=None):
    """0.1, 10, 10 k, 1 G, 100 T."""
    return f"{value / 1e12:g} T" if value >= 1e12 else plain(value)
