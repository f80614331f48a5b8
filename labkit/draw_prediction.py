"""A prediction as a picture: the timeline of all ranks, and below it what each card holds against the memory that it has."""

from textwrap import shorten

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import ALARM, INK, PX_PER_INCH, SOFT, WIDTH_PX, panel
from labkit.draw_memory import KIND_COLOURS
from labkit.draw_timeline import LEFT_PX, RIGHT_PX, draw_timeline
from labkit.storages import KINDS

BAR_PX, AXIS_PX, TITLE_PX, KEY_PX = 17, 44, 26, 30
NOTE_LETTERS = 112
GIB = 2**30


def draw_prediction(prediction):
    """The Prediction's timeline, and a bar per rank of what it holds at the fullest moment, by kind."""
    ranks = len(prediction.peak_bytes)
    height_px = max(2, ranks) * BAR_PX
    note = shorten(f"{prediction.machine.name} · {prediction.job}", NOTE_LETTERS, placeholder=" …")
    figure = draw_timeline(
        [prediction.timeline],
        [_facts(prediction)],
        title=prediction.name,
        badge=prediction.badge,
        note=note,
        below_px=AXIS_PX + height_px + TITLE_PX + KEY_PX,
    )
    y = 1 - 58 / (figure.get_figheight() * PX_PER_INCH)
    figure.text(14 / WIDTH_PX, y, prediction.note, va="baseline", fontsize=8.5, color=SOFT)
    axes = panel(figure, LEFT_PX, AXIS_PX, WIDTH_PX - LEFT_PX - RIGHT_PX, height_px, grid="x", xlabel="memory of each card (GiB)")
    _draw_bars(axes, prediction)
    return figure


def _facts(prediction):
    try:
        faster = f"{prediction.speedup:.2f} times one card"
    except ValueError:
        faster = "too large for one card"
    return f"{prediction.tokens_per_s:,.0f} tokens/s, {faster}, MFU {prediction.mfu:.1%} of {prediction.peak_name}"


def _draw_bars(axes, prediction):
    card, held = prediction.machine.card, prediction.peak_bytes
    for rank, kinds in enumerate(held):
        left = 0.0
        for kind in KINDS:
            width = kinds.get(kind, 0) / GIB
            axes.barh(rank, width, left=left, height=0.74, color=KIND_COLOURS[kind], linewidth=0)
            left += width
    sums = [sum(kinds.values()) / GIB for kinds in held]
    limit = card.memory_bytes / GIB
    axes.axvline(limit, color=ALARM, linewidth=1.2, linestyle=(0, (4, 2)))
    top = 1.06 * max(limit, *sums)
    axes.set(xlim=(0, top), ylim=(max(2, len(held)) - 0.5, -0.5))
    axes.set_yticks(range(len(held)), [f"rank {rank}" for rank in range(len(held))])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 2.5, 3, 4, 5, 6, 10)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for rank, total in enumerate(sums):
        if total < 0.9 * limit:
            axes.text(total + 0.006 * top, rank, f"{total:.2f} GiB", va="center", fontsize=8, color=INK)
    verdict = "fits" if prediction.fits else "does NOT fit"
    axes.set_title(f"at the fullest moment {max(sums):.1f} GiB, which {verdict}", loc="left", fontsize=9, color=INK, pad=4)
    shown = [kind for kind in KINDS if any(kinds.get(kind) for kinds in held)]
    handles = [Patch(facecolor=KIND_COLOURS[kind], label=kind) for kind in shown]
    look = {"color": ALARM, "linestyle": (0, (4, 2)), "linewidth": 1.2}
    handles.append(Line2D([], [], label=f"a card's {limit:.1f} GiB", **look))
    key = {"frameon": False, "fontsize": 8.5, "labelcolor": SOFT, "handlelength": 1.4, "columnspacing": 1.2, "handletextpad": 0.5}
    above = (1.0, 1 + 24 / (max(2, len(held)) * BAR_PX))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=above, ncols=len(handles), borderpad=0, borderaxespad=0, **key)
