"""Pictures of what messages cost: measured times with the fitted line and its residuals, and times against predictions."""

import statistics

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labkit.canvas import INK, PX_PER_INCH, SOFT, WIDTH_PX, frame, key, panel
from labkit.cost_fit import medians
from labkit.scaling_key import LINE_COLOURS, MARKERS

HEADER_PX, PLOT_PX, BOTTOM_PX, LINE_PX = 56, 270, 50, 19
LEFT_PX, TIME_PX, BETWEEN_PX, RESIDUAL_PX = 84, 420, 72, 306
MOST_RESIDUAL = 100  # per cent; what is further out stands at the edge
BAR_PX, BAR_ROW_PX, BAR_LEFT_PX = 15, 52, 176


def draw_cost(samples, costs, *, title="", badge="", note=""):
    """Seconds against bytes, both logarithmic, and how far the medians lie from the fit, in per cent.

    samples  {call: {bytes: [seconds, …]}}; bars span the 10th to the 90th percentile
    costs    {call: Cost}, drawn dashed; a call without one is drawn without a line
    """
    text_px = LINE_PX * len(samples) + 14
    figure = frame(HEADER_PX + PLOT_PX + BOTTOM_PX + text_px, title=title, badge=badge, note=note)
    bottom = BOTTOM_PX + text_px
    times = panel(figure, LEFT_PX, bottom, TIME_PX, PLOT_PX, xlabel="tensor size", ylabel="time of one call")
    place = (LEFT_PX + TIME_PX + BETWEEN_PX, bottom, RESIDUAL_PX, PLOT_PX)
    residuals = panel(figure, *place, xlabel="tensor size", ylabel="measured ÷ fit − 1 (%)")
    sizes = sorted({nbytes for one in samples.values() for nbytes in one})
    for axes in (times, residuals):
        axes.set_xscale("log", base=4)
        axes.set_xticks(sizes, [_size(nbytes) for nbytes in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
    times.set_yscale("log")
    times.yaxis.set_major_locator(LogLocator(10, numticks=12))
    times.yaxis.set_major_formatter(FuncFormatter(_time))
    residuals.set_ylim(-MOST_RESIDUAL, MOST_RESIDUAL)
    residuals.axhline(0, color=SOFT, linewidth=1)
    for at, (call, its_samples) in enumerate(samples.items()):
        shift = 1.045 ** (at - (len(samples) - 1) / 2)
        _draw_call(times, residuals, its_samples, costs.get(call), at, shift, call)
        _write_call(figure, text_px - 12 - LINE_PX * at, at, call, its_samples, costs.get(call))
    return figure


def _draw_call(times, residuals, samples, cost, at, shift, call):
    look = _look(at)
    middle = medians(samples)
    sizes, values = np.array(list(middle), dtype=float), np.array(list(middle.values()))
    low, high = (np.array([np.percentile(samples[nbytes], share) for nbytes in middle]) for share in (10, 90))
    spread = [values - low, high - values]
    times.errorbar(sizes * shift, values, spread, elinewidth=1, linestyle="", label=call, zorder=4, **look)
    if cost is not None:
        line = np.geomspace(sizes[0], sizes[-1], 60)
        times.plot(line, [cost.seconds(one) for one in line], color=look["color"], linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
        per_cent = np.clip([100 * one for one in cost.residuals(samples).values()], -MOST_RESIDUAL, MOST_RESIDUAL)
        residuals.plot(sizes * shift, per_cent, linewidth=0.8, label=call, zorder=4, **look)


def _look(at):
    return {"color": LINE_COLOURS[at % len(LINE_COLOURS)], "marker": MARKERS[at % len(MARKERS)], "markersize": 5}


def _write_call(figure, up_px, at, call, samples, cost):
    high = figure.get_figheight() * PX_PER_INCH
    y = up_px / high
    figure.add_artist(Line2D([(LEFT_PX + 8) / WIDTH_PX], [y], linestyle="", **_look(at)))
    figure.text((LEFT_PX + 24) / WIDTH_PX, y, call, color=INK, weight="bold", fontsize=9, va="center_baseline")
    text = "not fitted yet"
    if cost is not None:
        worst = max(cost.residuals(samples).values(), key=abs)
        text = f"{cost}, a median is off by up to {100 * abs(worst):.0f} %"
    figure.text((LEFT_PX + 190) / WIDTH_PX, y, text, color=SOFT, fontsize=9, va="center_baseline")


def draw_times(rows, *, title="", badge="", note=""):
    """Bars of measured seconds with, above each, the predicted ones (dashed outline).

    rows  [(name, predicted seconds or None, [measured seconds, …])]; the bar is the median, its line the 10th to the 90th
          percentile
    """
    height_px = HEADER_PX + BAR_ROW_PX * len(rows) + BOTTOM_PX
    figure = frame(height_px, title=title, badge=badge, note=note)
    width = WIDTH_PX - BAR_LEFT_PX - 120
    axes = panel(figure, BAR_LEFT_PX, BOTTOM_PX, width, BAR_ROW_PX * len(rows), xlabel="time", grid="x")
    axes.set(ylim=(BAR_ROW_PX * len(rows), 0))
    axes.xaxis.set_major_formatter(FuncFormatter(_time))
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    axes.set_yticks([BAR_ROW_PX * (at + 0.5) for at in range(len(rows))], [name for name, _, _ in rows])
    for at, (_, predicted_s, measured) in enumerate(rows):
        colour, top = LINE_COLOURS[at % len(LINE_COLOURS)], BAR_ROW_PX * at + 9
        if predicted_s is not None:
            look = {"facecolor": "white", "edgecolor": colour, "linestyle": (0, (3, 2)), "linewidth": 1.2}
            axes.barh(top + BAR_PX / 2, predicted_s, BAR_PX, label="predicted", **look)
            _name_bar(axes, predicted_s, top + BAR_PX / 2)
        middle = statistics.median(measured)
        low, high = np.percentile(measured, (10, 90))
        y = top + 1.5 * BAR_PX + 3
        axes.barh(y, middle, BAR_PX, color=colour, label="measured")
        axes.plot([low, high], [y, y], color=INK, linewidth=1.2)
        _name_bar(axes, max(middle, high), y, f"{_time(middle)}")
    axes.set_xlim(0, None)
    outline = {"facecolor": "white", "edgecolor": SOFT, "linestyle": "--"}
    key(figure, [Patch(label="predicted", **outline), Patch(label="measured", color=SOFT)])
    return figure


def _name_bar(axes, seconds, y, text=None):
    place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center_baseline"}
    axes.annotate(text or _time(seconds), (seconds, y), color=SOFT, fontsize=8.5, annotation_clip=False, **place)


def _size(nbytes):
    """4 kB, 1 MB: binary multiples, as tensors have them."""
    for unit, size in (("MB", 2**20), ("kB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:g} {unit}"
    return f"{nbytes:g} B"


def _time(seconds, _=None):
    """100 µs, 1.25 ms, 2 s."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:g}"
