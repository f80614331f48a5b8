"""The roofline: what it computes, and what of it is drawn how."""

import pytest

from labkit.draw_roofline import Roof, Work, draw_roofline

HERE = Roof("this device", 1e11, 1e10, measured=True)
SHEET = Roof("a card by its data sheet", 1e14, 1e12)


def test_a_roof_is_memory_below_its_ridge_and_arithmetic_above():
    assert HERE.ridge == 10
    assert [HERE.reach(intensity) for intensity in (0.5, 10, 200)] == [5e9, 1e11, 1e11]


def test_rates_of_work():
    work = Work("add", flops=1e6, moved_bytes=12e6, seconds=0.5)
    assert (work.intensity, work.flops_per_s, work.bytes_per_s) == (pytest.approx(1 / 12), 2e6, 24e6)


@pytest.mark.parametrize("rates", [(0, 1e9), (1e9, -1), (float("nan"), 1)])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(ValueError, match="both must be above 0"):
        Roof("nothing", *rates)


def test_no_roof_is_refused():
    with pytest.raises(ValueError, match="no roof to draw"):
        draw_roofline([], {})


def test_lines_markers_and_names():
    works = [Work("1", 1e6, 1e6, 1e-3), Work("64", 64e6, 2e6, 1e-3)]
    figure = draw_roofline([HERE, SHEET], {"weights times tokens": works}, title="roofline", badge="measured on 1 CPU core")
    (axes,) = figure.axes
    measured, computed, points = axes.lines
    assert (measured.get_linestyle(), computed.get_linestyle(), points.get_linestyle()) == ("-", "--", "None")
    assert list(measured.get_ydata()) == [HERE.reach(x) for x in measured.get_xdata()]
    assert list(zip(*points.get_data())) == [(work.intensity, work.flops_per_s) for work in works]
    texts = {text.get_text() for text in [*axes.texts, *figure.texts]}
    assert {"10", "100", "1", "64", "this device", "a card by its data sheet", "measured on 1 CPU core"} <= texts


def test_every_point_and_bend_is_within_the_axes_and_names_keep_apart():
    roofs = [HERE, SHEET, Roof("another card, with the same peak", 1e14, 2e11)]
    works = [Work("slow", 1, 1e3, 1e-6), Work("dense", 1e9, 1e5, 1)]
    axes = draw_roofline(roofs, {"work": works}).axes[0]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for x, y in [(roof.ridge, roof.flops_per_s) for roof in roofs] + [(work.intensity, work.flops_per_s) for work in works]:
        assert left < x < right and low < y < high
    places = sorted(text.get_position()[1] for text in axes.texts if text.get_transform() == axes.transAxes)
    assert len(places) == 3 and all(b - a > 0.04 for a, b in zip(places, places[1:]))
