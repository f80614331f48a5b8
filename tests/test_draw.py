"""Pictures of a run, by the data of their artists: what is drawn, where, in which colour; never pixels or speeds."""

import math

import numpy as np
import pytest
from artists import line_of, records_of, texts_of
from matplotlib.colors import to_rgba

from labkit.canvas import Drawing, png, rank_colour
from labkit.draw import ScalingData, TrainingPicture, draw_records, draw_scaling, draw_timeline, draw_training
from labkit.timeline import Timeline


class TestTraining:
    def test_loss_and_rate_stand_side_by_side(self):
        figure = draw_training(records_of(30), title="data_parallel", badge="measured on 2 CPU cores", steps=50)
        loss, rate = figure.axes
        assert [axes.get_ylabel() for axes in figure.axes] == ["loss (nats per token)", "tokens/s"]
        assert [axes.get_xlabel() for axes in figure.axes] == ["step", "step"]
        assert line_of(loss, "loss").get_xydata()[[0, -1]].tolist() == [[0, 5.0], [29, pytest.approx(2.1)]]
        assert line_of(rate, "running median").get_xydata()[[0, -1]].tolist() == [
            [1, pytest.approx(100 / 0.6)],
            [29, pytest.approx(100 / 0.6)],
        ]
        assert loss.get_position().x1 < rate.get_position().x0
        assert {"data_parallel", "measured on 2 CPU cores"} <= set(texts_of(figure))

    @pytest.mark.parametrize("shown", [0, 1, 20])
    def test_steps_fix_the_step_axis(self, shown):
        low, high = draw_training(records_of(shown), steps=50).axes[0].get_xlim()
        assert (low < 0, 49 < high < 51) == (True, True)

    @pytest.mark.parametrize("records", [[], records_of(1), records_of(2), [{"rank": 1, "step": 3, "time_s": 0.2}]])
    def test_few_or_incomplete_records_are_drawn(self, records):
        assert png(draw_training(records))[1] == 900

    def test_a_loss_that_is_not_finite_is_named(self):
        records = records_of(10)
        for record in records:
            record["loss"] = [record["loss"], math.nan, math.inf][(record["step"] > 5) + (record["step"] > 7)]
        figure = draw_training(records)
        assert "not finite from step 6 on" in texts_of(figure)
        assert np.isfinite(figure.axes[0].get_ylim()).all()
        assert png(figure)
        assert png(draw_training([{**record, "loss": math.nan} for record in records]))

    def test_limits_hold_the_data(self):
        for low, high in ((2.0, 5.0), (3.0, 3.0), (0.0, 0.0), (-2.0, 1e-7), (1e6, 1.00001e6)):
            records = [{"rank": 0, "step": s, "loss": loss} for s, loss in enumerate((low, high))]
            bottom, top = draw_training(records).axes[0].get_ylim()
            assert bottom <= low <= high < top

    def test_one_device_is_dashed(self):
        figure = draw_training(records_of(3), reference=[5.0, 4.8, 4.6, 4.4])
        one_device = line_of(figure.axes[0], "one device")
        assert one_device.get_linestyle() == "--"
        assert one_device.get_xydata().tolist() == [[0, 5.0], [1, 4.8], [2, 4.6], [3, 4.4]]

    def test_a_failed_run_leaves_its_marked_picture(self):
        figure = draw_training(records_of(5), failed="rank 1 raised ValueError: bad\nTraceback: …")
        assert "rank 1 raised ValueError: bad" in texts_of(figure)
        assert len(line_of(figure.axes[0], "loss").get_xdata()) == 5
        assert all(axes.get_facecolor() != to_rgba("white") for axes in figure.axes)

    def test_a_third_panel_only_for_further_numbers(self):
        records = records_of(5, grad_norm=1.0, a=2.0)
        figure = draw_training(records, steps=5)
        assert [axes.get_ylabel() for axes in figure.axes[2:]] == ["a", "grad_norm"]
        assert [line.get_color() for line in figure.axes[2].lines] == [rank_colour(0), rank_colour(1)]
        assert {"rank 0", "rank 1"} <= set(texts_of(figure))
        assert len({tuple(axes.get_xlim()) for axes in figure.axes}) == 1

    def test_the_figure_stays_the_same_between_frames(self):
        picture = TrainingPicture(steps=20)
        assert picture.update(records_of(2)) is picture.update(records_of(9))


class TestRecords:
    def test_a_panel_per_name_and_a_colour_per_rank(self):
        records = [{"rank": r, "step": s, "time_s": 0.0, "alpha": r * s, "beta": s} for r in range(3) for s in range(4)]
        figure = draw_records(records, badge="measured on 2 CPU cores")
        assert [axes.get_ylabel() for axes in figure.axes] == ["alpha", "beta"]
        lines = figure.axes[0].lines
        assert [line.get_color() for line in lines] == [rank_colour(rank) for rank in range(3)]
        assert lines[2].get_ydata() == [0, 2, 4, 6]

    @pytest.mark.parametrize("names", [0, 1, 2, 3, 4, 7])
    def test_any_number_of_names(self, names):
        figure = draw_records([{"rank": 0, "step": 0, **{f"n{i}": i for i in range(names)}}], failed="stopped")
        assert len(figure.axes) == names
        assert png(figure)
        corners = [axes.get_position() for axes in figure.axes]
        assert all(0 < one.x0 < one.x1 < 1 and 0 < one.y0 < one.y1 < 1 for one in corners)


def test_all_pictures_are_drawings():
    pictures = [draw_training([]), draw_records([]), draw_scaling(ScalingData((2,), ())), draw_timeline([Timeline([])])]
    assert all(isinstance(picture, Drawing) for picture in pictures)
