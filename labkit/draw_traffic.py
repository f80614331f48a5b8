"""How many bytes each rank sends: one panel per way of doing the same thing, one bar per rank."""

from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import INK, SOFT, WIDTH_PX, frame, panel, plain, rank_colour

HEADER_PX, BOTTOM_PX, ROW_PX, LEFT_PX, BETWEEN_PX = 84, 48, 26, 66, 62


def draw_sent(ways, *, guess=None, title="", badge="", note=""):
    """Bars of the bytes that each rank sends, on one scale.

    ways   {name: [bytes of rank 0, bytes of rank 1, …]}
    guess  what the learner predicted for one rank of the last way, or None
    """
    rows = max(len(sent) for sent in ways.values())
    figure = frame(HEADER_PX + ROW_PX * rows + BOTTOM_PX, title=title, badge=badge, note=note)
    figure.description = "\n".join(f"{name}: {sum(sent):,} bytes in all, by rank {list(sent)}" for name, sent in ways.items())
    width = (WIDTH_PX - LEFT_PX - 40 - BETWEEN_PX * (len(ways) - 1)) / len(ways)
    most = max([*(count for sent in ways.values() for count in sent), guess or 0])
    for at, (name, sent) in enumerate(ways.items()):
        place = (LEFT_PX + at * (width + BETWEEN_PX), BOTTOM_PX, width, ROW_PX * rows)
        axes = panel(figure, *place, xlabel="bytes sent", grid="x")
        axes.set(xlim=(0, 1.18 * most or 1), ylim=(rows - 0.5, -0.5))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
        axes.set_yticks(range(len(sent)), [f"rank {rank}" for rank in range(len(sent))])
        axes.tick_params(axis="y", length=0)
        axes.barh(range(len(sent)), sent, 0.66, color=[rank_colour(rank) for rank in range(len(sent))], label=name)
        for rank, count in enumerate(sent):
            look = {"xytext": (4, 0), "textcoords": "offset points", "va": "center_baseline", "fontsize": 8.5, "color": SOFT}
            axes.annotate(f"{count:,}", (count, rank), **look)
        axes.set_title(f"{name}: {sum(sent):,} bytes in all", loc="left", fontsize=9, color=INK, pad=5)
    if guess is not None:
        axes.axvline(guess, color=INK, linewidth=1, linestyle=(0, (2, 2)), label="your prediction")
    return figure
