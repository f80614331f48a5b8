"""Timelines as pictures: a lane per rank, rank 0 on top, several timelines above each other on one axis."""

import math
from statistics import median

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from labkit.canvas import IDLE_COLOUR, INK, KIND_COLOURS, SOFT, WIDTH_PX, frame, key, panel
from labkit.chrome_trace import lanes
from labkit.timeline import COMPUTE_KINDS, STREAMS

LEFT_PX, RIGHT_PX, HEADER_PX, TITLE_PX, AXIS_PX = 62, 20, 62, 26, 44
LANE_PX, LINK_PX, SPACE_PX = 22, 10, 7  # a compute lane, the communicate lane beneath it, the space to the next rank
NUMBER_SIZES = (8, 7, 6)
DIGIT_PX = 0.89  # width of a digit, per point of its size
HATCH, HATCH_COLOUR, LEAST_HATCHED_PX = "//////", "#8F4A74", 3
LAYERS = ("idle", *KIND_COLOURS)  # from the bottom up
KIND_NAMES = {"backward_input": "backward (input)", "backward_weight": "backward (weight)"}


def draw_timeline(timelines, titles=(), *, title="", badge="", note="", unit="ms", normalised=False, below_px=0):
    """Stack timelines on one time axis, from each one's first compute on, with its length and bubble.

    A box bears its micro-batch if there is room; boxes of a later chunk are paler; grey is what counts as idle.
    `unit` names the time axis; another one than ms stands for one second (ideal schedules may count in slots).
    `normalised` draws each timeline as a share of its own length, for timelines in unlike units. `below_px` is left free.
    """
    if not timelines:
        raise ValueError("no timeline to draw; pass a list with at least one")
    rows = [_Rows(one, 100 / (one.total_s or 1) if normalised else 1e3 if unit == "ms" else 1) for one in timelines]
    bottom = below_px + AXIS_PX + sum(TITLE_PX + one.height_px for one in rows)
    figure = frame(HEADER_PX + bottom, title=title, badge=badge, note=note)
    first, last = min(one.first for one in rows), max(one.last for one in rows)
    limits = (first, last) if last > first else (first, first + 1)
    for at, one in enumerate(rows):
        bottom -= TITLE_PX + one.height_px
        axes = panel(figure, LEFT_PX, bottom, WIDTH_PX - LEFT_PX - RIGHT_PX, one.height_px, grid="x")
        axes.set(xlim=limits, ylim=(one.height_px, 0))
        one.draw(axes)
        _write_titles(axes, titles[at] if at < len(titles) else "", timelines[at], "" if normalised else unit, one.scale)
        if at < len(rows) - 1:
            axes.tick_params(labelbottom=False, bottom=False)
            axes.spines["bottom"].set_visible(False)
    axes.set_xlabel("share of its whole (%)" if normalised else f"time ({unit})")
    _name_kinds(figure, timelines)
    return figure


class _Rows:
    """One timeline in axis units: x is time × scale from the first compute, y is pixels from the top."""

    def __init__(self, timeline, scale):
        self.timeline, self.scale = timeline, scale
        starts = [span.start_s for span in timeline.spans if span.kind in COMPUTE_KINDS]
        self.origin_s = starts[0] if starts else timeline.spans[0].start_s if timeline.spans else 0.0
        self.first = min((self._x(span.start_s) for span in timeline.spans), default=0.0)
        self.last = max((self._x(span.end_s) for span in timeline.spans), default=1.0)
        has_links = any(span.stream == "communicate" for span in timeline.spans)
        self.row_px = LANE_PX + (LINK_PX if has_links else 0) + SPACE_PX
        self.height_px = max(1, len(timeline.ranks)) * self.row_px + SPACE_PX

    def draw(self, axes):
        """Draw all ranks: what is idle, the boxes of each kind, their numbers."""
        self._px_per_x = (WIDTH_PX - LEFT_PX - RIGHT_PX) / ((axes.get_xlim()[1] - axes.get_xlim()[0]) or 1)
        boxes = {kind: [] for kind in LAYERS}
        for row, rank in enumerate(self.timeline.ranks):
            top = SPACE_PX + row * self.row_px
            for start_s, end_s in self.timeline.idle(rank):
                boxes["idle"].append((self._box(start_s, end_s, top, LANE_PX), IDLE_COLOUR))
            for stream, y, height in zip(STREAMS, (top, top + LANE_PX), (LANE_PX, LINK_PX), strict=True):
                spans = [one for one in self.timeline.spans if one.rank == rank and one.stream == stream]
                numbers = lanes(spans)
                share = height / (max(numbers, default=0) + 1)
                for span, lane in zip(spans, numbers, strict=True):
                    box = self._box(span.start_s, span.end_s, y + lane * share, share)
                    boxes[span.kind].append((box, _colour(span)))
                    self._write_number(axes, span, box)
        for kind, drawn in boxes.items():
            self._add(axes, kind, drawn)
        centres = [SPACE_PX + row * self.row_px + LANE_PX / 2 for row in range(len(self.timeline.ranks))]
        axes.set_yticks(centres, [f"rank {rank}" for rank in self.timeline.ranks])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))

    def _x(self, time_s):
        return (time_s - self.origin_s) * self.scale

    def _box(self, start_s, end_s, top, height):
        left, right = self._x(start_s), self._x(end_s)
        right = max(right, left + 1 / self._px_per_x)  # a pixel, or the eye would miss it
        return ((left, top), (right, top), (right, top + height), (left, top + height))

    def _add(self, axes, kind, drawn):
        widths_px = [(box[1][0] - box[0][0]) * self._px_per_x for box, _ in drawn]
        hatched = [kind == "communicate" and width_px >= LEAST_HATCHED_PX for width_px in widths_px]
        for hatch in (None, HATCH):
            part = [one for one, flag in zip(drawn, hatched, strict=True) if flag == bool(hatch)]
            if part:
                edge = kind != "idle" and median(widths_px) > 4
                look = {"edgecolor": HATCH_COLOUR if hatch else "white", "linewidth": 0.6 if edge else 0, "hatch": hatch}
                look |= {"label": kind, "zorder": 2 + LAYERS.index(kind) / 10}
                boxes = PolyCollection([box for box, _ in part], facecolors=[colour for _, colour in part], **look)
                axes.add_collection(boxes, autolim=False)

    def _write_number(self, axes, span, box):
        number = str(span.labels.get("micro_batch", ""))
        room_px = (box[1][0] - box[0][0]) * self._px_per_x - 1.5
        size = next((size for size in NUMBER_SIZES if len(number) * DIGIT_PX * size <= room_px), None)
        if number and size and span.stream == "compute":
            x, y = (box[0][0] + box[1][0]) / 2, (box[0][1] + box[2][1]) / 2
            axes.text(x, y, number, fontsize=size, color=INK, ha="center", va="center_baseline", zorder=4)


def _colour(span):
    red, green, blue = to_rgb(KIND_COLOURS[span.kind])
    pale = 0.5 if span.labels.get("chunk", 0) else 0.0
    return tuple(part + (1 - part) * pale for part in (red, green, blue))


def _write_titles(axes, title, timeline, unit, scale):
    total = timeline.total_s * scale
    facts = [f"{total:,.0f} {unit}" if total >= 1000 else f"{total:.4g} {unit}"] if unit else []
    facts += [] if math.isnan(timeline.bubble) else [f"bubble {100 * timeline.bubble:.1f} %"]
    axes.set_title(title, loc="left", fontsize=9, color=INK, pad=4)
    axes.set_title("  ·  ".join(facts), loc="right", fontsize=9, color=SOFT, pad=4)


def _name_kinds(figure, timelines):
    used = {span.kind for one in timelines for span in one.spans}
    handles = [Patch(facecolor=IDLE_COLOUR, edgecolor="#DDE1E5", linewidth=0.5, label="idle")]
    handles = handles if used & set(COMPUTE_KINDS) else []
    for kind in reversed([kind for kind in KIND_COLOURS if kind in used]):
        look = {"hatch": HATCH, "edgecolor": HATCH_COLOUR, "linewidth": 0.6} if kind == "communicate" else {}
        handles.insert(0, Patch(facecolor=KIND_COLOURS[kind], label=KIND_NAMES.get(kind, kind), **look))
    key(figure, handles)
