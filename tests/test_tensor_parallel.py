"""The strategies of notebook 07: equal to one device and to each other, with the traffic of the formula; wrong ones refused."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import labkit
from labkit.checks.tensor_traffic import tensor_traffic
from labkit.notebook import find, load, strategy_cells
from labkit.observed import ObservedJob
from labkit.training import build, one_device

NAME = "07_tensor_parallel"
lesson = load(NAME)
ROWS = ("query.weight", "key.weight", "value.weight", "up.weight", "up.bias", "tokens.weight", "head.output.weight")
COLUMNS = ("attention.output.weight", "down.weight")
pytestmark = pytest.mark.filterwarnings("ignore:.*CPU cores")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_equals_one_device(world_size, tied):
    same = labkit.parity(lesson.tensor_parallel, world_size=world_size, steps=4, job=labkit.small_job(tied=tied))
    assert same, same.diagnosis
    assert same.max_error < 1e-11


def trained(rank, strategies, job):
    """What each rank ends with after three updates of every strategy: losses, traffic of a step, and its weights."""
    reports = {}
    for name, strategy in strategies.items():
        observed = ObservedJob.of(job)
        step = build(strategy, rank, observed)
        rank._recorder.clear()
        losses = [step(*batch).item() for batch in job.batches(3)]
        traffic = rank._recorder.counter.totals().get("all_reduce")
        (model,) = observed.notes.made
        weights = {key: one.detach() for key, one in model.named_parameters(remove_duplicate=False)}
        whole = {key: one.full_tensor() if hasattr(one, "full_tensor") else one for key, one in weights.items()}
        sent = traffic and (traffic.calls // 3, traffic.payload_bytes // 3)
        reports[name] = {
            "losses": losses,
            "sent": sent,
            "weights": whole,
            "embed": model.embed.tokens.weight is model.head.output.weight,
        }
    return reports


def joined(parts):
    """The whole parameters from what each rank holds of them; what is replicated must be equal to the last bit."""
    whole = {}
    for name, first in parts[0].items():
        if name.endswith(ROWS + COLUMNS):
            whole[name] = torch.cat([part[name] for part in parts], dim=int(name.endswith(COLUMNS)))
        else:
            assert all(torch.equal(first, part[name]) for part in parts), f"{name} differs between ranks"
            whole[name] = first
    return whole


def on_ranks(world_size, job, **strategies):
    return labkit.launch(trained, strategies, job, world_size=world_size, device="cpu").results


def assert_equal(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("world_size, tied", [(2, True), (4, False)])
def test_shards_end_as_parts_of_one_devices_weights_and_replicas_equal(world_size, tied):
    job = labkit.small_job(tied=tied)
    (alone,) = on_ranks(1, job, whole=one_device)
    ranks = on_ranks(world_size, job, ours=lesson.tensor_parallel)
    assert_equal(joined([one["ours"]["weights"] for one in ranks]), alone["whole"]["weights"])
    assert all(one["ours"]["embed"] == tied for one in ranks)
    shards = ranks[0]["ours"]["weights"]
    assert shards["blocks.0.mlp.up.weight"].shape == (4 * job.d_model // world_size, job.d_model)
    assert shards["blocks.0.attention.output.weight"].shape == (job.d_model, job.d_model // world_size)


def test_torch_ends_as_ours_and_sums_the_input_of_attention_three_times():
    job = labkit.small_job(tied=True, blocks=2)
    strategies = {"ours": lesson.tensor_parallel, "theirs": lesson.torch_tensor_parallel}
    strategies["shared"] = partial(lesson.torch_tensor_parallel, shared_input=True)
    ranks = on_ranks(2, job, **strategies)
    ours = joined([one["ours"]["weights"] for one in ranks])
    for report in ranks:
        for name in ("theirs", "shared"):
            assert report[name]["losses"] == pytest.approx(report["ours"]["losses"], abs=1e-11)
            assert_equal(report[name]["weights"], ours)
        calls, nbytes = report["ours"]["sent"]
        more = 2 * job.blocks
        activation_bytes = job.tokens_per_step * job.d_model * 8
        assert report["theirs"]["sent"] == (calls + more, nbytes + more * activation_bytes)
        assert report["shared"]["sent"] == (calls, nbytes) == tensor_traffic(job)


JOBS = [{}, {"tied": True, "blocks": 2, "seq_len": 16}, {"batch_size": 1, "vocab_size": 512, "dtype": torch.float32}]


@pytest.mark.parametrize("world_size, changes", list(zip((2, 4, 2), JOBS)), ids=str)
def test_traffic_is_that_of_the_formula(world_size, changes):
    """4 sums of B T D numbers for a block, one for the embedding, one for the head's input, three of B T for the loss."""
    job = labkit.small_job(**changes)
    run = labkit.train(lesson.tensor_parallel, world_size=world_size, steps=2, job=job, device="cpu", live=False)
    tokens = job.batch_size * job.seq_len
    calls, numbers = 4 * job.blocks + 5, (4 * job.blocks + 2) * tokens * job.d_model + 3 * tokens
    for sent in run.traffic:
        assert set(sent) == {"all_reduce"}
        assert (sent["all_reduce"].calls, sent["all_reduce"].payload_bytes) == (2 * calls, 2 * numbers * job.dtype.itemsize)
    assert tensor_traffic(job) == (calls, numbers * job.dtype.itemsize)


def test_autocast_sends_what_it_computes_with():
    """bf16 between products, both ways; float32 from the embedding and in the loss."""
    job = labkit.small_job(dtype=torch.bfloat16, blocks=2)
    assert labkit.parity(lesson.tensor_parallel, world_size=2, job=job)
    run = labkit.train(lesson.tensor_parallel, world_size=2, steps=1, job=job, device="cpu", live=False)
    tokens = job.tokens_per_step
    in_bf16, in_float32 = (4 * job.blocks + 1) * tokens * job.d_model, tokens * job.d_model + 3 * tokens
    assert run.traffic[0]["all_reduce"].payload_bytes == 2 * in_bf16 + 4 * in_float32


CHANGES = [
    {"frozen": "embed"},
    {"frozen": ("embed", "blocks.0", "blocks.1.attention.query")},
    {"dtype": torch.bfloat16, "master_weights": True},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_frozen_parts_and_master_weights(changes):
    same = labkit.parity(lesson.tensor_parallel, world_size=2, job=labkit.small_job(blocks=2, **changes))
    assert same, same.diagnosis


def loss_rank(rank, logits, targets):
    """The loss and the gradient of this rank's logits."""
    width = logits.shape[-1] // rank.world_size
    mine = logits[..., rank.rank * width : (rank.rank + 1) * width].clone().requires_grad_()
    loss = lesson.vocabulary_loss(mine, targets, rank.rank * width)
    loss.backward()
    return loss.item(), mine.grad


def test_the_loss_does_not_overflow_and_has_the_gradient_of_one_device():
    generator = torch.Generator().manual_seed(0)
    logits = (1000 * torch.randn(2, 5, 12, generator=generator, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(12, (2, 5), generator=generator)
    right = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    right.backward()
    losses, gradients = zip(*labkit.launch(loss_rank, logits.detach(), targets, world_size=3, device="cpu").results)
    assert losses == pytest.approx([right.item()] * 3)
    torch.testing.assert_close(torch.cat(gradients, -1), logits.grad)


REFUSED = [
    ({}, 3, r"3 ranks cannot share evenly: 4 heads \(use 6\), 256 hidden features \(use 258\), 256 vocabulary ids \(use 258\)"),
    ({}, 3, "or use a number of ranks among 1, 2, 4$"),
    ({"vocab_size": 250}, 4, r"evenly: 250 vocabulary ids \(use 252\); or use a number of ranks among 1, 2$"),
    ({"heads": 2}, 4, r"evenly: 2 heads \(use 4\); or"),
]


@pytest.mark.parametrize("changes, ranks, cause", REFUSED)
def test_what_does_not_divide_is_refused_with_numbers_that_do(changes, ranks, cause):
    with pytest.raises(ValueError, match=cause):
        lesson.refuse_uneven(labkit.small_job(**changes), ranks)


@pytest.mark.parametrize("strategy", [lesson.tensor_parallel, lesson.torch_tensor_parallel])
def test_ranks_refuse_it_before_anything_is_sent(strategy):
    with pytest.raises(labkit.RankError, match="3 ranks cannot share evenly: 4 heads") as error:
        labkit.parity(strategy, world_size=3)
    assert error.value.kind == "raised"


WRONG = {
    "bias added on every rank": (
        "sum_over_ranks(F.linear(x, self.weight)).add_(self.bias)",
        "sum_over_ranks(F.linear(x, self.weight, self.bias))",
    ),
    "no all_reduce backward": ("dist.all_reduce(gradient)  #", "#"),
    "no copy before attention": ("for part in (attention, mlp):", "for part in (mlp,):"),
    "a head split across ranks": (
        "part = parameter.detach().tensor_split(rank.world_size, dim)",
        "part = parameter.detach().roll(8, 0).tensor_split(rank.world_size, dim)",
    ),
    "embedding of a neighbour's ids": ("self.first = rank.rank * len", "self.first = (1 - rank.rank) * len"),
    "largest logit of the own part": ("dist.all_reduce(largest", "dist.all_reduce(largest.clone()"),
    "targets outside of the own part counted": (".squeeze(-1) * mine)", ".squeeze(-1))"),
    "not tied": ("    if job.tied:\n        model.head.output.weight = model.embed.tokens.weight\n    model.to", "    model.to"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_strategy_is_refused(kind):
    old, new = WRONG[kind]
    source = "\n\n".join(source for _, source in strategy_cells(find(NAME)))
    assert old in source, f"the notebook has changed: there is no {old!r}"
    namespace = {"__name__": "changed_notebook_07"}
    exec(compile(source.replace(old, new), "changed notebook 07", "exec"), namespace)
    assert not labkit.parity(namespace["tensor_parallel"], world_size=2, job=labkit.small_job(tied=True, blocks=2))
