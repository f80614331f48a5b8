"""The strategies of notebook 06: every schedule equal to one device, with the traffic of the formula; wrong ones refused."""

from functools import partial

import pytest
import torch
from pipelines import assert_weights_of_one_device
from torch.distributed.pipelining import ScheduleGPipe, ScheduleInterleaved1F1B

import labkit
from labkit.checks import stages
from labkit.notebook import find, load, strategy_cells
from labkit.schedule import Backward, Forward, Schedule, gpipe, interleaved, naive, one_f_one_b, zero_bubble

NAME = "06_pipeline_parallel"
lesson = load(NAME)
SCHEDULES = {"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": partial(interleaved, chunks=2)}
STRATEGIES = {name: partial(lesson.pipeline_parallel, schedule=make) for name, make in SCHEDULES.items()}
STRATEGIES["zero bubble"] = lesson.zero_bubble_parallel
TORCH = {
    "gpipe": partial(lesson.torch_pipeline, schedule=ScheduleGPipe),
    "1f1b": lesson.torch_pipeline,
    "interleaved": partial(lesson.torch_pipeline, schedule=ScheduleInterleaved1F1B, chunks=2),
}
tied_or_not = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
pytestmark = pytest.mark.filterwarnings("ignore:.*CPU cores")


def job_of(name, world_size, **changes):
    """A job with a block for each part."""
    return labkit.small_job(blocks=8 if name == "interleaved" and world_size == 4 else 4, **changes)


@pytest.mark.parametrize("name", STRATEGIES)
@tied_or_not
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_equals_one_device(name, tied, world_size):
    same = labkit.parity(STRATEGIES[name], world_size=world_size, steps=4, job=job_of(name, world_size, tied=tied))
    assert same, same.diagnosis
    assert same.max_error < 1e-11


@pytest.mark.parametrize("name", TORCH)
@tied_or_not
def test_torch_equals_one_device_and_ours(name, tied):
    job = labkit.small_job(tied=tied)
    theirs, ours = (labkit.parity(one[name], world_size=2, job=job) for one in (TORCH, STRATEGIES))
    assert theirs, theirs.diagnosis
    assert theirs.losses == pytest.approx(ours.losses, abs=1e-11)


@pytest.mark.parametrize("name", ["interleaved", "zero bubble"])
def test_every_stage_ends_with_the_weights_of_one_device(name):
    job = labkit.small_job(tied=True)
    assert_weights_of_one_device(STRATEGIES[name], job, 2)


@pytest.mark.parametrize("world_size, name", [(2, name) for name in STRATEGIES] + [(4, "1f1b"), (4, "interleaved")])
@tied_or_not
def test_traffic_is_that_of_the_formula(world_size, name, tied):
    """2 (p v − 1) crossings of a batch's B T D numbers of 8 bytes, each in m messages; a tied weight between the ends."""
    job = job_of(name, world_size, tied=tied)
    run = labkit.train(STRATEGIES[name], world_size=world_size, steps=1, job=job, device="cpu", live=False)
    crossings = 2 * (world_size * (2 if name == "interleaved" else 1) - 1)
    sent = [rank["send"] for rank in run.traffic]
    assert sum(one.calls for one in sent) == crossings * job.micro_batches
    assert sum(one.payload_bytes for one in sent) == crossings * job.batch_size * job.seq_len * job.d_model * 8
    assert sum(rank["recv"].calls for rank in run.traffic) == crossings * job.micro_batches
    shared = [rank["all_reduce"].payload_bytes if "all_reduce" in rank else 0 for rank in run.traffic]
    assert shared == [job.vocab_size * job.d_model * 8 * (tied and rank in (0, world_size - 1)) for rank in range(world_size)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_do_what_the_schedule_lists(name):
    make = {**SCHEDULES, "zero bubble": zero_bubble}[name]
    run = labkit.train(STRATEGIES[name], world_size=2, steps=2, job=labkit.small_job(), device="cpu", live=False)
    plan = make(2, 4)
    for stage in (0, 1):
        for step in (0, 1):
            spans = [one for one in run.timeline.only(rank=stage, step=step).spans if "micro_batch" in one.labels]
            done = [(one.kind, one.labels["micro_batch"], one.labels["chunk"]) for one in spans]
            assert done == [(one.kind, one.micro_batch, one.chunk) for one in plan[stage]]
        assert run.timeline.live_micro_batches(stage) == plan.live_micro_batches(stage)


@pytest.mark.parametrize(
    "changes", [{"frozen": "embed"}, {"frozen": ("embed", "blocks.0", "blocks.1")}, {"batch_size": 6}], ids=str
)
def test_frozen_parts_and_other_batches(changes):
    for name in ("1f1b", "zero bubble"):
        assert labkit.parity(STRATEGIES[name], world_size=2, job=labkit.small_job(**changes)), name


@pytest.mark.parametrize("changes", [{"dtype": torch.bfloat16}, {"dtype": torch.bfloat16, "master_weights": True}], ids=str)
def test_other_precisions(changes):
    for name in ("1f1b", "zero bubble"):
        assert labkit.parity(STRATEGIES[name], world_size=2, job=labkit.small_job(**changes)), name


@pytest.mark.parametrize("plan, opened", [(one_f_one_b(4, 8), [1, 2, 2, 1]), (interleaved(4, 8, 2), [2, 2, 2, 2])], ids=repr)
def test_every_link_is_opened_once_before_the_first_step(plan, opened):
    """NCCL connects two ranks at their first message: a receive begun ahead would wait for a sender that waits for it."""

    def open_links(rank, links):
        links(rank, labkit.small_job(micro_batches=8), plan)

    run = labkit.launch(open_links, lesson.Links, world_size=4, device="cpu", live=False)
    for operation in ("send", "recv"):
        assert [rank[operation].calls for rank in run.traffic] == opened


def test_own_schedules_are_run():
    order = [Forward(1), Backward(1), Forward(0), Backward(0)]
    for plan in (Schedule([order, order]), [order, order]):
        assert labkit.parity(partial(lesson.pipeline_parallel, schedule=plan), world_size=2)


def test_a_stage_that_can_split_a_backward_also_does_it_whole():
    strategy = partial(lesson.pipeline_parallel, schedule=one_f_one_b, stage_class=lesson.SplitStage)
    assert_weights_of_one_device(strategy, labkit.small_job(), 2)


def test_parts_are_the_model_once_and_of_equal_work():
    for job in (labkit.small_job(), labkit.small_job(blocks=8), labkit.job(device="cpu")):
        for parts in (1, 2, 3, 4):
            names = [name for part in range(parts) for name, _ in lesson.build_part(job, part, parts).named_parameters()]
            assert names == [name for name, _ in job.model().named_parameters()]
    big = labkit.job(device="cuda").replace(d_model=96, vocab_size=6288, seq_len=128)  # an eighth of the preset in each width
    blocks = [len(list(lesson.build_part(big, part, 2).blocks.named_children())) for part in (0, 1)]
    held = [sum(any(True for _ in block.parameters()) for block in lesson.build_part(big, part, 2).blocks) for part in (0, 1)]
    assert blocks == [12, 12] and held == [8, 4]


def test_a_head_heavier_than_a_part_stands_alone():
    job = labkit.small_job(blocks=4, vocab_size=50_304)
    held = [lesson.build_part(job, part, 4) for part in range(4)]
    assert [sum(any(True for _ in block.parameters()) for block in one.blocks) for one in held] == [1, 2, 1, 0]
    names = [name for one in held for name, _ in one.named_parameters()]
    assert names == [name for name, _ in job.model().named_parameters()]


REFUSED = [
    (naive(3, 4), {}, "a schedule of 3 stages on 2 ranks; use one stage per rank"),
    (gpipe(2, 3), {}, "8 sequences do not divide into 3 micro-batches; use a divisor"),
    (Schedule([[Forward(0), Backward(0)], [Backward(0), Forward(0)]]), {}, r"stage 1 does Backward\(0\) too early"),
    (partial(interleaved, chunks=4), {}, "4 blocks do not fill 8 parts; use at most 4"),
    (zero_bubble, {}, "a schedule with BackwardWeight needs stage_class=SplitStage"),
    ("1F1B", {}, "stage 0, operation 0 .* is '1'; use Forward"),
]


@pytest.mark.parametrize("schedule, changes, cause", REFUSED, ids=[cause[:20] for *_, cause in REFUSED])
def test_what_cannot_work_is_refused_before_anything_is_sent(schedule, changes, cause):
    with pytest.raises(labkit.RankError, match=cause) as error:
        labkit.parity(partial(lesson.pipeline_parallel, schedule=schedule), world_size=2, job=labkit.small_job(**changes))
    assert error.value.kind == "raised"


def test_a_batch_that_does_not_divide_is_refused_without_ranks():
    with pytest.raises(ValueError, match="8 sequences do not divide into 5 micro-batches"):
        labkit.small_job(micro_batches=5)


WRONG = {
    "loss summed over micro-batches": ("self.answers[number]) / self.micro_batches", "self.answers[number])"),
    "gradient of the activations dropped": ("return x.grad", "return x.grad if x.grad is None else 0 * x.grad"),
    "targets of another micro-batch": ("self.answers[number]", "self.answers[number - 1]"),
    "tied gradients not added up": ("lambda: dist.all_reduce(shared.grad, group=ends)", "lambda: None"),
    "no zero_grad": ("            optimizer.zero_grad()\n        return stage.loss", "        return stage.loss"),
    "chunks in the wrong order": ("chunk * plan.stages + rank.rank", "rank.rank * plan.chunks + chunk"),
    "gradients of other rows": (
        "y.backward(gradient)",
        "y.backward(gradient.flip(0) if gradient is not None else None)",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_strategy_is_refused(kind):
    old, new = WRONG[kind]
    source = "\n\n".join(source for _, source in strategy_cells(find(NAME)))
    assert old in source, f"the notebook has changed: there is no {old!r}"
    namespace = {"__name__": "changed_notebook_06"}
    exec(compile(source.replace(old, new), "changed notebook 06", "exec"), namespace)
    strategy = partial(namespace["pipeline_parallel"], schedule=SCHEDULES["interleaved"])
    try:
        assert not labkit.parity(strategy, world_size=2, job=labkit.small_job(tied=True))
    except labkit.RankError as error:
        assert kind.startswith("chunks") and error.kind == "raised"


def test_weight_gradients_that_are_never_made_are_refused():
    def skip(self, operation, arrived):
        return lesson.Stage.do(self, operation, arrived) if operation.makes else None

    forgetful = type("Forgetful", (lesson.SplitStage,), {"do": skip})
    strategy = partial(lesson.pipeline_parallel, schedule=zero_bubble, stage_class=forgetful)
    job = labkit.small_job()
    assert not labkit.parity(strategy, world_size=2, job=job)
    assert "have no gradient, such as `blocks." in stages.gradient_cause(stages.one_update(strategy, job, world_size=2), job)
