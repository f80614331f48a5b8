"""What every rank holds, before and after a collective, as a picture: who gave which part of each number.

The numbers are read digit by digit: the k-th decimal digit from the right is what rank k contributed, so 1,111 is a
sum over four ranks and 100 a copy of a cell of rank 2. The picture shows the values that it is given, whatever the
collective should have done, and its text form lists them, so that nbval compares them.
"""

from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrow, Rectangle

from labkit.canvas import FAINT, INK, PX_PER_INCH, SOFT, WIDTH_PX, frame, rank_colour

HEADER_PX, NOTE_PX, TITLE_PX, ROW_PX, GAP_PX, LEFT_PX, FOOT_PX = 58, 16, 24, 30, 46, 62, 12
CELL_PX, LEAST_CELL_PX = 58, 38


def draw_collective(states, *, titles=("before", "after"), title="", badge="", note=""):
    """Grids of ranks × cells, one per state, in reading order with an arrow from each to the next.

    states  per state one row per rank: numbers as a list or a tensor, None where the rank holds nothing
    titles  one per state
    ValueError for numbers that are not whole, or states that have unequal numbers of ranks.
    """
    states = [[_whole_numbers(row) for row in state] for state in states]
    ranks = {len(state) for state in states}
    if len(ranks) != 1:
        raise ValueError(f"the states have {sorted(ranks)} ranks; give each one row per rank")
    if len(titles) != len(states):
        raise ValueError(f"{len(titles)} titles for {len(states)} states; give one title per state")
    header_px = HEADER_PX if note else HEADER_PX - NOTE_PX
    layout = _Layout([max((len(row) for row in state), default=1) for state in states], ranks.pop(), header_px)
    figure = frame(layout.height_px, title=title, badge=badge, note=note)
    figure.description = "\n".join([title or "what the ranks hold", *map(_listed, titles, states)])
    for at, state in enumerate(states):
        left, top = layout.place(at)
        _write(figure, left, top - 9, titles[at], color=SOFT, fontsize=9, ha="left")
        for rank, row in enumerate(state):
            _draw_row(figure, left, top + rank * ROW_PX, row, layout.cell_px, layout.widest[at])
            if layout.is_first_in_line(at):
                _write(figure, LEFT_PX - 10, top + (rank + 0.5) * ROW_PX, f"rank {rank}", color=rank_colour(rank), ha="right")
        if at and not layout.is_first_in_line(at):
            _arrow(figure, left - GAP_PX + 10, top + len(state) * ROW_PX / 2, GAP_PX - 20)
    return figure


def contributors(number):
    """The ranks that a number is made of, ascending: those whose decimal digit is not 0."""
    return [rank for rank, digit in enumerate(reversed(str(abs(number)))) if digit != "0"]


def _listed(title, state):
    """One line of the text form: "after: rank 0 [1111, 2222], rank 1 nothing"."""
    return f"{title}: " + ", ".join(f"rank {rank} {row or 'nothing'}" for rank, row in enumerate(state))


class _Layout:
    """Where each state's grid stands, in pixels from the upper left corner; a line that is full breaks."""

    def __init__(self, widest, ranks, header_px):
        self.header_px = header_px
        self.widest = [max(1, cells) for cells in widest]
        room = WIDTH_PX - LEFT_PX - 14
        most = sum(self.widest) * CELL_PX + (len(widest) - 1) * GAP_PX
        self.cell_px = CELL_PX if most <= room else LEAST_CELL_PX
        self.lines, x = [[]], 0
        for at, cells in enumerate(self.widest):
            width = cells * self.cell_px
            if self.lines[-1] and x + width > room:
                self.lines.append([])
                x = 0
            self.lines[-1].append((at, LEFT_PX + x))
            x += width + GAP_PX
        self._line_px = TITLE_PX + ranks * ROW_PX + FOOT_PX
        self.height_px = header_px + len(self.lines) * self._line_px

    def place(self, wanted):
        for line, places in enumerate(self.lines):
            for at, left in places:
                if at == wanted:
                    return left, self.header_px + line * self._line_px + TITLE_PX - 4
        raise IndexError(wanted)

    def is_first_in_line(self, at):
        return any(line[0][0] == at for line in self.lines)


def _whole_numbers(row):
    numbers = [] if row is None else [float(number) for number in row]
    if any(number != round(number) for number in numbers):
        raise ValueError(f"{numbers} are not whole numbers; their digits say which rank gave what")
    return [round(number) for number in numbers]


def _draw_row(figure, left, top, row, cell_px, widest):
    for cell, number in enumerate(row):
        ranks = contributors(number)[::-1]  # the stripes stand in the order of the digits
        x, stripe = left + cell * cell_px, cell_px / max(1, len(ranks))
        for at, rank in enumerate(ranks):
            _box(figure, x + at * stripe, top, stripe, facecolor=_pale(rank), linewidth=0)
        _box(figure, x, top, cell_px, facecolor="none", edgecolor="white", linewidth=1.5)
        size = 10 if cell_px == CELL_PX else 8
        _write(figure, x + cell_px / 2, top + ROW_PX / 2, str(number), color=INK, fontsize=size, ha="center")
    if not row:
        _box(figure, left + 2, top + 2, widest * cell_px - 4, less=4, facecolor="none", edgecolor=FAINT, linestyle=(0, (2, 2)))


def _pale(rank):
    return tuple(0.48 + 0.52 * part for part in to_rgb(rank_colour(rank)))


def _box(figure, left, top, width, *, less=0, **look):
    high = figure.get_figheight() * PX_PER_INCH
    height = ROW_PX - less
    corner = left / WIDTH_PX, 1 - (top + height) / high
    figure.add_artist(Rectangle(corner, width / WIDTH_PX, height / high, **look))


def _write(figure, x, y, text, *, fontsize=9, **look):
    high = figure.get_figheight() * PX_PER_INCH
    figure.text(x / WIDTH_PX, 1 - y / high, text, fontsize=fontsize, va="center_baseline", **look)


def _arrow(figure, x, y, length):
    high = figure.get_figheight() * PX_PER_INCH
    look = {"width": 1.5 / high, "head_width": 9 / high, "head_length": 9 / WIDTH_PX, "color": SOFT, "linewidth": 0}
    start, along = (x / WIDTH_PX, 1 - y / high), (length / WIDTH_PX, 0)
    figure.add_artist(FancyArrow(*start, *along, length_includes_head=True, **look))
