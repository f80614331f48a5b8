"""The strategies of notebook 04: equal to one device, with the traffic and the memory of the formulas, resumed and refused.

Several strategies share a launch: starting ranks is what takes time.
"""

import functools
import gc
import statistics
import types
from functools import partial
from pathlib import Path

import pytest
import torch

import labkit
from labkit.checks.whole_weights import WholeWeights
from labkit.memory_run import account_rank
from labkit.notebook import find, load, strategy_cells
from labkit.training import build, one_device

NAME = "04_sharded_data_parallel"
lesson, data_parallel = load(NAME), load("03_data_parallel").data_parallel
ZERO = {"zero1": lesson.zero1, "zero2": lesson.zero2, "zero3": lesson.zero3}
MICRO = {f"{name}, 3 micro-batches": partial(strategy, micro_batches=3) for name, strategy in ZERO.items()}
OURS = {**ZERO, **MICRO, "recompute": partial(lesson.zero3, recompute=True)}
TORCH = {"torch_fsdp": lesson.torch_fsdp, "torch_zero1": lesson.torch_zero1, "offload": partial(lesson.torch_fsdp, offload=True)}
pytestmark = pytest.mark.filterwarnings("ignore:.*CPU cores")


def losses_of(rank, strategies, job):
    """{name: the losses of four steps}: the last is right only after three right updates."""
    steps = {name: build(strategy, rank, job) for name, strategy in strategies.items()}
    return {name: [step(*batch).item() for batch in job.batches(4)] for name, step in steps.items()}


@functools.cache
def reference(**changes):
    job = labkit.small_job(**changes)
    return labkit.launch(losses_of, {"one": one_device}, job, world_size=1, device="cpu", live=False).results[0]["one"]


def follow(strategies, world_size, **changes):
    job = labkit.small_job(**changes)
    ranks = labkit.launch(losses_of, strategies, job, world_size=world_size, device="cpu", live=False).results
    assert all(rank == ranks[0] for rank in ranks), "ranks report different losses"
    return ranks[0]


SMALL = {"blocks": 2, "seq_len": 8}
HYBRID = {"hybrid": partial(lesson.torch_fsdp, replicas=2)}
CASES = [
    (1, SMALL, ZERO | TORCH),
    (2, SMALL | {"tied": True}, OURS | TORCH),
    (3, SMALL | {"batch_size": 7, "frozen": ("embed", "blocks.1", "head.norm")}, OURS | TORCH),
    (4, SMALL | {"batch_size": 6, "tied": True, "frozen": ("blocks.0.mlp.up.bias", "head.norm")}, OURS | TORCH | HYBRID),
    (4, SMALL | {"batch_size": 3, "blocks": 1, "tied": True, "frozen": "embed.tokens"}, ZERO),
]


@pytest.mark.parametrize("world_size, changes, strategies", CASES)
def test_every_way_equals_one_device(world_size, changes, strategies):
    right = reference(**changes)
    for name, losses in follow(strategies, world_size, **changes).items():
        assert losses == pytest.approx(right, abs=1e-11), name


@pytest.mark.parametrize("changes", [{"dtype": torch.bfloat16}, {"dtype": torch.bfloat16, "master_weights": True}], ids=str)
def test_other_precisions(changes):
    strategies = {**ZERO, "recompute": OURS["recompute"], "torch_fsdp": lesson.torch_fsdp}
    for name, losses in follow(strategies, 2, **SMALL, **changes).items():
        assert losses == pytest.approx(reference(**SMALL, **changes), abs=5e-3), name


@pytest.mark.parametrize("name", ["zero1", "zero2"])
def test_whole_weights_end_as_those_of_one_device(name):
    assert labkit.parity(ZERO[name], world_size=3, job=labkit.small_job(blocks=1, seq_len=8))


def sent(rank, strategies, job):
    """{name: {operation: (calls, wire bytes)}} of one step of each strategy."""
    found, (batch,) = {}, job.batches(1)
    for name, strategy in strategies.items():
        step = build(strategy, rank, job)
        rank._recorder.clear()
        step(*batch)
        totals = rank._recorder.counter.totals()
        found[name] = {operation: (use.calls, use.wire_bytes) for operation, use in totals.items()}
    return found


@pytest.mark.parametrize("world_size, tied", [(2, False), (3, True)])
def test_traffic_is_that_of_the_formula(world_size, tied):
    """Reduce and gather, each (N−1)/N of P numbers of 8 bytes, padded; ZeRO-3 gathers twice, and a tied weight for two layers."""
    job, unit = labkit.small_job(tied=tied), 8 * (world_size - 1) / world_size
    model, shared = job.model(), job.vocab_size * job.d_model if tied else 0
    sizes = [sum(one.numel() for one in layer.parameters()) for layer in (model.embed, *model.blocks, model.head)]
    own = [*sizes[:-1], sizes[-1] - shared]
    uses = [shared, own[0] - shared, *own[1:-1], shared, own[-1]] if tied else own
    whole, apart, used = (unit * sum(-(-n // world_size) * world_size for n in flats) for flats in ([job.parameters], own, uses))
    pieces, uses = len(own), len(uses)
    expected = {
        "zero1": {"reduce_scatter": (1, whole), "all_gather": (1, whole)},
        "zero2": {"reduce_scatter": (pieces, apart), "all_gather": (pieces, apart)},
        "zero3": {"reduce_scatter": (uses, used), "all_gather": (2 * uses, 2 * used)},
        "zero1, 3 micro-batches": {"reduce_scatter": (1, whole), "all_gather": (1, whole)},
        "zero2, 3 micro-batches": {"reduce_scatter": (3 * pieces, 3 * apart), "all_gather": (pieces, apart)},
        "zero3, 3 micro-batches": {"reduce_scatter": (3 * uses, 3 * used), "all_gather": (6 * uses, 6 * used)},
    }
    for rank in labkit.launch(sent, ZERO | MICRO, job, world_size=world_size, device="cpu", live=False).results:
        for name, operations in expected.items():
            loss = {"all_reduce": (1, pytest.approx(2 * unit))}
            assert rank[name] == loss | {one: (calls, pytest.approx(wire)) for one, (calls, wire) in operations.items()}, name


def accounts(rank, strategies, jobs):
    """{(job, strategy): RankMemory}"""
    found = {}
    for kind, job in jobs.items():
        for name, strategy in strategies.items():
            gc.collect()
            rank.barrier()
            found[kind, name] = account_rank(rank, strategy, job, 2)
    return found


def test_memory_is_that_of_the_formula_and_falls_with_each_stage():
    n, strategies = 4, {"data parallel": data_parallel, **ZERO}
    jobs = {
        "float32": labkit.small_job(blocks=2, dtype=torch.float32),
        "mixed": labkit.small_job(blocks=2, dtype=torch.bfloat16, master_weights=True),
    }
    expected = {"float32": (16, 8 + 8 / n, 4 + 12 / n, 16 / n), "mixed": (16, 4 + 12 / n, 2 + 14 / n, 16 / n)}
    ranks = labkit.launch(accounts, strategies, jobs, world_size=n, device="cpu", live=False).results
    for kind, job in jobs.items():
        for name, formula in zip(strategies, expected[kind]):
            for rank in ranks:
                held = rank[kind, name].before_update
                state = sum(held[one] for one in ("weights", "gradients", "optimizer state")) / job.parameters
                assert state == pytest.approx(formula, abs=5e-3), (kind, name)  # padding, and 4 bytes a tensor that count steps
        peaks = [statistics.median(rank[kind, name].peak_bytes for rank in ranks) for name in strategies]
        assert peaks == sorted(set(peaks), reverse=True), (kind, peaks)


def most_whole(rank, strategies, job):
    """{name: (the most layers that were whole at once in a step, how many are at its end)}"""
    found, model, (batch,) = {}, job.model(), job.batches(1)
    layers = [torch.cat([one.flatten() for one in layer.parameters()]) for layer in (model.embed, *model.blocks, model.head)]
    for name, strategy in strategies.items():
        gc.collect()
        with WholeWeights(layers) as watch:
            step = build(strategy, rank, job)
            watch.most = 0
            step(*batch)
            found[name] = watch.most, len(watch.whole())
    return found


def test_weights_are_whole_for_one_layer_and_the_next_only():
    strategies = {"zero3": lesson.zero3, "recompute": OURS["recompute"], "zero2": lesson.zero2}
    job = labkit.small_job(blocks=3, batch_size=2, seq_len=8, d_model=32)
    for rank in labkit.launch(most_whole, strategies, job, world_size=2, device="cpu", live=False).results:
        assert rank["zero3"] == rank["recompute"] == (2, 0)
        assert rank["zero2"][0] == job.blocks + 2


OWN = ".chunk(self.rank.world_size)[self.rank.rank]"
JOINED = "[*(one.flatten() for one in tensors), self.padding]"
WRONG = {
    "gradients not reduced": ("zero1", "dist.reduce_scatter_single(flat.shard.grad, gradients)", "None"),
    "weights not gathered": ("zero1", "dist.all_gather_single(flat.whole, flat.shard.detach())", "None"),
    "half of the gradient": ("zero1", "(flat.shard.grad, gradients)", "(flat.shard.grad, gradients / 2)"),
    "the last layer's gradients late": ("zero2", "\n        land(flying)\n        with", "\n        with"),
    "padding before the weights": ("zero2", JOINED, "[self.padding, *map(torch.flatten, tensors)]"),
    "another rank's shard": ("zero3", OWN, OWN.replace("rank.rank]", "rank.rank - 1]")),
    "the activations' gradient dropped": ("zero3", "gradient = x.grad", "gradient = x.grad if x.grad is None else 0 * x.grad"),
}


def changed(name, old, new):
    """A strategy of the notebook with one piece of source replaced everywhere."""
    source = "\n\n".join(source for _, source in strategy_cells(find(NAME)))
    assert old in source, f"the notebook has changed: there is no {old!r}"
    namespace = {"__name__": f"changed_notebook_04_{len(new)}"}
    exec(compile(source.replace(old, new), "changed notebook 04", "exec"), namespace)
    return namespace[name]


def test_wrong_strategies_are_told_apart():
    wrong = {kind: changed(*replaced) for kind, replaced in WRONG.items()}
    ranks = labkit.launch(losses_of, wrong, labkit.small_job(**SMALL), world_size=3, device="cpu", live=False).results
    for kind in wrong:
        assert any(rank[kind] != pytest.approx(reference(**SMALL), abs=1e-9) for rank in ranks), kind


def test_a_run_killed_while_saving_resumes_from_the_last_complete_checkpoint(tmp_path, capfd):
    job, launched = labkit.small_job(**SMALL), partial(labkit.launch, device="cpu", live=False)
    whole = launched(lesson.resumed, job, tmp_path, updates=6, world_size=2).results[0]
    assert list(whole.values())[:4] == pytest.approx(reference(**SMALL), abs=1e-11) and not any(tmp_path.iterdir())
    with pytest.raises(labkit.RankError) as error:
        launched(lesson.resumed, job, tmp_path, updates=6, save_every=2, killed_at=4, world_size=2)
    assert error.value.kind == "killed" and error.value.rank == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4"] and not Path(tmp_path, "4", ".metadata").exists()
    for world_size in (1, 4):
        losses = launched(lesson.resumed, job, tmp_path, updates=6, world_size=world_size).results[0]
        assert list(losses) == [3, 4, 5, 6]
        assert losses == pytest.approx({update: whole[update] for update in losses}, abs=1e-9)
    assert "resumed after update 2; not complete: [4]" in capfd.readouterr().out


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="3 ranks do not divide into 2 replicas; use a divisor"):
        lesson.torch_fsdp(types.SimpleNamespace(world_size=3), labkit.small_job(), replicas=2)
    with pytest.raises(ValueError, match="into 0 replicas"):
        lesson.torch_fsdp(types.SimpleNamespace(world_size=3), labkit.small_job(), replicas=0)
    with pytest.raises(ValueError, match="0 micro-batches have no rows"):
        next(lesson.own_rows(types.SimpleNamespace(world_size=2, rank=0), *torch.zeros(2, 4, 3), micro_batches=0))
    with pytest.raises(ValueError, match="keeps no master weights; use zero1"):
        lesson.torch_zero1(None, labkit.small_job(dtype=torch.bfloat16, master_weights=True))
