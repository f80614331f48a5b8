"""The strategies of notebook 05: equal to one device stage by stage, with the traffic of the formula; wrong ones refused."""

import random
from functools import partial
from itertools import combinations, pairwise
from types import SimpleNamespace

import pytest
import torch
from pipelines import assert_weights_of_one_device

import labkit
from labkit.checks import stages
from labkit.checks.nb05 import least_largest
from labkit.notebook import find, load, strategy_cells
from labkit.training import one_device

NAME = "05_model_parallel"
lesson = load(NAME)
STRATEGIES = {"model_parallel": lesson.model_parallel, "torch_stages": lesson.torch_stages}
every_strategy = pytest.mark.parametrize("name", STRATEGIES)
tied_or_not = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
pytestmark = pytest.mark.filterwarnings("ignore:.*CPU cores")


@every_strategy
@tied_or_not
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_equals_one_device(name, tied, world_size):
    same = labkit.parity(STRATEGIES[name], world_size=world_size, steps=4, job=labkit.small_job(tied=tied))
    assert same, same.diagnosis
    assert same.max_error < 1e-11


@tied_or_not
@pytest.mark.parametrize("world_size, cut", [(2, None), (3, None), (4, None), (6, None), (2, [1, 5]), (3, [4, 1, 1])], ids=str)
def test_every_stage_ends_with_the_weights_of_one_device(tied, world_size, cut):
    job = labkit.small_job(tied=tied, batch_size=3)
    assert_weights_of_one_device(partial(lesson.model_parallel, cut=cut), job, world_size)


@pytest.mark.parametrize("frozen", ["embed", ("embed", "blocks.0"), "head", "blocks.3"], ids=str)
def test_frozen_parts(frozen):
    for tied in (False, True):
        assert labkit.parity(lesson.model_parallel, world_size=2, job=labkit.small_job(frozen=frozen, tied=tied))
    assert labkit.parity(partial(lesson.model_parallel, cut=[1, 5]), world_size=2, job=labkit.small_job(frozen="embed"))


def test_other_precisions():
    for changes in ({"dtype": torch.float32}, {"dtype": torch.bfloat16}, {"dtype": torch.bfloat16, "master_weights": True}):
        assert labkit.parity(lesson.model_parallel, world_size=2, job=labkit.small_job(**changes)), changes


@tied_or_not
@pytest.mark.parametrize("world_size", [2, 4])
def test_traffic_is_that_of_the_formula(tied, world_size):
    """Two messages of B T D numbers of 8 bytes per link and step; a tied weight is added up between the two ends."""
    job, steps = labkit.small_job(tied=tied, batch_size=3), 2
    run = labkit.train(lesson.model_parallel, world_size=world_size, steps=steps, job=job, device="cpu", live=False)
    for rank, sent in enumerate(run.traffic):
        inner, end = 0 < rank < world_size - 1, rank in (0, world_size - 1)
        messages = steps * (2 if inner else 1)
        assert sent["send"].calls == messages == sent["recv"].calls
        assert sent["send"].payload_bytes == messages * 3 * job.seq_len * job.d_model * 8 == sent["send"].wire_bytes
        assert set(sent) - {"send", "recv"} == ({"all_reduce"} if tied and end else set())
        if tied and end:
            shared = steps * job.vocab_size * job.d_model * 8
            assert (sent["all_reduce"].calls, sent["all_reduce"].payload_bytes) == (steps, shared)
            assert sent["all_reduce"].wire_bytes == shared  # 2 (N - 1) / N of it, for the two of them


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_stage_works_at_a_time(world_size):
    run = labkit.train(lesson.model_parallel, world_size=world_size, steps=2, job=labkit.small_job(), device="cpu", live=False)
    for step in (0, 1):
        spans = [span for span in run.timeline.only(step=step).spans if span.kind in ("forward", "backward")]
        order = [(span.kind, span.rank) for span in spans]
        there = [("forward", rank) for rank in range(world_size)]
        assert order == there + [("backward", rank) for rank in reversed(range(world_size))]
        assert all(one.end_s <= other.start_s for one, other in pairwise(spans))


def test_weights_are_held_once():
    held = labkit.holdings(lesson.model_parallel, world_size=4)
    for kind in ("weights", "gradients", "optimizer state"):
        whole = labkit.holdings(one_device, world_size=1).total(0, kind)
        assert held.replicated(kind) == 0
        assert sum(held.total(rank, kind) for rank in range(4)) == pytest.approx(whole, rel=1e-3)
        assert max(held.total(rank, kind) for rank in range(4)) < 0.3 * whole


def test_layer_sizes_are_those_of_the_model():
    for tied in (False, True):
        job = labkit.small_job(tied=tied)
        parts = [{"head": False, "blocks": ()}, *({"embed": False, "head": False, "blocks": [i]} for i in range(4))]
        models = [job.model(**part) for part in [*parts, {"embed": False, "blocks": ()}]]
        assert lesson.layer_sizes(job) == [sum(one.numel() for one in model.parameters()) for model in models]


def test_the_balanced_cut_is_the_best_one():
    draw = random.Random(0)
    for _ in range(60):
        costs = [draw.randint(1, 20) for _ in range(draw.randint(1, 9))]
        count = draw.randint(1, len(costs))
        cut = lesson.balanced_cut(costs, count)
        ends = [sum(cut[:stage]) for stage in range(count + 1)]
        every = [(0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), count - 1)]
        least = min(max(sum(costs[a:b]) for a, b in pairwise(ends)) for ends in every)
        assert len(cut) == count and min(cut) >= 1 and sum(cut) == len(costs)
        assert max(sum(costs[a:b]) for a, b in pairwise(ends)) == least == least_largest(costs, count)


def test_impossible_cuts_are_refused_with_the_remedy():
    job = labkit.small_job()
    with pytest.raises(ValueError, match="6 layers do not fill 7 stages; use at most 6 ranks"):
        lesson.build_stage(SimpleNamespace(rank=0, world_size=7), job)
    for cut in ([3, 4], [6], [1, 2, 3], [6, 0], [3.0, 3.0]):
        with pytest.raises(ValueError, match="give 2 numbers of layers, none 0, that add up to 6"):
            lesson.build_stage(SimpleNamespace(rank=0, world_size=2), job, cut)


WRONG = {
    "gradient of the activations dropped": ("y.backward(gradient)", "y.backward(None if last else 0 * gradient)"),
    "input never asked for its gradient": ("requires_grad_()", "requires_grad_(False)"),
    "tied gradients not added up": ("dist.all_reduce(shared.grad, group=ends)", "None"),
    "stage built from another seed": ("return job.model(", "return job.replace(seed=1).model("),
    "loss of the inputs": ("job.loss(y, targets)", "job.loss(y, tokens)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_strategy_is_refused(kind):
    old, new = WRONG[kind]
    source = "\n\n".join(source for _, source in strategy_cells(find(NAME)))
    assert old in source, f"the notebook has changed: there is no {old!r}"
    namespace = {"__name__": "changed_notebook_05"}
    exec(compile(source.replace(old, new), "changed notebook 05", "exec"), namespace)
    try:
        assert not labkit.parity(namespace["model_parallel"], world_size=2, job=labkit.small_job(tied=True))
    except labkit.RankError as error:
        assert kind.startswith("input") and error.kind == "raised"


def test_the_gradients_of_stages_are_told_apart():
    job = labkit.small_job()
    reports = stages.one_update(lesson.model_parallel, job, world_size=2)
    assert [stages.parts(report) for report in reports] == [{"embed", "blocks"}, {"blocks", "head"}]
    assert stages.gradient_cause(reports, job) is None
    reports[1]["gradients"]["head.norm.bias"] *= 2
    assert "on rank 1, the gradient of `head.norm.bias`: off by the factor 2" in stages.gradient_cause(reports, job)
    reports[0]["gradients"]["embed.tokens.weight"] = None
    assert "on rank 0, 1 of 28 parameters have no gradient" in stages.gradient_cause(reports, job)
