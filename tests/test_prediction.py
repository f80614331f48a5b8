"""predict: the replay of a strategy's own traces, what is refused, and what is said about it. Pictures by their artists."""

import functools

import pytest
import torch
import torch.distributed as dist
from artists import texts_of
from strategies import average

import labkit
from labkit import hardware
from labkit.canvas import png
from labkit.forecast import WORLD_SIZES, forecast
from labkit.prediction import OTHER_CARD, UNVALIDATED, predict
from labkit.replay import Deadlock
from labkit.results import BASELINE, LIMIT, Scaling
from labkit.runs import judgement
from labkit.trace import NotTraceable
from labkit.training import one_device

PIPELINE = labkit.notebook.load("06")
SMALL = labkit.small_job(blocks=2)


@pytest.fixture(scope="module")
def prediction():
    return predict(average, world_size=2, job=SMALL)


def reads(rank, job):
    step = one_device(rank, job)
    return lambda tokens, targets: step(tokens, targets) * float(torch.ones(3).sum() * tokens.sum())


def everyone_else(rank, job):
    """Rank 0 makes one call more than the others."""
    step = average(rank, job)

    def uneven(tokens, targets):
        if rank.rank == 0:
            dist.all_reduce(torch.zeros(1))
        return step(tokens, targets)

    return uneven


def sums_activations(rank, job):
    """Like tensor parallelism: every rank has a share of the head's input, and partial results are summed in forward."""
    model = job.model().to(rank.device)
    optimizer = job.optimizer(model.parameters())

    def step(tokens, targets):
        x = model.embed(tokens)
        for block in model.blocks:
            x = block(x)
        dist.all_reduce(x.detach())
        loss = job.loss(model.head(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class TestPrediction:
    def test_numbers_follow_from_the_replay(self, prediction):
        card = hardware.RTX4090
        assert 0 < prediction.timeline.total_s <= 1.0001 * prediction.step_s
        assert prediction.tokens_per_s == SMALL.tokens_per_step / prediction.step_s
        flops = SMALL.flops_per_token * SMALL.tokens_per_step
        assert prediction.mfu == pytest.approx(flops / prediction.step_s / 2 / card.peak("float64"))
        assert "float64" in prediction.peak_name and "RTX 4090" in prediction.peak_name
        alone = predict(one_device, world_size=1, job=SMALL)
        assert prediction.speedup == pytest.approx(alone.step_s / prediction.step_s) and alone.speedup == 1
        assert prediction.timeline.ranks == (0, 1)
        assert prediction.badge == "predicted for 2 RTX 4090"

    def test_traffic_is_of_the_type_and_value_of_a_run(self, prediction):
        run = labkit.train(average, world_size=2, steps=1, job=SMALL, live=False)
        assert prediction.traffic == run.traffic and str(prediction.traffic) == str(run.traffic)

    def test_memory_is_by_kind_and_held_against_the_card(self, prediction):
        assert [held["weights"] for held in prediction.peak_bytes] == [8 * SMALL.parameters] * 2
        assert prediction.fits and "fits" in repr(prediction)
        narrow = hardware.RTX4090_SERVER.with_(usable_bytes=2**20)
        cramped = predict(average, world_size=2, on=narrow, job=SMALL)
        assert not cramped.fits and "does NOT fit" in repr(cramped)
        with pytest.raises(ValueError, match="takes .* GiB on one device.*read tokens_per_s instead"):
            cramped.speedup  # noqa: B018

    def test_faster_links_predict_shorter_steps(self, prediction):
        patched = predict(average, world_size=2, on=hardware.RTX4090_PATCHED_P2P, job=SMALL)
        assert patched.step_s < prediction.step_s

    def test_what_nobody_has_measured_is_called_unvalidated(self, prediction):
        middle, nine_of_ten = (f"{error:.1%}" for error in judgement.source_left_out())
        assert prediction.note == f"error on published runs: {middle} in the median, {nine_of_ten} in 9 of 10"
        assert predict(sums_activations, world_size=2, job=SMALL).note == UNVALIDATED
        assert predict(average, world_size=2, on="H100", job=SMALL).note == OTHER_CARD

    def test_the_picture_shows_ranks_memory_and_badge(self, prediction):
        figure = prediction.figure
        lanes, bars = figure.axes
        assert [label.get_text() for label in bars.get_yticklabels()] == ["rank 0", "rank 1"]
        assert [label.get_text() for label in lanes.get_yticklabels()] == ["rank 0", "rank 1"]
        assert "predicted for 2 RTX 4090" in texts_of(figure)
        assert png(figure)

    def test_the_same_code_is_traced_once(self, prediction, monkeypatch):
        monkeypatch.setattr("labkit.trace.run_ranks", None)
        again = predict(average, world_size=2, on="RTX 3090", job=SMALL)
        assert again.traces is prediction.traces and again.badge == "predicted for 2 RTX 3090"


class TestRefusals:
    @pytest.mark.parametrize(
        "request_, complaint",
        [
            ({"on": "RTX 9090"}, "card 'RTX 9090' is unknown; known are RTX 4090"),
            ({"on": 3}, "on=3 is no machine"),
            ({"world_size": 9}, r"has 8 cards, and 9 ranks need one each; use hardware.cluster\(servers=2\)"),
            ({"world_size": 0}, "world_size is 0"),
        ],
    )
    def test_wrong_requests_name_numbers_and_remedy(self, request_, complaint):
        with pytest.raises(ValueError, match=complaint):
            predict(average, **request_)

    def test_what_is_no_strategy(self):
        with pytest.raises(TypeError, match="a strategy is a function"):
            predict("average")

    def test_a_layout_that_does_not_divide(self):
        with pytest.raises(ValueError, match="2 blocks do not fill 8 parts"):
            predict(PIPELINE.pipeline_parallel, world_size=8, job=SMALL)

    def test_values_that_are_not_there(self):
        with pytest.raises(NotTraceable, match="reads is not traceable: reads the value of a tensor"):
            predict(reads, world_size=2, job=SMALL)

    def test_ranks_that_wait_for_each_other(self):
        with pytest.raises(Deadlock, match="rank 0"):
            predict(everyone_else, world_size=2, job=SMALL)


class TestForecast:
    @pytest.fixture(scope="class", autouse=True)
    def small_preset(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("labkit.jobs.RTX_4090", labkit.small_job(blocks=2))
            yield

    def test_every_strategy_gets_a_line_or_a_reason(self):
        made = forecast({"dp": average, "reads": reads, "late": everyone_else, "2 stages": PIPELINE.pipeline_parallel})
        assert set(made.speedups["dp"]) == set(WORLD_SIZES) and made.speedups["dp"][1] == 1
        assert set(made.speedups["2 stages"]) == {1, 2}  # 2 blocks do not fill 4 parts
        assert made.reasons["reads"].startswith("not traceable: reads the value")
        assert made.reasons["late"].startswith("deadlock: ")
        assert made.badge == "predicted for 8 RTX 4090"

    def test_weak_scaling_grows_the_batch(self):
        strong, weak = forecast({"dp": average}), forecast({"dp": average}, batch="per_rank")
        assert weak.speedups["dp"][8] > strong.speedups["dp"][8]

    def test_a_failure_never_fails_a_race(self, monkeypatch):
        monkeypatch.setattr("labkit.forecast.traced_several", lambda *_, **__: 1 / 0)
        made = forecast({"dp": average})
        assert made.speedups == {} and "division by zero" in made.reasons["dp"]

    def test_a_races_picture_gains_the_line(self):
        names = {"dp": average, "half": functools.partial(average, factor=0.5)}
        race = Scaling(
            job=SMALL, badge="2 CPU cores", batch="global", names=tuple(names), world_sizes=(2,), strategies=names
        )
        race.add_round(2, {BASELINE: 1.0, LIMIT: 0.5, "dp": 0.6, "half": 0.7})
        before, after = texts_of(race.draw()), texts_of(race.figure)
        assert before.count("predicted when the race is over") == 2
        assert "predicted for 8 RTX 4090" in after and "job of the dashed lines" not in after  # one job for all lines
        assert sum(text.startswith("predicted ") and text.endswith("on 2, 4, 8") for text in after) == 2
