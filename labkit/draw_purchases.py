"""What offers bring, as a picture: a bar of predicted tokens per second each, its interval, and a line where one is now."""

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from labkit.canvas import INK, KIND_COLOURS, SOFT, WIDTH_PX, frame, key, panel, short

LEFT_PX, RIGHT_PX, HEADER_PX, BOTTOM_PX, ROW_PX = 250, 128, 70, 46, 34


def draw_purchases(purchases, *, note=""):
    """A Drawing of `labkit.purchases.Purchases`, best offer on top."""
    rows = purchases.rows
    figure = frame(HEADER_PX + BOTTOM_PX + ROW_PX * len(rows), title="what to buy next", badge="predicted", note=note)
    wide = WIDTH_PX - LEFT_PX - RIGHT_PX
    axes = panel(figure, LEFT_PX, BOTTOM_PX, wide, ROW_PX * len(rows), xlabel="tokens/s, with the 80 % interval", grid="x")
    places = range(len(rows) - 1, -1, -1)
    top = 1.0
    for place, (_, best) in zip(places, rows):
        if best is None:
            axes.text(0, place, " nothing fits", va="center", fontsize=8.5, color=SOFT)
            continue
        low, high = best.interval
        top = max(top, high)
        axes.barh(place, best.tokens_per_s, height=0.62, color=KIND_COLOURS["forward"], linewidth=0)
        axes.plot((low, high), (place, place), color=INK, linewidth=1.4, marker="|", markersize=7)
        text = f"{short(best.tokens_per_s)}  ({purchases.gain(best):.2f} ×)" if purchases.now else short(best.tokens_per_s)
        axes.annotate(text, (high, place), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
    if purchases.now:
        axes.axvline(purchases.now.tokens_per_s, color=SOFT, linewidth=1.2, linestyle=(0, (4, 2)))
        key(figure, [Line2D([], [], color=SOFT, linestyle=(0, (4, 2)), linewidth=1.2, label="as it is now")], down=48)
    axes.set(xlim=(0, 1.02 * top), ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticks(list(places), [offer.name for offer, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return figure
