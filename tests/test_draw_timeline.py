"""Timelines as pictures, by the data of their artists."""

import numpy as np
import pytest
from artists import boxes_of
from matplotlib.colors import to_rgba

from labkit.canvas import KIND_COLOURS, png
from labkit.draw_timeline import draw_timeline
from labkit.timeline import Span, Timeline


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
        three = measured.draw(above=[ideal, measured], title=["one", "two", "three"])
        assert [axes.get_title("left") for axes in three.axes] == ["one", "two", "three"]

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
