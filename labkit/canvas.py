"""What all pictures share: colours, one frame with title and badge, and the PNG that a notebook keeps.

Pictures are figures made without pyplot: nothing global is changed. Places and lengths are display pixels.
Colours: the palette of Okabe and Ito, "Color Universal Design" (2008), which colour-blind readers can tell apart.
"""

import io
import textwrap

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

WIDTH_PX = 900
PX_PER_INCH = 100
SHARPNESS = 2  # PNG pixels per display pixel
DESCRIPTION = "<labkit picture>"

RANK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B3A100", "#555555")
KIND_COLOURS = {
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "backward_input": "#D55E00",
    "backward_weight": "#009E73",
    "communicate": "#CC79A7",
    "wait": "#C9CDD2",
    "optimizer": "#F0E442",
}
IDLE_COLOUR = "#EEF0F2"
INK, SOFT, FAINT, ALARM = "#1F2933", "#616E7C", "#CBD2D9", "#B42318"


class Drawing(Figure):
    """A figure that a notebook shows by itself, in its own width and with a text form that does not depend on how it is drawn.

    `moving` holds the artists that change from frame to frame. They must be animated: then only they are drawn anew
    as long as nothing else changes, which halves the cost of a frame. `description` is the text form.
    """

    def __init__(self, height_px, *, width_px=WIDTH_PX):
        size = (width_px / PX_PER_INCH, height_px / PX_PER_INCH)
        super().__init__(figsize=size, dpi=SHARPNESS * PX_PER_INCH, facecolor="white")
        FigureCanvasAgg(self)
        self.moving = []
        self.description = DESCRIPTION
        self._still = None

    def pixels(self):
        """The rendered figure as an array [height, width, 4] of bytes."""
        if self.stale or self._still is None:
            self.canvas.draw()
            self._still = self.canvas.copy_from_bbox(self.bbox)
        self.canvas.restore_region(self._still)
        for artist in self.moving:
            artist.axes.draw_artist(artist)
        return np.asarray(self.canvas.buffer_rgba())

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, width_px = png(self)
        return {"image/png": data, "text/plain": self.description}, {"image/png": {"width": width_px}}


def png(figure):
    """(bytes, width_px): a Drawing at twice the display resolution, and the width to show it at."""
    held = io.BytesIO()
    _few_colours(figure.pixels()).save(held, "png")
    return held.getvalue(), round(figure.get_figwidth() * PX_PER_INCH)


def rank_colour(rank):
    """The colour of a rank in every picture; it repeats after 8 ranks."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def frame(height_px, *, title="", badge="", note="", alarm=""):
    """An empty Drawing with its header: the title, a smaller line (the alarm's first, else the note), and the badge."""
    figure = Drawing(height_px)
    alarm = textwrap.shorten(alarm.strip().partition("\n")[0], 100, placeholder=" …")

    def write(x, down, text, **look):
        figure.text(x / WIDTH_PX, 1 - down / height_px, text, va="baseline", **look)

    write(14, 25, title, fontsize=11, color=INK, weight="bold")
    write(14, 43, alarm or note, fontsize=8.5, color=ALARM if alarm else SOFT, weight="bold" if alarm else "normal")
    if badge:
        write(WIDTH_PX - 18, 24, badge, **_badge_look(badge))
    return figure


def second_badge(figure, badge):
    """Another badge below the first one, for what else a picture shows."""
    high = figure.get_figheight() * PX_PER_INCH
    figure.text((WIDTH_PX - 18) / WIDTH_PX, 1 - 51 / high, badge, va="baseline", **_badge_look(badge))


def _badge_look(badge):
    box = {"boxstyle": "round,pad=0.45", "facecolor": "#F5F7FA", "edgecolor": SOFT, "linewidth": 0.7}
    box["linestyle"] = "--" if badge.startswith("predicted") else "-"
    return {"fontsize": 8.5, "color": INK, "ha": "right", "bbox": box}


def panel(figure, left, bottom, width, height, *, xlabel="", ylabel="", grid="both"):
    """Axes in the workbook's look, placed in display pixels."""
    wide, high = figure.get_size_inches() * PX_PER_INCH
    axes = figure.add_axes((left / wide, bottom / high, width / wide, height / high), facecolor="white")
    axes.set_xlabel(xlabel, fontsize=9, color=SOFT)
    axes.set_ylabel(ylabel, fontsize=9, color=SOFT)
    axes.tick_params(labelsize=8.5, labelcolor=SOFT, color=FAINT, length=3, width=0.8)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, axis=grid, color="#E8EBEE", linewidth=0.7, linestyle="-")
    return axes


def mark_failed(axes):
    """Mark axes as those of a run that ended early."""
    axes.set_facecolor("#FDF3F2")
    for side in ("left", "bottom"):
        axes.spines[side].set_color(ALARM)


def key(figure, handles, *, down=48):
    """A legend in one line, right-aligned, `down` pixels from the top; an earlier one is replaced."""
    for old in figure.legends:
        old.remove()
    high = figure.get_figheight() * PX_PER_INCH
    look = {"frameon": False, "fontsize": 8.5, "labelcolor": SOFT, "handlelength": 1.4, "columnspacing": 1.2}
    look |= {"borderpad": 0, "borderaxespad": 0, "handletextpad": 0.5}
    anchor = (1 - 14 / WIDTH_PX, 1 - down / high)
    figure.legend(handles=handles, loc="upper right", bbox_to_anchor=anchor, ncols=max(1, len(handles)), **look)


def plain(value, _=None):
    """The text of a tick: 0, 0.5, 250, 12.5 k, 3 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def short(value):
    """A number in few characters: 0.0123, 2.31, 847, 14.2 k, 3.20 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{_three(value / size)} {unit}"
    return _three(value)


def _three(value):
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _few_colours(pixels):
    """The pixels as an image of the 256 commonest colours: a third of the bytes that a notebook would keep."""
    image = Image.fromarray(pixels).convert("RGB")
    counted = image.getcolors(8192)
    if counted is None:
        return image
    colours = np.array([colour for _, colour in sorted(counted, reverse=True)], dtype=np.int32)
    palette = colours[:256]
    nearest = ((colours[:, None] - palette) ** 2).sum(axis=2).argmin(axis=1)
    index = np.zeros(1 << 24, dtype=np.uint8)
    index[colours @ (1, 1 << 8, 1 << 16)] = nearest
    packed = Image.fromarray(index[pixels.view("<u4")[..., 0] & 0xFFFFFF])
    packed.putpalette(palette.astype(np.uint8).tobytes())
    return packed
