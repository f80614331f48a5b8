"""Pictures, by the data of their artists: what is drawn, where, in which colour; never pixels, never speeds."""

import io
import json
import math
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_rgba
from PIL import Image

from labkit.canvas import KIND_COLOURS, RANK_COLOURS, Drawing, frame, panel, plain, png, rank_colour, short
from labkit.draw import (
    ScalingData,
    ScalingLine,
    TrainingPicture,
    draw_placement,
    draw_records,
    draw_scaling,
    draw_timeline,
    draw_training,
)
from labkit.draw_placement import SAME_COLOUR
from labkit.series import loss_curve, number_curves, number_names, rate_curve, running_median
from labkit.timeline import Span, Timeline

Value = namedtuple("Value", "median low high")


def records_of(steps, ranks=2, **more):
    """Each rank r needs 1 + r seconds for the first step and 0.5 + 0.1 r for another; 100 tokens a step."""
    return [
        {"rank": r, "step": s, "time_s": 1 + r + s * (0.5 + 0.1 * r), "loss": 5.0 - s / 10, "tokens": 100, **more}
        for s in range(steps)
        for r in range(ranks)
    ]


def texts_of(figure):
    inside = [text.get_text() for axes in figure.axes for text in axes.texts]
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in figure.texts] + inside + legends


def line_of(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def boxes_of(axes, kind):
    """[(left, top, right, bottom)] of the boxes of one kind, in axis units."""
    found = []
    for boxes in (boxes for boxes in axes.collections if boxes.get_label() == kind):
        for path in boxes.get_paths():
            (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.append((left, top, right, bottom))
    return sorted(found)


class TestSeries:
    def test_the_loss_is_that_of_the_lowest_rank_that_reported_one(self):
        records = [{"rank": 1, "step": 0, "loss": 4.0}, {"rank": 0, "step": 0, "loss": 3.0}, {"rank": 0, "step": 1}]
        records += [
            {"rank": 3, "step": 1, "loss": 2.5},
            {"rank": 2, "step": 1, "loss": 2.0},
            {"rank": 0, "step": 2, "loss": None},
        ]
        assert loss_curve(records) == ([0, 1], [3.0, 2.0])

    def test_the_rate_is_that_of_the_slowest_rank(self):
        steps, rates = rate_curve(records_of(4))
        assert steps == [0, 1, 2, 3]
        assert rates == pytest.approx([100 / 2, 100 / 0.6, 100 / 0.6, 100 / 0.6])

    def test_a_record_every_five_steps_stands_for_five_steps(self):
        every = [record for record in records_of(11) if record["step"] % 5 == 0]
        assert rate_curve(every)[1][1:] == pytest.approx([100 / 0.6, 100 / 0.6])

    def test_records_without_time_or_tokens_have_no_rate(self):
        assert rate_curve([{"rank": 0, "step": 0, "loss": 1.0}, {"rank": 0, "step": 1, "time_s": 2.0}]) == ([], [])

    def test_numbers_by_rank_and_by_place_where_the_step_is_missing(self):
        records = [{"rank": 1, "step": 4, "a": 1}, {"rank": 0, "step": None, "a": 2}, {"rank": 0, "a": 3, "b": None}]
        assert number_names(records) == ("a",)
        assert number_curves(records, "a") == {0: ([0, 1], [2.0, 3.0]), 1: ([4], [1.0])}

    def test_running_median(self):
        assert running_median([1, 9, 2, 3, 4], 3).tolist() == [5.0, 2.0, 3.0, 3.0, 3.5]
        assert running_median([]).tolist() == []


class TestCanvas:
    def test_png_is_twice_the_display_width_and_keeps_flat_colours(self):
        figure = frame(200, title="a title", badge="measured on 2 CPU cores")
        panel(figure, 60, 40, 300, 100).set_facecolor(RANK_COLOURS[0])
        data, width_px = png(figure)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        assert (width_px, image.size) == (900, (1800, 400))
        assert image.getpixel((2, 2)) == (255, 255, 255)
        assert image.getpixel((300, 200)) == tuple(bytes.fromhex(RANK_COLOURS[0][1:]))

    def test_a_picture_of_many_colours_is_packed_too(self):
        figure = frame(300)
        panel(figure, 0, 0, 900, 300).imshow(np.random.default_rng(0).random((300, 900, 3)))
        assert Image.open(io.BytesIO(png(figure)[0])).size == (1800, 600)

    def test_a_notebook_gets_a_png_and_a_text_that_never_changes(self):
        bundles = [draw_training(records_of(n))._repr_mimebundle_() for n in (0, 5)]
        assert bundles[0][0]["text/plain"] == bundles[1][0]["text/plain"]
        assert bundles[0][0]["image/png"] != bundles[1][0]["image/png"]
        assert bundles[0][1] == {"image/png": {"width": 900}}

    def test_only_what_moved_is_drawn_anew_with_the_same_result(self):
        reference = [5.0] * 40
        picture = TrainingPicture(steps=40, title="t", reference=reference)
        for steps in (0, 11, 12, 40):
            shown = picture.update(records_of(steps, 3))
            fresh = draw_training(records_of(steps, 3), steps=40, title="t", reference=reference)
            assert png(shown) == png(fresh), steps

    def test_the_badge_of_a_prediction_is_dashed(self):
        styles = [frame(100, badge=badge).texts[-1].get_bbox_patch().get_linestyle() for badge in ("measured", "predicted for")]
        assert styles == ["-", "--"]

    def test_numbers_in_few_characters(self):
        assert [short(x) for x in (0, 2.3145, 847.2, 14_200, 3_222_528, -1500)] == [
            "0.00",
            "2.31",
            "847",
            "14.2 k",
            "3.22 M",
            "-1.50 k",
        ]
        assert [plain(x) for x in (0, 0.5, 250, 12_500, 3e6)] == ["0", "0.5", "250", "12.5 k", "3 M"]

    def test_nothing_global_is_changed_and_pyplot_stays_out(self):
        code = """
import json, sys
import matplotlib
def settings():  # to read the backend would import pyplot
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from labkit.draw import draw_training, png
png(draw_training([], title="t", badge="b"))
print(json.dumps(["matplotlib.pyplot" in sys.modules, before == settings()]))
"""
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert json.loads(out) == [False, True]

    def test_a_learner_s_dark_style_does_not_reach_the_background(self):
        before = rcParams["axes.facecolor"]
        rcParams["axes.facecolor"] = rcParams["figure.facecolor"] = "black"
        try:
            figure = draw_training(records_of(3))
        finally:
            rcParams["axes.facecolor"] = rcParams["figure.facecolor"] = before
        assert {figure.get_facecolor(), *(axes.get_facecolor() for axes in figure.axes)} == {to_rgba("white")}


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


class TestTimeline:
    def spans(self):
        spans = [Span(0, "compute", "forward", "f", 10.0, 10.1, {"micro_batch": 0})]
        spans += [Span(0, "compute", "backward", "b", 10.3, 10.5, {"micro_batch": 0})]
        spans += [Span(1, "compute", "forward", "f", 10.1, 10.2, {"micro_batch": 13, "chunk": 1})]
        spans += [
            Span(1, "communicate", "communicate", "send", 10.2, 10.25),
            Span(1, "communicate", "communicate", "send", 10.22, 10.3),
        ]
        return spans

    def test_boxes_stand_where_the_spans_are_and_rank_0_on_top(self):
        (axes,) = draw_timeline([Timeline(self.spans())], ["measured"], badge="b").axes
        (first, second) = boxes_of(axes, "forward")
        assert (first[0], first[2], second[0], second[2]) == pytest.approx((0, 100, 100, 200))
        assert axes.get_ylim()[0] > axes.get_ylim()[1]
        assert first[3] < second[1]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
        assert axes.get_xlabel() == "time (ms)"

    def test_idle_boxes_are_what_the_bubble_counts(self):
        timeline = Timeline(self.spans())
        (axes,) = draw_timeline([timeline]).axes
        drawn = sorted((left / 1e3 + 10, right / 1e3 + 10) for left, _, right, _ in boxes_of(axes, "idle"))
        assert np.allclose(drawn, sorted(timeline.idle(0) + timeline.idle(1)))

    def test_communication_is_thinner_below_its_rank_hatched_and_side_by_side(self):
        (axes,) = draw_timeline([Timeline(self.spans())]).axes
        one, two = boxes_of(axes, "communicate")
        compute = boxes_of(axes, "forward")[1]
        assert compute[3] == one[1] < one[3] == two[1]
        assert one[3] - one[1] < compute[3] - compute[1]
        assert all(boxes.get_hatch() for boxes in axes.collections if boxes.get_label() == "communicate")
        assert not any(boxes.get_hatch() for boxes in axes.collections if boxes.get_label() != "communicate")

    def test_kinds_have_their_colours_and_later_chunks_are_paler(self):
        (axes,) = draw_timeline([Timeline(self.spans())]).axes
        colours = {c.get_label(): [tuple(f) for f in c.get_facecolors()] for c in axes.collections}
        assert colours["backward"] == [to_rgba(KIND_COLOURS["backward"])]
        plain_one, pale_one = colours["forward"]
        assert plain_one == to_rgba(KIND_COLOURS["forward"])
        assert all(pale >= full for pale, full in zip(pale_one, plain_one, strict=True)) and pale_one != plain_one

    def test_micro_batch_numbers_where_they_fit(self):
        wide = Timeline(self.spans())
        assert [text.get_text() for text in draw_timeline([wide]).axes[0].texts] == ["0", "0", "13"]
        long = Timeline([*wide.spans, Span(0, "compute", "optimizer", "o", 40, 41)])
        assert [text.get_text() for text in draw_timeline([long]).axes[0].texts] == []

    def test_four_ranks_with_sixteen_micro_batches_bear_all_their_numbers(self):
        spans = []
        for rank in range(4):
            for m in range(16):
                spans.append(Span(rank, "compute", "forward", "f", rank + m, rank + m + 1, {"micro_batch": m}))
                start_s = 19 + 2 * (3 - rank) + 2 * m
                spans.append(Span(rank, "compute", "backward", "b", start_s, start_s + 2, {"micro_batch": m}))
        assert len(draw_timeline([Timeline(spans)]).axes[0].texts) == 128

    def test_two_timelines_share_the_axis_and_name_their_bubbles(self):
        measured, ideal = Timeline(self.spans()), Timeline([Span(0, "compute", "forward", "f", 0, 0.3)])
        figure = measured.draw(above=ideal, title=("measured", "ideal"), badge="b")
        top, below = figure.axes
        assert top.get_position().y0 > below.get_position().y1
        assert top.get_xlim() == below.get_xlim() == pytest.approx((0, 500))
        assert top.get_title("left") == "measured"
        assert top.get_title("right") == f"500 ms  ·  bubble {100 * measured.bubble:.1f} %"
        assert below.get_title("right").endswith("bubble 0.0 %")

    def test_unlike_units_can_be_normalised_and_slots_named(self):
        ideal = Timeline([Span(0, "compute", "forward", "f", 0, 33)])
        assert draw_timeline([Timeline(self.spans()), ideal], normalised=True).axes[0].get_xlim() == pytest.approx((0, 100))
        (axes,) = draw_timeline([ideal], unit="slots").axes
        assert axes.get_xlim() == (0, 33)
        assert (axes.get_xlabel(), axes.get_title("right")) == ("time (slots)", "33 slots  ·  bubble 0.0 %")

    def test_empty_and_compute_free_timelines(self):
        assert png(draw_timeline([Timeline([])], ["nothing"]))
        assert png(draw_timeline([Timeline([Span(0, "communicate", "communicate", "all_reduce", 1, 1)])]))
        with pytest.raises(ValueError, match="at least one"):
            draw_timeline([])


class TestScaling:
    def data(self, **changes):
        by_hand = ScalingLine(
            "data_parallel", {2: Value(1.7, 1.6, 1.8), 4: Value(2.9, 2.5, 3.0)}, {4: Value(0.93, 0.9, 0.96)}, "3 M"
        )
        ahead = ScalingLine("on 8 RTX 4090", {2: Value(1.9, 1.9, 1.9)}, job="124 M", is_predicted=True)
        limit = {2: Value(1.9, 1.8, 2.0), 4: Value(3.5, 3.3, 3.6)}
        return ScalingData(**{"world_sizes": (2, 4), "lines": (by_hand, ahead), "limit": limit, **changes})

    def test_lines_spread_limit_and_ideal(self):
        figure = draw_scaling(self.data(), title="race", badge="measured on 2 CPU cores")
        (axes,) = figure.axes
        by_hand, ahead = axes.containers
        assert by_hand.lines[0].get_ydata().tolist() == [1.7, 2.9]
        assert by_hand.lines[0].get_xdata() == pytest.approx([2, 4], abs=0.1)
        bars = [bar[:, 1].tolist() for bar in by_hand.lines[2][0].get_segments()]
        assert bars == [pytest.approx([1.6, 1.8]), pytest.approx([2.5, 3.0])]
        assert (by_hand.lines[0].get_linestyle(), ahead.lines[0].get_linestyle()) == ("-", "--")
        assert line_of(axes, "ideal").get_xydata().tolist() == [[1, 1], [4, 4]]
        assert line_of(axes, "this machine's limit").get_xydata().tolist() == [[1, 1], [2, 1.9], [4, 3.5]]
        band = axes.collections[0].get_paths()[0].vertices
        assert {tuple(point) for point in band} >= {(2, 1.8), (2, 2.0), (4, 3.3), (4, 3.6), (1, 1)}
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("ranks", "speed-up over one device")
        assert axes.get_xticks().tolist() == [1, 2, 4]

    def test_the_legend_names_share_jobs_and_predictions(self):
        texts = texts_of(draw_scaling(self.data(guess={4: 3.8})))
        assert {"data_parallel", "2.90 [2.50 … 3.00] on 4 ranks", "93 % of this machine's limit"} <= set(texts)
        assert {"job of data_parallel", "3 M", "job of on 8 RTX 4090", "124 M"} <= set(texts)
        assert {"predicted 1.90 [1.90 … 1.90] on 2 ranks", "your prediction", "3.8 on 4 ranks"} <= set(texts)

    def test_the_guess_is_a_mark(self):
        guess = line_of(draw_scaling(self.data(guess={2: 2.0, 4: 3.8})).axes[0], "your prediction")
        assert guess.get_xydata().tolist() == [[2, 2.0], [4, 3.8]]
        assert guess.get_linestyle() == "None"

    def test_the_frame_does_not_move_while_rounds_come_in(self):
        full = self.data()
        empty = self.data(
            lines=tuple(ScalingLine(o.name, {}, job=o.job, is_predicted=o.is_predicted) for o in full.lines), limit={}
        )
        before, after = draw_scaling(empty), draw_scaling(full)
        assert before.get_size_inches().tolist() == after.get_size_inches().tolist()
        assert before.axes[0].axis() == after.axes[0].axis()
        assert texts_of(before).count("waiting for rounds …") == 3
        assert png(before) != png(after)

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


class TestPlacement:
    def account(self):
        rows = [
            {"rank": r, "kind": "weights", "name": "embed", "bytes": 4096, "fingerprint": "w", "shape": (8, 128)}
            for r in range(4)
        ]
        rows += [{"rank": r, "kind": "optimizer", "name": "embed", "bytes": 2048, "fingerprint": f"o{r}"} for r in range(4)]
        rows += [{"rank": r, "kind": "gradients", "name": "part", "bytes": 10, "fingerprint": f"g{r % 2}"} for r in range(4)]
        return [*rows, {"rank": 3, "kind": "weights", "name": "head", "bytes": 1_000_000, "fingerprint": "h"}]

    def cells(self, figure):
        """Colours of all cells by row, from the top: [[colour per rank]]."""
        rows = {}
        for box in figure.patches + figure.artists:
            if box is not figure.patch and round(box.get_height() * figure.get_figheight() * 100) == 21:
                rows.setdefault(round(-box.get_y(), 6), []).append(box.get_facecolor())
        return [rows[y] for y in sorted(rows)]

    def test_replicated_is_grey_and_own_parts_have_rank_colours(self):
        weights, head, optimizer, gradients = self.cells(draw_placement(self.account(), badge="b"))
        assert set(weights) == {to_rgba(SAME_COLOUR)}
        assert len(set(optimizer)) == 4 and to_rgba(SAME_COLOUR) not in optimizer
        assert head[:3] == [to_rgba("white")] * 3
        assert head[3] == optimizer[3]
        assert gradients == [optimizer[0], optimizer[1]] * 2

    def test_sizes_sums_and_names_are_written(self):
        texts = texts_of(draw_placement(self.account(), title="what lives where", badge="b"))
        assert texts.count("4.10 kB") == 4
        assert texts.count("8 × 128") == 4
        assert texts.count("10 B") == 4
        assert (texts.count("6.15 kB"), texts.count("1.01 MB")) == (3, 1)
        assert {"weights", "optimizer", "embed", "head", "rank 3", "the same on every rank", "not on this rank"} <= set(texts)

    def test_unknown_fingerprints_are_not_called_the_same(self):
        rows = [{"rank": r, "kind": "weights", "name": "w", "bytes": 1, "fingerprint": None} for r in range(2)]
        (cells,) = self.cells(draw_placement(rows))
        assert cells[0] != cells[1]

    def test_one_rank_has_nothing_to_compare_with(self):
        (cells,) = self.cells(draw_placement([{"rank": 0, "kind": "weights", "name": "w", "bytes": 1, "fingerprint": "x"}]))
        assert cells[0] != to_rgba(SAME_COLOUR)

    def test_an_empty_account_is_refused(self):
        with pytest.raises(ValueError, match="empty"):
            draw_placement([])


def test_all_pictures_are_drawings():
    pictures = [draw_training([]), draw_records([]), draw_scaling(ScalingData((2,), ())), draw_timeline([Timeline([])])]
    assert all(isinstance(picture, Drawing) for picture in pictures)
