"""Races as pictures, by the data of their artists."""

from collections import namedtuple

import pytest
from artists import line_of, texts_of

from labkit.canvas import png
from labkit.draw_scaling import ScalingData, ScalingLine, draw_scaling

Value = namedtuple("Value", "median low high")


class TestScaling:
    def data(self, **changes):
        by_hand = ScalingLine(
            "data_parallel", {2: Value(1.7, 1.6, 1.8), 4: Value(2.9, 2.5, 3.0)}, {4: Value(0.93, 0.9, 0.96)}, "3 M"
        )
        limit = {2: Value(1.9, 1.8, 2.0), 4: Value(3.5, 3.3, 3.6)}
        ahead = ScalingLine("data_parallel", {n: Value(*3 * (1.2 * n,)) for n in (2, 4, 8)}, job="124 M", is_predicted=True)
        given = {"world_sizes": (2, 4), "lines": (by_hand,), "limit": limit, "predicted": (ahead,), **changes}
        return ScalingData(**given, predicted_badge="predicted for 8 RTX 4090")

    def test_lines_spread_limit_and_ideal(self):
        figure = draw_scaling(self.data(), title="race", badge="measured on 2 CPU cores")
        (axes,) = figure.axes
        by_hand, ahead = axes.containers
        assert by_hand.lines[0].get_ydata().tolist() == [1.7, 2.9]
        assert by_hand.lines[0].get_xdata() == pytest.approx([2, 4], abs=0.1)
        bars = [bar[:, 1].tolist() for bar in by_hand.lines[2][0].get_segments()]
        assert bars == [pytest.approx([1.6, 1.8]), pytest.approx([2.5, 3.0])]
        assert (by_hand.lines[0].get_linestyle(), ahead.lines[0].get_linestyle()) == ("-", "--")
        assert ahead.lines[0].get_xydata().tolist() == [[2, 2.4], [4, 4.8], [8, 9.6]]
        assert by_hand.lines[0].get_color() == ahead.lines[0].get_color()
        assert line_of(axes, "ideal").get_xydata().tolist() == [[1, 1], [8, 8]]
        assert line_of(axes, "this machine's limit").get_xydata().tolist() == [[1, 1], [2, 1.9], [4, 3.5]]
        band = axes.collections[0].get_paths()[0].vertices
        assert {tuple(point) for point in band} >= {(2, 1.8), (2, 2.0), (4, 3.3), (4, 3.6), (1, 1)}
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("ranks", "speed-up over one device")
        assert axes.get_xticks().tolist() == [1, 2, 4, 8]

    def test_the_legend_names_share_jobs_and_predictions(self):
        texts = texts_of(draw_scaling(self.data(guess={4: 3.8})))
        assert {"data_parallel", "2.90 [2.50 … 3.00] on 4 ranks", "93 % of this machine's limit"} <= set(texts)
        assert {"job of data_parallel", "3 M", "job of the dashed lines", "124 M"} <= set(texts)
        assert {"predicted 2.40, 4.80, 9.60 on 2, 4, 8", "your prediction", "3.8 on 4 ranks"} <= set(texts)
        assert "predicted for 8 RTX 4090" in texts

    def test_a_line_that_cannot_be_predicted_says_why(self):
        why = ScalingLine("data_parallel", {}, job="124 M", is_predicted=True, reason="not traceable: it reads values")
        figure = draw_scaling(self.data(predicted=(why,)))
        assert "not traceable: it reads values" in texts_of(figure)
        assert figure.axes[0].get_xticks().tolist() == [1, 2, 4]

    def test_the_guess_is_a_mark(self):
        guess = line_of(draw_scaling(self.data(guess={2: 2.0, 4: 3.8})).axes[0], "your prediction")
        assert guess.get_xydata().tolist() == [[2, 2.0], [4, 3.8]]
        assert guess.get_linestyle() == "None"

    def test_the_frame_does_not_move_while_rounds_come_in(self):
        full = self.data()
        empty = self.data(lines=tuple(ScalingLine(one.name, {}, job=one.job) for one in full.lines), limit={})
        before, after = draw_scaling(empty), draw_scaling(full)
        assert before.get_size_inches().tolist() == after.get_size_inches().tolist()
        assert before.axes[0].axis() == after.axes[0].axis()
        assert texts_of(before).count("waiting for rounds …") == 2
        assert png(before) != png(after)

    def test_nor_does_its_width_when_the_prediction_comes(self):
        coming = ScalingLine("data_parallel", {}, job="124 M", is_predicted=True)
        before, after = draw_scaling(self.data(predicted=(coming,))), draw_scaling(self.data())
        assert before.get_size_inches().tolist() == after.get_size_inches().tolist()
        assert before.axes[0].get_xlim() == after.axes[0].get_xlim()
        assert "predicted when the race is over" in texts_of(before)

    def test_without_a_baseline_tokens_per_second_only(self):
        line = ScalingLine("zero_3", {2: Value(12e3, 11e3, 13e3)}, {2: Value(0.8, 0.8, 0.8)})
        figure = draw_scaling(ScalingData((2, 4), (line,), has_baseline=False), failed="stopped by the learner")
        (axes,) = figure.axes
        assert axes.get_ylabel() == "tokens/s"
        assert "ideal" not in [line.get_label() for line in axes.lines]
        assert axes.get_ylim()[1] > 13e3
        assert {"12.0 k [11.0 k … 13.0 k] on 2 ranks", "stopped by the learner"} <= set(texts_of(figure))

    @pytest.mark.parametrize("sizes", [(1,), (2,), (1, 2, 4, 8)])
    def test_any_world_sizes(self, sizes):
        lines = tuple(ScalingLine(f"s{i}", {n: Value(n, n, n) for n in sizes}) for i in range(7))
        assert png(draw_scaling(ScalingData(sizes, lines)))
