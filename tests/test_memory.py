"""Run.memory, the account of a run of its own: as numbers, as a table, and as a picture's bars."""

import pytest
import torch
from artists import texts_of
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from strategies import average

import labkit
from labkit.draw_memory import KIND_COLOURS, draw_memory
from labkit.memory import Memory, RankMemory, draw_memories
from labkit.storages import KINDS

BY_KIND = dict(zip(KINDS, (4_000, 3_000, 2_000, 1_000, 500), strict=True))


def of_ranks(n, **changes):
    rows = [RankMemory(rank, 10**6, sum(BY_KIND.values()), BY_KIND, "backward, step 1", **changes) for rank in range(n)]
    return Memory.of(rows, name="some", badge="2 CPU cores")


def test_a_training_is_accounted_when_it_is_asked_for():
    job = labkit.small_job(blocks=1, seq_len=8)
    run = labkit.train(average, world_size=2, steps=1, job=job, device="cpu", live=False)
    memory = run.memory
    assert memory is run.memory and [one.rank for one in memory] == [0, 1]
    for one in memory:
        assert (one.by_kind["weights"], one.before_update["gradients"]) == (8 * job.parameters, 8 * job.parameters)
        assert one.peak_bytes == sum(one.by_kind.values()) < one.process_peak_bytes
        assert one.when == "optimizer, step 0" and one.after_step["gradients"] == 0
    assert f"{8 * job.parameters:,}" in repr(memory) and "rank 1" in repr(memory)


def plain(rank):
    with rank.memory("weights"):
        torch.zeros(1)
    rank.memory("money")


def test_a_plain_run_has_the_peak_of_its_processes():
    memory = labkit.launch(lambda rank: rank.rank, world_size=1, device="cpu").memory
    assert (len(memory), memory[0].by_kind) == (1, {})
    assert memory[0].peak_bytes == memory[0].process_peak_bytes > 10**6
    assert "process" in repr(memory)
    with pytest.raises(ValueError, match="no account by kind"):
        memory.draw()


def test_an_unknown_kind_is_refused_with_the_list():
    with pytest.raises(labkit.RankError, match="'money' is not a kind of memory; use one of weights, gradients, optimizer state"):
        labkit.launch(plain, world_size=1, device="cpu")


def test_the_allocators_peak_is_shown_on_cuda_only():
    assert "by the CUDA allocator: 1.00 MB, 1.00 MB" in texts_of(of_ranks(2, on_cuda=True).figure)
    assert "allocator" in repr(of_ranks(2, on_cuda=True)) and "1,000,000" in repr(of_ranks(2, on_cuda=True))
    assert "1,000,000" not in repr(of_ranks(2))


def bars(figure):
    (axes,) = figure.axes
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_bars_are_stacked_by_kind():
    figure = of_ranks(2).draw(limit_bytes=24_000)
    stacks = {}
    for bar in bars(figure):
        stacks.setdefault(round(bar.get_x(), 3), []).append(bar)
    assert len(stacks) == 2
    for stack in stacks.values():
        assert [bar.get_height() for bar in stack] == list(BY_KIND.values())
        assert [bar.get_y() for bar in stack] == [0, 4_000, 7_000, 9_000, 10_000]
        assert [bar.get_facecolor() for bar in stack] == [to_rgba(KIND_COLOURS[kind]) for kind in KINDS]
    texts = texts_of(figure)
    assert texts.count("10.5 kB") == 2
    assert {*KINDS, "a card of 24.0 kB", "measured on 2 CPU cores", "some"} <= set(texts)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["rank 0", "rank 1"]


def test_runs_stand_beside_one_another():
    figure = draw_memories({"one": of_ranks(1), "four": of_ranks(4)})
    assert len(bars(figure)) == 5 * len(KINDS)
    assert {"one", "four"} <= set(texts_of(figure))
    assert "a card of" not in "".join(texts_of(figure))


def test_only_kinds_that_are_held_are_explained():
    texts = texts_of(draw_memory({"some": [{"weights": 500, "gradients": 0}]}))
    assert "weights" in texts and "gradients" not in texts and "500 B" in texts


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_memory({})
