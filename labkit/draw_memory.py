"""Memory by kind: a stacked bar per rank, groups of ranks beside one another, and the memory of a card as a line."""

from textwrap import shorten

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import ALARM, INK, SOFT, WIDTH_PX, frame, key, panel, plain, short
from labkit.storages import KINDS

KIND_COLOURS = dict(zip(KINDS, ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#C9CDD2"), strict=True))
HEIGHT_PX, HEADER_PX, LEFT_PX, RIGHT_PX, BOTTOM_PX = 340, 72, 66, 16, 52
GROUP_GAP = 0.6
LEAST_BARS = 6
LETTERS_PX = 6.5


def draw_memory(groups, *, limit_bytes=None, title="", badge="", note=""):
    """A stacked bar per rank from {group: [{kind: bytes} of each rank]}; the sum stands above each bar."""
    bars = [(name, rank, kinds) for name, ranks in groups.items() for rank, kinds in enumerate(ranks)]
    if not bars:
        raise ValueError("there is nothing to draw; give {name: [{kind: bytes} of each rank]}")
    figure = frame(HEIGHT_PX, title=title, badge=badge, note=note)
    wide, high = WIDTH_PX - LEFT_PX - RIGHT_PX, HEIGHT_PX - HEADER_PX - BOTTOM_PX
    axes = panel(figure, LEFT_PX, BOTTOM_PX, wide, high, ylabel="bytes", grid="y")
    places = _places(groups)
    for kind in KINDS:
        heights = [kinds.get(kind, 0) for _, _, kinds in bars]
        below = [sum(kinds.get(one, 0) for one in KINDS[: KINDS.index(kind)]) for _, _, kinds in bars]
        axes.bar(places, heights, bottom=below, width=0.82, color=KIND_COLOURS[kind], linewidth=0)
    sums = [sum(kinds.values()) for _, _, kinds in bars]
    top = max(1, *sums, limit_bytes or 0)
    span = max(places[-1] + 1.2, LEAST_BARS)
    px_per_bar = wide / span
    for place, total in zip(places, sums, strict=True):
        text = f"{short(total)}B" if total >= 1000 else f"{total} B"
        if px_per_bar >= LETTERS_PX * len(text):
            look = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": INK, "zorder": 4}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # it may lie on the line of the card's memory
            axes.text(place, total + 0.015 * top, text, bbox=box, **look)
    if limit_bytes:
        axes.axhline(limit_bytes, color=ALARM, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set(xlim=((places[-1] - span) / 2, (places[-1] + span) / 2), ylim=(0, 1.1 * top))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
    _write_names(axes, groups, places, px_per_bar)
    key(figure, _key(bars, limit_bytes), down=52)
    return figure


def _places(groups):
    places, at = [], 0.0
    for ranks in groups.values():
        places += [at + rank for rank in range(len(ranks))]
        at += len(ranks) + GROUP_GAP
    return places


def _write_names(axes, groups, places, px_per_bar):
    """Ranks below their bars, groups below their ranks."""
    long = px_per_bar >= LETTERS_PX * len("rank 0")
    labels = [f"rank {rank}" if long else f"{rank}" for ranks in groups.values() for rank in range(len(ranks))]
    axes.set_xticks(places, labels)
    axes.tick_params(axis="x", length=0)
    first = 0
    for name, ranks in groups.items():
        middle = sum(places[first : first + len(ranks)]) / len(ranks)
        look = {"fontsize": 9, "color": INK if len(groups) > 1 else SOFT, "ha": "center", "va": "top"}
        text = shorten(name, max(4, int((len(ranks) + GROUP_GAP) * px_per_bar / LETTERS_PX)), placeholder="…")
        axes.annotate(text, (middle, 0), xycoords=("data", "axes fraction"), xytext=(0, -20), textcoords="offset points", **look)
        first += len(ranks)


def _key(bars, limit_bytes):
    drawn = [kind for kind in KINDS if any(kinds.get(kind) for _, _, kinds in bars)]
    handles = [Patch(facecolor=KIND_COLOURS[kind], label=kind) for kind in drawn]
    if limit_bytes:
        handles.append(
            Line2D([], [], color=ALARM, linestyle=(0, (4, 2)), linewidth=1.2, label=f"a card of {short(limit_bytes)}B")
        )
    return handles
