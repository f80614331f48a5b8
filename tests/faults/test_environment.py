"""A rank sees the kernel's world as it is at the call; the kernel does not see the ranks'."""

import importlib
import os
import random
import signal
import sys
import tempfile
import threading
import time

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.utils.data
from workers import Numbers

import labkit


def returned(fn, *args, world_size=2):
    return labkit.launch(fn, *args, world_size=world_size, live=False).results


def test_environ_path_and_directory_are_those_of_the_call(monkeypatch, tmp_path):
    def look(rank):
        return {**os.environ}, sys.path[-1], os.getcwd(), sys.argv

    returned(look)
    monkeypatch.setenv("SET_JUST_BEFORE", "now")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "own")])
    monkeypatch.setattr(sys, "argv", ["notebook"])
    monkeypatch.chdir(tmp_path)
    for rank, (environ, last, directory, argv) in enumerate(returned(look)):
        assert environ["SET_JUST_BEFORE"] == "now" and "HOME" not in environ
        assert environ["RANK"] == environ["LOCAL_RANK"] == str(rank)
        assert environ["WORLD_SIZE"] == environ["LOCAL_WORLD_SIZE"] == "2"
        assert (last, directory, argv) == (str(tmp_path / "own"), str(tmp_path), ["notebook"])


@pytest.mark.parametrize("name", ["its_helper", "its_package.helper"])
def test_a_helper_edited_within_the_same_second(monkeypatch, tmp_path, name):
    """Byte code in __pycache__ would count as fresh: same size, same second."""
    helper = tmp_path / f"{name.replace('.', '/')}.py"
    helper.parent.mkdir(exist_ok=True)

    def write(text):
        helper.write_text(text)
        os.utime(helper, (1_700_000_000, 1_700_000_000))

    def call(rank):
        return importlib.import_module(name).answer()

    write("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    importlib.import_module(name)
    assert (helper.parent / "__pycache__").exists()
    assert returned(call) == (1, 1)
    write("def answer():\n    return 2\n")
    assert returned(call) == (2, 2)
    write("def answer():\n    none[3]\n")
    with pytest.raises(labkit.RankError) as caught:
        returned(call)
    assert "helper.py, line 2, in answer\n    none[3]\n" in caught.value.traceback


def test_seeds_repeat_and_are_as_documented():
    def draw(rank):
        numbers = numpy.random.rand(3).tolist(), [random.random() for _ in range(3)]
        batch = next(iter(torch.utils.data.DataLoader(Numbers(), num_workers=1, shuffle=True)))
        return torch.rand(3).tolist(), numbers, batch.tolist()

    first, again = returned(draw), returned(draw)
    assert first == again
    assert first[0][0] == first[1][0]  # torch: the same weights
    assert first[0][1][0] != first[1][1][0] and first[0][1][1] != first[1][1][1]


def test_each_rank_has_its_own_core_and_one_thread():
    def look(rank):
        return torch.get_num_threads(), sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]

    cores = labkit.machine().cores
    for rank, (threads, core, variable) in enumerate(returned(look, world_size=min(2, len(cores)))):
        assert (threads, core, variable) == (1, [cores[rank]], "1")


def test_the_kernel_stays_as_it_was():
    def disturb(rank):
        os.environ["FROM_A_RANK"] = "1"
        torch.manual_seed(rank.rank)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return rank.mean(1.0)

    def state():
        return (
            torch.get_num_threads(),
            os.sched_getaffinity(0),
            torch.get_rng_state().tolist(),
            numpy.random.get_state()[1].tolist(),
            random.getstate(),
            [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2)],
            dict(os.environ),
            os.getcwd(),
            threading.enumerate(),
            dist.is_initialized(),
        )

    counts, stop, kept = [0], threading.Event(), torch.arange(1000)

    def work():
        while not stop.is_set():
            (torch.ones(50, 50) @ torch.ones(50, 50)).sum()
            counts[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    before, done = state(), counts[0]
    returned(disturb)
    assert state() == before
    assert counts[0] > done and torch.equal(kept, torch.arange(1000))
    stop.set()
    thread.join()


def test_a_process_group_of_the_kernels_own_goes_on(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        assert returned(lambda rank: dist.get_world_size()) == (2, 2)
        numbers = torch.ones(2)
        dist.all_reduce(numbers)
        assert numbers.tolist() == [1.0, 1.0] and dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


def test_loader_workers_leave_no_files(monkeypatch, tmp_path):
    def load(rank):
        tempfile.tempdir = None
        return sum(batch.sum().item() for batch in torch.utils.data.DataLoader(Numbers(), num_workers=2, batch_size=8))

    returned(load)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert returned(load) == (4950, 4950)
    assert list(tmp_path.iterdir()) == []


def test_a_host_name_that_means_nothing(kernel):
    """gloo asks for it unless it is told which interface to use."""
    resolves = """
    import socket
    def resolves():
        try:
            return bool(socket.gethostbyname(socket.gethostname()))
        except OSError:
            return False
    resolves()
    """
    if kernel.run(resolves):
        pytest.skip("giving a process a host name of its own needs root and the program unshare")
    kernel.run("run = labkit.launch(lambda rank: (resolves(), rank.mean(rank.rank)), world_size=2)")
    assert kernel.run("[run.results, run.log]") == [[[False, 0.5], [False, 0.5]], ""]
