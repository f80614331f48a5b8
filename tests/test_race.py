"""scaling: paired ratios, the machine's limit, caps and refusals. No speed is asserted."""

import functools
import statistics

import pytest
from strategies import average

import labkit
from labkit.results import BASELINE, LIMIT, Ratio, Scaling


def rounds(scaling, world_size, times):
    for row in times:
        scaling.add_round(world_size, row)
    return scaling


def made(batch="global", names=("dp",)):
    return Scaling(job=labkit.small_job(), badge="2 CPU cores", batch=batch, names=names, world_sizes=(2,))


def test_figures_are_medians_of_paired_ratios():
    # One slow round hits all contenders; the ratio of medians would be 2.0, the paired one is exact.
    times = [{BASELINE: 2.0 * f, LIMIT: 1.0 * f, "dp": 1.25 * f} for f in (1.0, 1.0, 7.0, 2.0, 3.0)]
    scaling = rounds(made(), 2, times)
    assert scaling.speedup("dp", 2) == Ratio(1.6, 1.6, 1.6)
    assert scaling.limit(2) == Ratio(2.0, 2.0, 2.0)
    assert scaling.share("dp", 2) == Ratio(0.8, 0.8, 0.8)
    rates = [256 / row["dp"] for row in times]
    assert scaling.tokens_per_s("dp", 2).median == pytest.approx(statistics.median(rates))
    assert scaling.tokens_per_s(BASELINE, 2).median == pytest.approx(128 / 2)


def test_weak_scaling_compares_tokens_per_second():
    scaling = rounds(made("per_rank"), 2, [{BASELINE: 1.0, LIMIT: 1.0, "dp": 1.25}] * 3)
    assert scaling.speedup("dp", 2).median == pytest.approx(1.6)
    assert scaling.limit(2).median == pytest.approx(2.0)
    assert scaling.share("dp", 2).median == pytest.approx(0.8)
    assert scaling.tokens_per_s("dp", 2).median == pytest.approx(2 * 256 / 1.25)


def test_without_a_baseline_there_are_tokens_per_second_only():
    scaling = rounds(made(), 2, [{LIMIT: 1.0, "dp": 1.25}] * 3)
    assert not scaling.has_baseline
    with pytest.raises(ValueError, match="does not fit one device"):
        scaling.speedup("dp", 2)
    assert scaling.share("dp", 2).median == pytest.approx(0.8)
    assert "does not fit one device" in scaling.table()


def test_the_spread_is_the_middle_eight_tenths():
    times = [{BASELINE: 1.0 + k, LIMIT: 1.0, "dp": 1.0} for k in range(11)]
    assert rounds(made(), 2, times).speedup("dp", 2) == Ratio(6.0, 2.0, 10.0)


def test_names_and_sizes_that_were_not_raced_are_refused():
    scaling = rounds(made(), 2, [{BASELINE: 1.0, LIMIT: 1.0, "dp": 1.0}])
    with pytest.raises(ValueError, match="'tp' was not raced; there are dp"):
        scaling.speedup("tp", 2)
    with pytest.raises(ValueError, match="4 ranks were not raced; there are 2"):
        scaling.limit(4)


def test_a_race_times_every_contender_in_every_round():
    job = labkit.small_job()
    contenders = {"right": average, "half": functools.partial(average, factor=0.5)}
    scaling = labkit.scaling(contenders, world_sizes=(1, 2), repeats=4, job=job, live=False)
    for n in (1, 2):
        assert len(scaling.rounds(n)) == 4
        assert all(set(row) == {BASELINE, LIMIT, "right", "half"} for row in scaling.rounds(n))
        assert all(seconds > 0 for row in scaling.rounds(n) for seconds in row.values())
    for name in contenders:
        ratio = scaling.speedup(name, 2)
        assert 0 < ratio.low <= ratio.median <= ratio.high
    assert "right" in scaling.table() and "CPU core" in scaling.table()


def test_a_cap_in_seconds_still_runs_three_rounds():
    scaling = labkit.scaling(average, world_sizes=2, repeats=50, seconds=0.01, job=labkit.small_job(), live=False)
    assert len(scaling.rounds(2)) == 3


def test_weak_scaling_gives_each_rank_a_batch():
    def sizes(rank, job):
        step = average(rank, job)
        assert job.batch_size == 8 * rank.world_size

        def counted(tokens, targets):
            assert tokens.shape == (8 * rank.world_size, 32)
            return step(tokens, targets)

        return counted

    scaling = labkit.scaling(sizes, world_sizes=(2,), repeats=3, batch="per_rank", job=labkit.small_job(), live=False)
    assert len(scaling.rounds(2)) == 3


@pytest.mark.parametrize(
    "request_, complaint",
    [
        ({"strategies": []}, "at least one strategy"),
        ({"strategies": [average, average]}, "two strategies are called average"),
        ({"strategies": {"limit": average}}, "'limit' is a line of its own"),
        ({"strategies": average, "world_sizes": (0,)}, "at least 1"),
        ({"strategies": average, "world_sizes": ()}, "at least 1"),
        ({"strategies": average, "batch": "weak"}, "strong scaling"),
        ({"strategies": average, "repeats": 0}, "at least 1"),
        ({"strategies": average, "seconds": -1}, "above 0"),
        ({"strategies": average, "seconds": "8"}, "above 0"),
        ({"strategies": average, "world_sizes": 2.5}, "at least 1"),
        ({"strategies": {3: average}}, "the name 3 of a strategy must be text"),
    ],
)
def test_wrong_requests_are_refused_before_anything_starts(request_, complaint):
    with pytest.raises(ValueError, match=complaint):
        labkit.scaling(**request_)


def test_contenders_may_be_called_anything():
    contenders = dict.fromkeys(("rank", "step", "time_s"), average)
    scaling = labkit.scaling(contenders, world_sizes=2, repeats=2, job=labkit.small_job(), live=False)
    assert [set(row) for row in scaling.rounds(2)] == [{BASELINE, LIMIT, *contenders}] * 2


def test_a_failing_strategy_ends_the_race():
    def fails(rank, job):
        def step(tokens, targets):
            raise ArithmeticError("no")

        return step

    with pytest.raises(labkit.RankError, match="rank 0 raised ArithmeticError: no"):
        labkit.scaling(fails, world_sizes=(2,), job=labkit.small_job(), live=False)
