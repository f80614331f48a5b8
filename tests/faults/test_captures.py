"""What cannot travel to the ranks, or is too large, is named in one sentence before anything starts."""

import functools
import re
import threading
import warnings

import numpy
import pytest
import torch

import labkit
from labkit.payload import pack_function

MB = 10**6


def refusal(fn, *args, **kwargs):
    with pytest.raises((TypeError, ValueError)) as caught:
        labkit.launch(fn, *args, world_size=2, live=False, **kwargs)
    return str(caught.value)


def test_locks_generators_and_open_files_are_named(tmp_path):
    lock, batches = threading.Lock(), (at for at in range(3))
    (tmp_path / "read").write_text("text")
    with open(tmp_path / "written", "w") as written, open(tmp_path / "read") as read:

        def step(rank):
            return lock, batches, written, read

        assert refusal(step) == (
            "step uses what cannot be sent to the ranks: batches (a generator), lock (a lock), read (an open file), "
            "written (an open file); make it inside the function instead"
        )


def test_the_part_that_cannot_travel_is_named():
    class Config:
        def __init__(self):
            self.hooks = {"step": [None, threading.Lock()]}

    config = Config()
    assert "config.hooks['step'][1] (a lock)" in refusal(lambda rank: config)
    assert ": data (a lock);" in refusal(lambda rank, data: data, threading.Lock())
    assert ": data (a lock);" in refusal(lambda rank, data: data, data=threading.Lock())
    assert ": data (a lock);" in refusal(functools.partial(lambda rank, data: data, data=threading.Lock()))


def test_what_a_class_holds_is_named():
    class Net(torch.nn.Module):
        guard = threading.Lock()

    assert "Net.guard (a lock)" in refusal(lambda rank: Net())


def test_not_a_function():
    assert refusal(3) == "launch needs a function fn(rank, …), not int"


def test_what_a_call_would_not_run_is_refused():
    async def wait(rank):
        return rank.rank

    def give(rank):
        yield rank.rank

    rest = "a call only makes an object and runs nothing; use a plain def and return values"
    assert refusal(wait) == f"wait is an async function: {rest}"
    assert refusal(functools.partial(give)) == f"give is a generator function (it has a yield): {rest}"
    with pytest.raises(TypeError, match="give is a generator function .* a strategy is a plain def that returns its function"):
        labkit.train(give, world_size=2, live=False)


def test_50_mb_are_warned_of_and_arrive():
    table, small = torch.arange(12_500_000, dtype=torch.int32), torch.ones(3)

    def last(rank):
        return table[-1].item() + small.sum().item()

    with pytest.warns(UserWarning, match=re.escape("last takes 50 MB to every rank (table: 50 MB); data made or")) as caught:
        run = labkit.launch(last, world_size=2, live=False)
    assert run.results == (12_500_002.0,) * 2
    assert caught[0].filename == __file__


def test_9_mb_are_not_worth_a_word():
    table = torch.zeros(9 * MB, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pack_function(lambda rank: table, (), {})) > 9 * MB


@pytest.mark.parametrize(
    "make, size",
    [
        (lambda: numpy.zeros(15 * MB), "120 MB"),
        (lambda: bytes(120 * MB), "120 MB"),
        (lambda: bytearray(120 * MB), "120 MB"),
        (lambda: [0.5] * (13 * MB), "117 MB"),
        (lambda: torch.nn.Linear(5000, 6000), "120 MB"),
        (lambda: torch.zeros(60 * MB)[::2], "120 MB"),
        (lambda: {"a": numpy.zeros(80 * MB, numpy.uint8), "b": bytes(30 * MB)}, "110 MB"),
    ],
    ids=["array", "bytes", "bytearray", "list", "module", "strided tensor", "dict"],
)
def test_more_than_100_mb_are_refused(make, size):
    big, small = make(), torch.ones(3)

    def step(rank):
        return big, small

    assert refusal(step) == (
        f"step would take more than 100 MB to every rank (big: {size}); make the data inside the function, or save it to a "
        "file and load it there"
    )


def test_the_largest_are_named_first():
    first, second = bytes(40 * MB), torch.zeros(70 * MB, dtype=torch.uint8)

    def step(rank, third=bytes(20 * MB)):
        return first, second, third

    assert "(second: 70 MB, first: 40 MB, third: 20 MB)" in refusal(step)


def test_a_view_travels_without_its_storage():
    view = torch.arange(40 * MB)[:4]
    assert labkit.launch(lambda rank: view.tolist(), world_size=1, live=False).results == ([0, 1, 2, 3],)


def test_weights_travel_with_their_gradients():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    leaf = torch.ones(2, requires_grad=True)

    def step(rank):
        (leaf * weight).sum().backward()
        return leaf.grad, weight.grad, type(weight).__name__

    leaf_grad, weight_grad, name = labkit.launch(step, world_size=1, live=False).results[0]
    assert (leaf_grad.tolist(), weight_grad.tolist(), name) == ([1.0, 1.0], [4.0, 4.0], "Parameter")
    assert leaf.grad is None and weight.grad.tolist() == [3.0, 3.0]


def test_refusing_500_mb_does_not_take_another_500_mb(kernel):
    """Measured in a kernel, as the highest resident size since the tensor was made."""
    cell = """
    from pathlib import Path

    def peak_mb():
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024

    big = torch.ones(125_000_000)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mb()
    try:
        labkit.launch(lambda rank: big.sum(), world_size=2)
    except ValueError as error:
        message = str(error)
    del big
    [peak_mb() - before, message]
    """
    grown_mb, message = kernel.run(cell)
    assert message.startswith("<lambda> would take more than 100 MB to every rank (big: 500 MB)")
    assert grown_mb < 50
