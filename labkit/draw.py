"""Pictures of a run: loss and tokens/s of a training, and any other numbers that its ranks logged.

Data go in, a figure comes out. The other pictures have modules of their own and are offered here too.
"""

import math

from matplotlib.lines import Line2D

from labkit.canvas import DESCRIPTION, KIND_COLOURS, RANK_COLOURS, WIDTH_PX, frame, key, mark_failed, png, rank_colour
from labkit.curves import LossPanel, RankPanel, RatePanel
from labkit.draw_memory import draw_memory
from labkit.draw_placement import draw_placement
from labkit.draw_scaling import ScalingData, ScalingLine, draw_scaling
from labkit.draw_timeline import draw_timeline
from labkit.series import number_names

__all__ = [
    "DESCRIPTION",
    "KIND_COLOURS",
    "RANK_COLOURS",
    "ScalingData",
    "ScalingLine",
    "TrainingPicture",
    "draw_memory",
    "draw_placement",
    "draw_records",
    "draw_scaling",
    "draw_timeline",
    "draw_training",
    "png",
]

HEIGHT_PX = 314
MOST_EXTRAS = 3
LEFT_PX, GAP_PX, RIGHT_PX, BOTTOM_PX, HEADER_PX = 62, 74, 20, 46, 78
ROW_PX, STACK_GAP_PX = 220, 16


def draw_training(records, *, title="", badge="", note="", steps=None, reference=None, failed=None):
    """Loss and tokens/s against the step, and up to three other logged numbers beside them.

    `records` may be empty or have gaps; `steps` fixes the step axis; `reference` are one device's losses (dashed);
    `failed` says why the run ended early, which marks the picture.
    """
    picture = TrainingPicture(title=title, badge=badge, note=note, steps=steps, reference=reference)
    return picture.update(records, failed=failed)


def draw_records(records, *, title="", badge="", note="", failed=None):
    """Each logged number against the step in a panel of its own, one line per rank in the rank's colour."""
    names = number_names(records)
    columns = {0: 1, 1: 1, 2: 2, 4: 2}.get(len(names), 3)
    rows = max(1, math.ceil(len(names) / columns))
    figure = frame(HEADER_PX + ROW_PX * rows, title=title, badge=badge, note=note, alarm=failed or "")
    for at, name in enumerate(names):
        row, column = divmod(at, columns)
        left, width = _columns(columns)[column]
        place = (left, ROW_PX * (rows - 1 - row) + BOTTOM_PX, width, ROW_PX - BOTTOM_PX - 16)
        one = RankPanel(figure, place, name)
        one.update(records)
        if failed:
            mark_failed(one.axes)
    _name_ranks(figure, _ranks(records))
    return figure


class TrainingPicture:
    """The picture of one training, kept between frames: a further frame costs a third of a new picture."""

    def __init__(self, *, title="", badge="", note="", steps=None, reference=None):
        self._header = {"title": title, "badge": badge, "note": note}
        self._steps, self._reference = steps, list(reference or ())
        self._built_for = None
        self.figure, self.panels = None, []

    def update(self, records, *, failed=None):
        """Show these records; returns the figure, the same one as long as no other numbers or ranks turn up."""
        extras = tuple(name for name in number_names(records) if name not in ("loss", "tokens"))[:MOST_EXTRAS]
        ranks = _ranks(records) if extras else ()
        if self._built_for != (extras, ranks, failed):
            self._build(extras, failed)
            _name_ranks(self.figure, ranks)
            self._built_for = extras, ranks, failed
        for one in self.panels:
            one.update(records)
        return self.figure

    def _build(self, extras, failed):
        self.figure = frame(HEIGHT_PX, alarm=failed or "", **self._header)
        bottom, height = BOTTOM_PX, HEIGHT_PX - HEADER_PX - BOTTOM_PX
        places = [(left, bottom, width, height) for left, width in _columns(3 if extras else 2)]
        self.panels = [LossPanel(self.figure, places[0], self._steps, self._reference)]
        self.panels.append(RatePanel(self.figure, places[1], self._steps))
        for row, name in enumerate(reversed(extras)):
            left, _, width, _ = places[2]
            share = (height + STACK_GAP_PX) / len(extras)
            place = (left, bottom + row * share, width, share - STACK_GAP_PX)
            self.panels.append(RankPanel(self.figure, place, name, self._steps, is_lowest=row == 0))
        if failed:
            for one in self.panels:
                mark_failed(one.axes)


def _columns(count):
    width = (WIDTH_PX - LEFT_PX - RIGHT_PX - GAP_PX * (count - 1)) / count
    return [(LEFT_PX + at * (width + GAP_PX), width) for at in range(count)]


def _ranks(records):
    return tuple(sorted({record.get("rank", 0) for record in records}))


def _name_ranks(figure, ranks):
    look = {"marker": "o", "markersize": 5, "linestyle": ""}
    key(figure, [Line2D([], [], color=rank_colour(rank), label=f"rank {rank}", **look) for rank in ranks])
