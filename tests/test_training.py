"""train and Rank: records, timelines, results, and what the steps are timed without."""

import math

import numpy
import pytest
import torch
from strategies import average

import labkit
from labkit.training import one_device, strategy_name


def test_training_on_ranks_follows_one_device():
    job = labkit.small_job()
    alone = labkit.train(one_device, world_size=1, steps=6, job=job, live=False)
    run = labkit.train(average, world_size=2, steps=6, job=job, live=False)
    assert [record["step"] for record in run.records] == [step for step in range(6) for _ in range(2)]
    losses = [record["loss"] for record in run.records if record["rank"] == 1]
    assert losses == pytest.approx([record["loss"] for record in alone.records], abs=1e-12)
    assert losses[-1] < losses[0]
    assert all(record["tokens"] == 8 * 32 for record in run.records)
    times = [record["time_s"] for record in run.records if record["rank"] == 0]
    assert times == sorted(times) and times[0] > 0


def test_the_timeline_holds_every_step_of_every_rank():
    run = labkit.train(average, world_size=2, steps=3, job=labkit.small_job(), live=False)
    for step in range(3):
        spans = run.timeline.only(step=step).spans
        for kind in ("forward", "backward", "optimizer"):
            assert sorted(span.rank for span in spans if span.kind == kind) == [0, 1]


@pytest.mark.parametrize("steps", [0, -1, 2.5, True])
def test_a_wrong_number_of_steps_is_refused(steps):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        labkit.train(average, steps=steps)


def logs(rank):
    for step in rank.steps(3):
        rank.log(loss=torch.tensor(0.5 + step), tokens=7)
        rank.log(extra=rank.rank)
    rank.log(after=1)
    return rank.mean(rank.rank, weight=rank.rank), rank.mean(rank.rank)


def test_records_collect_what_one_step_logs():
    run = labkit.launch(logs, world_size=3)
    own = [{k: v for k, v in record.items() if k != "time_s"} for record in run.records if record["rank"] == 2]
    assert own == [
        {"rank": 2, "step": 0, "loss": 0.5, "tokens": 7, "extra": 2},
        {"rank": 2, "step": 1, "loss": 1.5, "tokens": 7, "extra": 2},
        {"rank": 2, "step": 2, "loss": 2.5, "tokens": 7, "extra": 2},
        {"rank": 2, "step": 3, "after": 1},
    ]
    assert run.results == ((pytest.approx(5 / 3), pytest.approx(1.0)),) * 3


def waits_for_others(rank):
    import time

    for _ in rank.steps(2):
        rank.log(x=1)
        time.sleep(0.4 * rank.rank)
        rank.mean(1.0)


def test_reporting_is_not_part_of_a_step():
    run = labkit.launch(waits_for_others, world_size=2)
    fast, slow = (max(r["time_s"] for r in run.records if r["rank"] == rank) for rank in (0, 1))
    assert slow > 0.75
    assert fast < 0.4


@pytest.mark.parametrize("value", [torch.ones(2), "text", None, True])
def test_only_numbers_can_be_logged(value):
    with pytest.raises(labkit.RankError, match="log.x=…. takes"):
        labkit.launch(lambda rank: rank.log(x=value), world_size=1)


def test_numbers_of_numpy_can_be_logged():
    run = labkit.launch(lambda rank: rank.log(x=numpy.float32(0.5), n=numpy.int64(3)), world_size=1)
    (record,) = run.records
    assert (record["x"], record["n"]) == (0.5, 3)
    assert (type(record["x"]), type(record["n"])) == (float, int)


@pytest.mark.parametrize("name", ["rank", "step", "time_s"])
def test_what_every_record_has_cannot_be_logged(name):
    with pytest.raises(labkit.RankError, match=rf"log\({name}=…\): every record has a {name} of its own; use another name"):
        labkit.launch(lambda rank: rank.log(**{name: 7}), world_size=1)


@pytest.mark.parametrize("lens", [labkit.train, labkit.parity, labkit.scaling, labkit.holdings])
@pytest.mark.parametrize("answer", [None, 3, [None]])
def test_what_is_no_function_is_no_strategy(lens, answer):
    with pytest.raises(TypeError, match=r"a strategy is a function strategy\(rank, job\), not"):
        lens(answer)


@pytest.mark.parametrize("lens", [labkit.train, labkit.parity, labkit.scaling, labkit.holdings])
def test_what_is_no_job_is_refused_before_ranks_start(lens):
    with pytest.raises(TypeError, match=r"job=3 is no job; make one with labkit\.job\(\) or labkit\.small_job\(\)"):
        lens(average, job=3)


def test_unknown_kinds_of_spans_are_refused():
    def wrong(rank):
        with rank.span("forwards"):
            pass

    with pytest.raises(labkit.RankError, match="'forwards' is not a kind of span; use one of forward, backward"):
        labkit.launch(wrong, world_size=1)


def test_weights_of_zero_are_refused():
    with pytest.raises(labkit.RankError, match="weights of all ranks are 0"):
        labkit.launch(lambda rank: rank.mean(1.0, weight=0), world_size=2)


def test_names_show_the_options_of_a_partial():
    import functools

    assert strategy_name(average) == "average"
    assert strategy_name(functools.partial(average, factor=2.0)) == "average(factor=2.0)"


def test_inline_runs_in_this_process_and_leaves_it_as_it_was():
    seen = []

    def here(rank):
        x = torch.full((3,), 2.0)
        torch.distributed.all_reduce(x)
        seen.append(rank.rank)
        rank.log(x=1.0)
        return x

    torch.manual_seed(5)
    threads, expected = torch.get_num_threads(), torch.rand(3)
    torch.manual_seed(5)
    run = labkit.launch(here, inline=True)
    assert seen == [0]
    assert torch.equal(run.results[0], torch.full((3,), 2.0))
    assert run.traffic[0]["all_reduce"].calls == 1 and len(run.records) == 1
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads and not torch.distributed.is_initialized()
    with pytest.raises(ZeroDivisionError):
        labkit.launch(lambda rank: 1 / 0, inline=True)
    with pytest.raises(ValueError, match="one rank in this process, not 2"):
        labkit.launch(here, inline=True, world_size=2)
    assert labkit.launch(lambda rank: rank.world_size, world_size=2).results == (2, 2)


def test_records_of_a_failed_run_are_kept():
    def fails(rank):
        for step in rank.steps(5):
            rank.log(loss=1.0)
            if step == 3:
                raise ArithmeticError("enough")

    with pytest.raises(labkit.RankError, match="rank 0 raised ArithmeticError: enough") as caught:
        labkit.launch(fails, world_size=1)
    assert [record["step"] for record in caught.value.run.records] == [0, 1, 2]
    assert math.isclose(caught.value.run.records[0]["loss"], 1.0)
