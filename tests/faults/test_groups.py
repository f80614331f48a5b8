"""torch.distributed in a rank: what learners' scripts call still works, quietly, and nobody else can join."""

import os

import pytest
import torch
import torch.distributed as dist

import labkit

LISTENING = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def test_init_process_group_as_in_scripts_made_for_torchrun(monkeypatch, capfd):
    def script(rank):
        dist.init_process_group("gloo", init_method="env://", rank=int(os.environ["RANK"]), world_size=2)
        numbers = torch.ones(1)
        dist.all_reduce(numbers)
        dist.destroy_process_group()
        return numbers.item()

    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    run = labkit.launch(script, world_size=2)
    assert run.results == (2.0, 2.0)
    assert (run.log, *capfd.readouterr()) == ("", "", "")


def test_a_rank_that_raises_says_nothing_about_its_group(capfd):
    """torch would warn that destroy_process_group was not called."""

    def script(rank):
        dist.init_process_group("gloo")
        raise ValueError("wrong")

    with pytest.raises(labkit.RankError):
        labkit.launch(script, world_size=2)
    assert capfd.readouterr() == ("", "")


def test_a_group_that_was_destroyed_can_be_made_again():
    def script(rank):
        sums = []
        for _ in range(3):
            numbers = torch.ones(1)
            dist.all_reduce(numbers)
            sums.append(numbers.item())
            dist.destroy_process_group()
            dist.init_process_group()
        return sums, dist.get_backend()

    assert labkit.launch(script, world_size=2, live=False).results == (([2.0] * 3, "gloo"),) * 2


def test_another_world_size_is_refused():
    with pytest.raises(labkit.RankError, match=r"init_process_group\(world_size=4\) in a run of 2 ranks; leave world_size out"):
        labkit.launch(lambda rank: dist.init_process_group("gloo", world_size=4), world_size=2, live=False)


def test_groups_of_some_ranks():
    def script(rank):
        pairs = [dist.new_group([0, 1]), dist.new_group([2])]
        numbers = torch.ones(1)
        dist.all_reduce(numbers, group=pairs[rank.rank // 2])
        return numbers.item()

    assert labkit.launch(script, world_size=3, live=False).results == (2.0, 2.0, 1.0)


def test_nothing_listens_beyond_loopback():
    """Not even loopback in the kernel and its fork server: who could connect there could send them what they unpickle."""

    def script(rank):
        dist.all_reduce(torch.ones(1))
        rank.barrier()
        return listening(os.getpid()), listening(os.getppid())

    for own, servers in labkit.launch(script, world_size=2, live=False).results:
        assert servers == []
        assert own and {address for address, _ in own} <= set(LOOPBACK)
        assert "0" not in {port for _, port in own}
    assert listening(os.getpid()) == []


def listening(pid):
    """Returns (address, port) in hex of every TCP socket, and the name of every Unix socket, that a process listens on."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{descriptor}").removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found += [tuple(row[1].split(":")) for row in rows if row[3] == LISTENING and row[9] in inodes]
    with open(f"/proc/{pid}/net/unix") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return found + [(row[-1], "unix") for row in rows if row[3] == "00010000" and row[6] in inodes]
