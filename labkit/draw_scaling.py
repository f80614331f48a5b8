"""Scaling as a picture: speed-up against ranks, the ideal line, the machine's own limit, predictions and a guess."""

from dataclasses import dataclass, field
from textwrap import shorten, wrap

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import INK, SOFT, WIDTH_PX, frame, mark_failed, panel, plain, second_badge, short

LINE_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dv>"
BAND_COLOUR, LIMIT_COLOUR = "#D9E2EC", "#829AB1"
HEADER_PX, BOTTOM_PX, LEFT_PX, PLOT_PX, TEXT_PX = 64, 46, 62, 510, 596
TEXT_LINE_PX, ENTRY_GAP_PX, TEXT_LETTERS, BOLD_LETTERS = 16, 9, 39, 34
LEAST_HEIGHT_PX = 380
PREDICTED_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class ScalingLine:
    """One line of the picture; `points` and `share` map a world size to a value with .median, .low and .high.

    `share` is of the machine's own limit, between 0 and 1; `job` names what was trained; `reason` says why there is no line.
    """

    name: str
    points: dict
    share: dict = field(default_factory=dict)
    job: str = ""
    is_predicted: bool = False
    reason: str = ""


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


def draw_scaling(data, *, title="", badge="", note="", failed=None):
    """Values over world sizes with their spread as bars; beside them each line's name, job, value and share."""
    entries = _entries(data)
    texts_px = sum(len(lines) * TEXT_LINE_PX + ENTRY_GAP_PX for _, lines in entries)
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
        axes.plot(*zip(*guessed, strict=True), label="your prediction", zorder=6, **_guess_look())
    _write_entries(figure, entries, height_px)
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
    look = _line_look(line, at)
    spread = None if line.is_predicted else spread
    axes.errorbar([n + shift for n in sizes], medians, spread, capsize=3, elinewidth=1.2, label=line.name, zorder=5, **look)


def _dodge(at, data):
    span = max(data.world_sizes) - min(1, *data.world_sizes) or 1
    return (0.022 if len(data.world_sizes) == 1 else 0.012) * span * (at - (len(data.lines) - 1) / 2)


def _line_look(line, at):
    colour = LINE_COLOURS[at % len(LINE_COLOURS)]
    look = {"color": colour, "marker": MARKERS[at % len(MARKERS)], "markersize": 6, "linewidth": 1.8}
    if line.is_predicted:
        look |= {"linestyle": (0, (4, 2)), "markerfacecolor": "white"}
    return look


def _guess_look():
    return {"color": INK, "marker": "*", "markersize": 11, "linestyle": "", "markerfacecolor": "#F0E442"}


def _entries(data):
    """[(look, lines of text)] for the column beside the plot, in an order that stays the same while values come in."""
    entries = []
    if data.has_baseline:
        entries.append(({"color": SOFT, "linewidth": 1, "linestyle": (0, (1, 2))}, ["ideal"]))
    if data.limit or data.has_baseline:
        look = {"color": LIMIT_COLOUR, "linewidth": 1.2, "band": BAND_COLOUR}
        entries.append((look, ["this machine's limit", _at_largest(data, data.limit)]))
    for at, line in enumerate(data.lines):
        share = [line.share[n] for n in sorted(line.share)][-1:]
        # the place is kept, or the picture would jump when the first round is in
        of_limit = f"{100 * share[0].median:.0f} % of this machine's limit" if share else ""
        entries.append((_line_look(line, at), [line.name, _at_largest(data, line.points), of_limit]))
        entries += [_predicted_entry(data, other, at) for other in data.predicted if other.name == line.name]
    if data.guess:
        n, value = sorted(data.guess.items())[-1]
        entries.append((_guess_look(), ["your prediction", f"{plain(value)} on {_ranks(n)}"]))
    return entries + _jobs(data)


def _predicted_entry(data, line, at):
    """As many lines of text in every frame, so that the picture does not jump when the prediction arrives."""
    text = line.reason or "predicted when the race is over"
    if line.points:
        sizes = [n for n in sorted(line.points) if n > 1]
        values = ", ".join(_value(data, line.points[n].median) for n in sizes)
        text = f"predicted {values} on {', '.join(map(str, sizes))}"
    return _line_look(line, at), [line.name, text]


def _jobs(data):
    """What each line's job is: one entry where all have the same."""
    jobs = dict.fromkeys(line.job for line in _lines(data) if line.job)
    entries = []
    for job in jobs:
        names = [line.name for line in data.lines if line.job == job]
        names += ["the dashed lines"] * any(line.job == job for line in data.predicted)
        about = wrap(job, TEXT_LETTERS - 1, max_lines=3, placeholder=" …")
        entries.append(({"linestyle": ""}, [f"job of {', '.join(names) if len(jobs) > 1 else 'all lines'}", *about]))
    return entries


def _at_largest(data, points):
    if not points:
        return "waiting for rounds …"
    n = max(points)
    value = points[n]
    return f"{_value(data, value.median)} [{_value(data, value.low)} … {_value(data, value.high)}] on {_ranks(n)}"


def _value(data, value):
    return f"{value:.2f}" if data.has_baseline else short(value)


def _ranks(n):
    return "1 rank" if n == 1 else f"{n} ranks"


def _write_entries(figure, entries, height_px):
    def at(x_px, y_px):
        return x_px / WIDTH_PX, 1 - y_px / height_px

    y_px = HEADER_PX + 6
    for look, lines in entries:
        look = dict(look)
        band = look.pop("band", None)
        if band:
            size = 28 / WIDTH_PX, 12 / height_px
            figure.add_artist(Rectangle(at(TEXT_PX, y_px + 6), *size, facecolor=band, linewidth=0))
        xs, ys = zip(at(TEXT_PX, y_px), at(TEXT_PX + 28, y_px), strict=True)
        figure.add_artist(Line2D(xs, ys, **{**look, "marker": ""}))
        if look.get("marker"):
            figure.add_artist(Line2D([sum(xs) / 2], ys[:1], **look))
        for row, text in enumerate(lines):
            first = {"color": INK, "weight": "bold"} if row == 0 else {"color": SOFT}
            text = shorten(text, BOLD_LETTERS if row == 0 else TEXT_LETTERS + 1, placeholder=" …")
            x, y = at(TEXT_PX + 38, y_px + TEXT_LINE_PX * row)
            figure.text(x, y, text, va="center_baseline", fontsize=8.5, **first)
        y_px += len(lines) * TEXT_LINE_PX + ENTRY_GAP_PX
