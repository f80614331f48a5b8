"""The ring that notebook 02 builds by hand: sums, bytes, shapes, and the steps between."""

import json

import pytest
import torch

import labkit
from labkit.checks.nb02 import HELD, measured_table, outcome
from labkit.launcher import run_ranks
from labkit.notebook import find

OPTIONS = {"device": "cpu", "live": False, "warn": False, "timeout": 20}


@pytest.fixture(scope="module")
def lesson():
    return labkit.notebook.load("02_collectives")


def contributions(world_size, shape):
    """What the ranks start with: float64 [world_size, *shape], random and distinct."""
    return torch.randn(world_size, *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def summed(rank, ring_all_reduce, shape):
    tensor = contributions(rank.world_size, shape)[rank.rank].clone()
    ring_all_reduce(rank, tensor)
    return tensor


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(12,), (13,), (3, 5, 7), (2,)], ids=str)
def test_every_rank_ends_with_the_sum_for_the_bytes_of_a_ring(lesson, world_size, shape):
    """12 divides by all of 1 to 4, the others leave an uneven last chunk or, with 2 numbers, empty ones."""
    run = run_ranks(summed, (lesson.ring_all_reduce, shape), {}, world_size=world_size, **OPTIONS)
    total = contributions(world_size, shape).sum(0)
    for result in run.results:
        torch.testing.assert_close(result, total, rtol=0, atol=1e-14)
    sent = [use["send"].payload_bytes if "send" in use else 0 for use in run.traffic]
    received = [use["recv"].payload_bytes if "recv" in use else 0 for use in run.traffic]
    assert sum(sent) == sum(received) == 2 * (world_size - 1) * total.numel() * 8
    assert max(sent) - min(sent) <= 2 * (world_size - 1) * 8
    assert {name for use in run.traffic for name in use} <= {"send", "recv"}


def halved(rank, lesson_steps, elements):
    tensor = contributions(rank.world_size, (elements,))[rank.rank].clone()
    chunks = tensor.tensor_split(rank.world_size)
    for step in range(rank.world_size - 1):
        lesson_steps.reduce_scatter_step(rank, chunks, step)
    return chunks[(rank.rank + 1) % rank.world_size]


def test_after_the_first_half_each_rank_owns_one_complete_chunk(lesson):
    run = run_ranks(halved, (lesson, 10), {}, world_size=4, **OPTIONS)
    chunks = contributions(4, (10,)).sum(0).tensor_split(4)
    assert [len(chunk) for chunk in chunks] == [3, 3, 2, 2]
    for rank, chunk in enumerate(run.results):
        torch.testing.assert_close(chunk, chunks[(rank + 1) % 4], rtol=0, atol=1e-14)


def test_a_tensor_that_is_not_contiguous_is_refused_rather_than_left_unsummed(lesson):
    def transposed(rank):
        lesson.ring_all_reduce(rank, torch.ones(3, 4).T)

    with pytest.raises(labkit.RankError, match="view"):
        labkit.launch(transposed, world_size=2, device="cpu", live=False)


def collectives(rank):
    """All six collectives of exercise 2.1, done by torch.distributed."""
    import torch.distributed as dist

    cells, n = torch.tensor(HELD[rank.rank]), rank.world_size
    sent, scattered, shard = cells.clone(), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    dist.broadcast(sent, src=2)
    dist.scatter(scattered, list(torch.tensor(HELD[0]).split(1)) if rank.rank == 0 else None, src=0)
    gathered, received, total = torch.zeros(n, dtype=torch.int64), torch.zeros_like(cells), cells.clone()
    dist.all_gather_single(gathered, cells[rank.rank : rank.rank + 1])
    dist.reduce_scatter_single(shard, cells)
    dist.all_reduce(total)
    dist.all_to_all_single(received, cells)
    return [one.tolist() for one in (sent, scattered, gathered, shard, total, received)]


def test_the_reference_of_exercise_2_1_is_what_the_library_does():
    results = run_ranks(collectives, (), {}, world_size=3, **OPTIONS).results
    assert [list(outcome(HELD, rank).values()) for rank in range(3)] == list(results)


@pytest.mark.parametrize(("cell", "name", "value"), [("stub-1", "held", HELD), ("stub-3", "table", measured_table(0))])
def test_the_notebook_shows_the_data_that_its_checks_use(cell, name, value):
    cells = json.loads(find("02_collectives").read_text(encoding="utf-8"))["cells"]
    source = next("".join(one["source"]) for one in cells if one["id"] == cell)
    namespace = {}
    exec(source, namespace)
    assert namespace[name] == value
