"""What lives where: the tensors of every rank as a table of cells, coloured by whether ranks hold the same."""

from textwrap import shorten

from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from labkit.canvas import FAINT, INK, PX_PER_INCH, SOFT, WIDTH_PX, frame, key, rank_colour, short

SAME_COLOUR = "#D3DAE2"
HEADER_PX, HEAD_PX, FOOT_PX = 66, 26, 40
NAMES_PX, NAME_LETTERS, RIGHT_PX = 190, 26, 16
CELL_PX, ROW_PX, KIND_PX, COLUMN_GAP_PX = 21, 24, 24, 6
LEAST_FOR_SHAPE_PX = 165


def draw_placement(account, *, title="", badge="", note=""):
    """A column per rank, a row per tensor or group of tensors under its kind, and each rank's sum below.

    `account` is a list of dict(rank, kind, name, bytes, fingerprint, shape), of which shape may be missing. A cell is
    grey where all ranks hold the same fingerprint (replicated); else it has the colour of the lowest rank that holds
    this content, which is its own as a rule. A dashed cell is missing on its rank. A fingerprint of None equals none.
    """
    if not account:
        raise ValueError("the account is empty; give one row per rank and tensor")
    ranks = sorted({row["rank"] for row in account})
    kinds = _kinds(account)
    rows = sum(len(names) for names in kinds.values())
    height_px = HEADER_PX + HEAD_PX + KIND_PX * len(kinds) + ROW_PX * rows + FOOT_PX
    table = _Table(frame(height_px, title=title, badge=badge, note=note), ranks)
    cells = {(row["kind"], row["name"], row["rank"]): row for row in account}
    table.write_heads(HEADER_PX + HEAD_PX / 2)
    y_px = HEADER_PX + HEAD_PX
    for kind, names in kinds.items():
        table.write(14, y_px + KIND_PX - 11, kind, color=INK, weight="bold")
        y_px += KIND_PX
        for name in names:
            table.draw_row(y_px, name, [cells.get((kind, name, rank)) for rank in ranks])
            y_px += ROW_PX
    table.write_sums(y_px + 18, [sum(row["bytes"] for row in account if row["rank"] == rank) for rank in ranks])
    table.write_key()
    return table.figure


class _Table:
    """The cells, in pixels from the top left."""

    def __init__(self, figure, ranks):
        self.figure, self.ranks = figure, ranks
        self._high_px = figure.get_figheight() * PX_PER_INCH
        self._column_px = (WIDTH_PX - NAMES_PX - RIGHT_PX + COLUMN_GAP_PX) / len(ranks)
        self._styles = set()

    def write(self, x_px, y_px, text, **look):
        """Write one line of text."""
        look = {"fontsize": 8.5, "va": "center_baseline", "color": SOFT, **look}
        self.figure.text(x_px / WIDTH_PX, 1 - y_px / self._high_px, text, **look)

    def write_heads(self, y_px):
        """Write the ranks above their columns, each in its colour."""
        for column, rank in enumerate(self.ranks):
            left, width = self._span(column)
            self._box(left, y_px + 8, width, 3, facecolor=rank_colour(rank), linewidth=0)
            self.write(left + width / 2, y_px - 2, f"rank {rank}", ha="center", color=INK)

    def draw_row(self, y_px, name, cells):
        """Draw the cells of one tensor, None where a rank lacks it."""
        self.write(24, y_px + CELL_PX / 2, shorten(name, NAME_LETTERS, placeholder="…"))
        for column, (cell, colour) in enumerate(zip(cells, _colours(cells, self.ranks), strict=True)):
            left, width = self._span(column)
            if cell is None:
                self._box(left, y_px, width, CELL_PX, facecolor="white", edgecolor=FAINT, linestyle="--", linewidth=0.8)
                self._styles.add("missing")
                continue
            self._styles.add("same" if colour == SAME_COLOUR else "own")
            self._box(left, y_px, width, CELL_PX, facecolor=colour, linewidth=0)
            size, shape = _size(cell["bytes"]), " × ".join(str(n) for n in cell.get("shape") or ())
            if shape and width >= LEAST_FOR_SHAPE_PX:
                self.write(left + 8, y_px + CELL_PX / 2, shape, color=INK)
                self.write(left + width - 8, y_px + CELL_PX / 2, size, color=INK, ha="right")
            else:
                self.write(left + width / 2, y_px + CELL_PX / 2, size, color=INK, ha="center")

    def write_sums(self, y_px, sums):
        """Write each rank's bytes below its column."""
        self.write(14, y_px, "sum", color=INK, weight="bold")
        for column, total in enumerate(sums):
            left, width = self._span(column)
            self.write(left + width / 2, y_px, _size(total), color=INK, weight="bold", ha="center")

    def write_key(self):
        """Explain the cells that were drawn."""
        own = "a rank's own part" if len(self.ranks) > 1 else "rank 0 holds all"
        patches = {
            "same": Patch(facecolor=SAME_COLOUR, label="the same on every rank"),
            "own": Patch(facecolor=_pale(rank_colour(self.ranks[0])), label=own),
            "missing": Patch(facecolor="white", edgecolor=SOFT, linestyle="--", linewidth=0.8, label="not on this rank"),
        }
        key(self.figure, [patch for style, patch in patches.items() if style in self._styles])

    def _span(self, column):
        return NAMES_PX + column * self._column_px, self._column_px - COLUMN_GAP_PX

    def _box(self, left, top, width, height, **look):
        place = left / WIDTH_PX, 1 - (top + height) / self._high_px
        self.figure.add_artist(Rectangle(place, width / WIDTH_PX, height / self._high_px, **look))


def _kinds(account):
    """{kind: names}, both in order of appearance."""
    found = {}
    for row in account:
        found.setdefault(row["kind"], {})[row["name"]] = True
    return {kind: list(names) for kind, names in found.items()}


def _colours(cells, ranks):
    prints = [None if cell is None else cell.get("fingerprint") for cell in cells]
    if len(ranks) > 1 and None not in prints and len(set(prints)) == 1:
        return [SAME_COLOUR] * len(ranks)
    first = [at if one is None else prints.index(one) for at, one in enumerate(prints)]
    return [_pale(rank_colour(ranks[at])) for at in first]


def _pale(colour):
    return tuple(0.45 * part + 0.55 for part in to_rgb(colour))


def _size(count):
    return f"{short(count)}B" if count >= 1000 else f"{count} B"
