"""Scaling as a picture: speed-up against ranks, the ideal line, the machine's own limit, predictions and a guess."""

from dataclasses import dataclass, field

from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import SOFT, frame, mark_failed, panel, plain, second_badge
from labkit.scaling_key import BAND_COLOUR, LIMIT_COLOUR, TOP_PX, entries, guess_look, height_of, line_look, write_entries

HEADER_PX, BOTTOM_PX, LEFT_PX, PLOT_PX = TOP_PX, 46, 62, 510
LEAST_HEIGHT_PX = 380
PREDICTED_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class ScalingLine:
    """One line of the picture; `points` and `share` map a world size to a value with .median, .low and .high.

    `share` is of the machine's own limit, between 0 and 1; `job` names what was trained; `reason` says why there is no line.
    An unvalidated prediction is one of whose kind there is no public measurement.
    """

    name: str
    points: dict
    share: dict = field(default_factory=dict)
    job: str = ""
    is_predicted: bool = False
    reason: str = ""
    is_unvalidated: bool = False


@dataclass(frozen=True)
class ScalingData:
    """What draw_scaling draws; any part may still be empty while the race runs.

    `limit` maps world sizes to values as in ScalingLine; `guess` maps them to the learner's numbers. Without a baseline
    the values are tokens/s and `has_baseline` is False: no ideal line then. `predicted` are lines for other devices,
    each in the colour of the measured line of the same name, under a badge of their own.
    """

    world_sizes: tuple
    lines: tuple
    limit: dict = field(default_factory=dict)
    guess: dict = field(default_factory=dict)
    has_baseline: bool = True
    ylabel: str = ""
    predicted: tuple = ()
    predicted_badge: str = ""
    predicted_error: str = ""


def draw_scaling(data, *, title="", badge="", note="", failed=None):
    """Values over world sizes with their spread as bars; beside them each line's name, job, value and share."""
    column = entries(data)
    texts_px = height_of(column)
    height_px = max(LEAST_HEIGHT_PX, HEADER_PX + texts_px + 10)
    figure = frame(height_px, title=title, badge=badge, note=note, alarm=failed or "")
    if data.predicted_badge:
        second_badge(figure, data.predicted_badge)
    ylabel = data.ylabel or ("speed-up over one device" if data.has_baseline else "tokens/s")
    place = (LEFT_PX, BOTTOM_PX, PLOT_PX, height_px - HEADER_PX - BOTTOM_PX)
    axes = panel(figure, *place, xlabel="ranks", ylabel=ylabel)
    _fit(axes, data)
    if failed:
        mark_failed(axes)
    if data.has_baseline:
        top = _sizes(data)[-1]
        axes.plot([1, top], [1, top], color=SOFT, linewidth=1, linestyle=(0, (1, 2)), label="ideal", zorder=2)
    _draw_limit(axes, data)
    for at, line in enumerate(data.lines):
        _draw_line(axes, line, at, _dodge(at, data))
    for line in data.predicted:
        _draw_line(axes, line, _place(data, line), 0.0)
    guessed = sorted(data.guess.items())
    if guessed:
        axes.plot(*zip(*guessed, strict=True), label="your prediction", zorder=6, **guess_look())
    write_entries(figure, column, height_px)
    return figure


def _fit(axes, data):
    sizes = _sizes(data)
    margin = 0.09 * ((sizes[-1] - sizes[0]) or 1)
    highs = [value.high for points in (data.limit, *(line.points for line in _lines(data))) for value in points.values()]
    highs += [*data.guess.values(), max(data.world_sizes) if data.has_baseline else 0]
    axes.set(xlim=(sizes[0] - margin, sizes[-1] + margin), ylim=(0, 1.06 * max(highs) or 1))
    axes.set_xticks(sizes)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(plain))


def _lines(data):
    return *data.lines, *data.predicted


def _sizes(data):
    """The numbers of ranks on the axis, ascending; those of predictions have their place from the first frame on."""
    sizes = {*data.world_sizes, *([1] if data.has_baseline else [])}
    predicted = {n for line in data.predicted for n in line.points}
    is_coming = data.predicted and not predicted and not any(line.reason for line in data.predicted)
    return sorted(sizes | predicted | set(PREDICTED_SIZES if is_coming else ()))


def _place(data, line):
    """The position that gives a predicted line its colour: that of the measured line of its name."""
    names = [one.name for one in data.lines]
    return names.index(line.name) if line.name in names else len(names)


def _draw_limit(axes, data):
    sizes = sorted(data.limit)
    if not sizes:
        return
    low, median, high = ([getattr(data.limit[n], part) for n in sizes] for part in ("low", "median", "high"))
    if data.has_baseline and sizes[0] > 1:
        sizes, low, median, high = [1, *sizes], [1, *low], [1, *median], [1, *high]
    axes.fill_between(sizes, low, high, color=BAND_COLOUR, linewidth=0, zorder=1)
    axes.plot(sizes, median, color=LIMIT_COLOUR, linewidth=1.2, zorder=2, label="this machine's limit")


def _draw_line(axes, line, at, shift):
    sizes = sorted(line.points)
    values = [line.points[n] for n in sizes]
    medians = [value.median for value in values]
    spread = [[v.median - v.low for v in values], [v.high - v.median for v in values]]
    look = line_look(line, at)
    spread = None if line.is_predicted else spread
    axes.errorbar([n + shift for n in sizes], medians, spread, capsize=3, elinewidth=1.2, label=line.name, zorder=5, **look)


def _dodge(at, data):
    span = max(data.world_sizes) - min(1, *data.world_sizes) or 1
    return (0.022 if len(data.world_sizes) == 1 else 0.012) * span * (at - (len(data.lines) - 1) / 2)
