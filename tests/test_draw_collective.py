"""Pictures of the collectives lesson, by the data of their artists."""

import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from labkit.canvas import RANK_COLOURS, png
from labkit.cost_fit import Cost
from labkit.draw_collective import contributors, draw_collective
from labkit.draw_cost import draw_cost, draw_times
from labkit.draw_traffic import draw_sent

BEFORE = [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]]


def texts(figure):
    return [text.get_text() for text in figure.texts]


def stripes(figure):
    """The filled boxes, in the order in which they were drawn."""
    return [box for box in figure.artists if isinstance(box, Rectangle) and box.get_facecolor()[3]]


@pytest.mark.parametrize(("number", "ranks"), [(3, [0]), (20, [1]), (111, [0, 1, 2]), (202, [0, 2]), (0, [])])
def test_digits_name_the_contributors(number, ranks):
    assert contributors(number) == ranks


def test_a_picture_shows_the_numbers_that_it_is_given():
    after = [[111.0], torch.tensor([222.0]), None]
    figure = draw_collective([BEFORE, after], title="reduce_scatter")
    assert figure.description == (
        "reduce_scatter\n"
        "before: rank 0 [1, 2, 3], rank 1 [10, 20, 30], rank 2 [100, 200, 300]\n"
        "after: rank 0 [111], rank 1 [222], rank 2 nothing"
    )
    shown = texts(figure)
    assert [shown.count(text) for text in ("111", "222", "300", "rank 2", "before", "after")] == [1] * 6


def test_a_cell_has_the_colours_of_the_ranks_in_its_digits():
    figure = draw_collective([[[110.0], [1.0], [0.0]]], titles=["now"])
    colours = [box.get_facecolor()[:3] for box in stripes(figure)]
    pale = [tuple(0.48 + 0.52 * part for part in to_rgb(RANK_COLOURS[rank])) for rank in (2, 1, 0)]
    assert colours == [pytest.approx(one) for one in pale]
    assert stripes(figure)[0].get_x() < stripes(figure)[1].get_x()  # rank 2's digit stands to the left


def test_many_states_break_into_lines_and_stay_inside():
    figure = draw_collective([[[1.0, 2.0, 3.0, 4.0]] * 4] * 7, titles=[f"step {k}" for k in range(7)])
    assert texts(figure).count("rank 0") == 2
    assert max(box.get_x() + box.get_width() for box in stripes(figure)) < 1
    assert min(box.get_y() for box in stripes(figure)) > 0
    assert png(figure)[0].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("states", "titles", "cause"),
    [
        ([BEFORE, BEFORE[:2]], ("a", "b"), "one row per rank"),
        ([BEFORE], ("a", "b"), "2 titles for 1 states"),
        ([[[0.5]]], ("a",), "not whole numbers"),
    ],
)
def test_what_cannot_be_drawn_is_refused(states, titles, cause):
    with pytest.raises(ValueError, match=cause):
        draw_collective(states, titles=titles)


def test_costs_are_drawn_with_their_fit_and_residuals():
    cost = Cost(1e-4, 1e9)
    samples = {"send": {size: [2 * cost.seconds(size)] * 3 for size in (4096, 65536)}, "new": {4096: [1e-3]}}
    figure = draw_cost(samples, {"send": cost})
    times, residuals = figure.axes
    fit = next(line for line in times.get_lines() if len(line.get_xdata()) == 60)
    assert fit.get_ydata()[0] == pytest.approx(cost.seconds(4096)) and fit.is_dashed()
    (line,) = [line for line in residuals.get_lines() if line.get_label() == "send"]
    assert list(line.get_ydata()) == pytest.approx([100, 100])
    assert "α = 100 µs, β = 1.00 GB/s, a median is off by up to 100 %" in texts(figure)
    assert "not fitted yet" in texts(figure)


def test_times_stand_beside_their_predictions():
    figure = draw_times([("many calls", 2.0, [3.0, 1.0, 5.0]), ("one call", None, [0.5])])
    (axes,) = figure.axes
    widths = {(bars.get_label(), bars[0].get_width()) for bars in axes.containers}
    assert widths == {("predicted", 2.0), ("measured", 3.0), ("measured", 0.5)}


def test_bytes_sent_are_drawn_per_rank_beside_the_guess():
    figure = draw_sent({"star": [12, 4], "ring": [8, 8]}, guess=6)
    star, ring = figure.axes
    assert [bar.get_width() for bar in star.containers[0]] == [12, 4]
    assert [line.get_xdata()[0] for line in ring.get_lines()] == [6] and not star.get_lines()
    assert figure.description == "star: 16 bytes in all, by rank [12, 4]\nring: 16 bytes in all, by rank [8, 8]"
