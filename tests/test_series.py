"""Curves out of records: whose loss, whose time, and gaps."""

import pytest
from artists import records_of

from labkit.series import loss_curve, number_curves, number_names, rate_curve, running_median


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
