"""The column beside the picture of a race: each line's name, value and job."""

from textwrap import shorten, wrap

from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from labkit.canvas import INK, SOFT, WIDTH_PX, plain, short

LINE_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dv>"
BAND_COLOUR, LIMIT_COLOUR = "#D9E2EC", "#829AB1"
TOP_PX, TEXT_PX = 64, 596
TEXT_LINE_PX, ENTRY_GAP_PX, TEXT_LETTERS, BOLD_LETTERS = 16, 9, 39, 34


def height_of(column):
    """The pixels that the entries need."""
    return sum(len(lines) * TEXT_LINE_PX + ENTRY_GAP_PX for _, lines in column)


def line_look(line, at):
    """How the line at this place looks, in the plot and in the column: a predicted one is dashed."""
    colour = LINE_COLOURS[at % len(LINE_COLOURS)]
    look = {"color": colour, "marker": MARKERS[at % len(MARKERS)], "markersize": 6, "linewidth": 1.8}
    if line.is_predicted:
        look |= {"linestyle": (0, (4, 2)), "markerfacecolor": "white"}
    return look


def guess_look():
    """How the learner's own prediction looks."""
    return {"color": INK, "marker": "*", "markersize": 11, "linestyle": "", "markerfacecolor": "#F0E442"}


def entries(data):
    """[(look, lines of text)] for the column beside the plot, in an order that stays the same while values come in."""
    found = []
    if data.has_baseline:
        found.append(({"color": SOFT, "linewidth": 1, "linestyle": (0, (1, 2))}, ["ideal"]))
    if data.limit or data.has_baseline:
        look = {"color": LIMIT_COLOUR, "linewidth": 1.2, "band": BAND_COLOUR}
        found.append((look, ["this machine's limit", _at_largest(data, data.limit)]))
    for at, line in enumerate(data.lines):
        share = [line.share[n] for n in sorted(line.share)][-1:]
        # the place is kept, or the picture would jump when the first round is in
        of_limit = f"{100 * share[0].median:.0f} % of this machine's limit" if share else ""
        found.append((line_look(line, at), [line.name, _at_largest(data, line.points), of_limit]))
        found += [_predicted_entry(data, other, at) for other in data.predicted if other.name == line.name]
    if data.guess:
        n, value = sorted(data.guess.items())[-1]
        found.append((guess_look(), ["your prediction", f"{plain(value)} on {_ranks(n)}"]))
    found += _jobs(data)
    if data.predicted_error:
        found.append(({"linestyle": ""}, ["dashed lines are predictions", *wrap(data.predicted_error, TEXT_LETTERS - 1)]))
    return found


def _predicted_entry(data, line, at):
    """As many lines of text in every frame, so that the picture does not jump when the prediction arrives."""
    text = line.reason or "predicted when the race is over"
    if line.points:
        sizes = [n for n in sorted(line.points) if n > 1]
        values = ", ".join(_value(data, line.points[n].median) for n in sizes)
        text = f"{'unvalidated:' if line.is_unvalidated else 'predicted'} {values} on {', '.join(map(str, sizes))}"
    return line_look(line, at), [line.name, text]


def _jobs(data):
    """What each line's job is: one entry where all have the same."""
    jobs = dict.fromkeys(line.job for line in (*data.lines, *data.predicted) if line.job)
    found = []
    for job in jobs:
        names = [line.name for line in data.lines if line.job == job]
        names += ["the dashed lines"] * any(line.job == job for line in data.predicted)
        about = wrap(job, TEXT_LETTERS - 1, max_lines=3, placeholder=" …")
        found.append(({"linestyle": ""}, [f"job of {', '.join(names) if len(jobs) > 1 else 'all lines'}", *about]))
    return found


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


def write_entries(figure, column, height_px):
    """Writes what `entries` returns beside the plot."""
    def at(x_px, y_px):
        return x_px / WIDTH_PX, 1 - y_px / height_px

    y_px = TOP_PX + 6
    for look, lines in column:
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
