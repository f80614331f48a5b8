"""What ranks print is seen, all of it in the log, however it was written."""

import os
import subprocess
import sys
import time

import pytest

import labkit


def lines_of(run, rank):
    return [line.removeprefix(f"rank {rank}: ") for line in run.log.splitlines() if line.startswith(f"rank {rank}: ")]


def test_every_way_of_printing(capfd):
    def speak(rank):
        print("unflushed", end=" ")
        print("text")
        sys.stdout.write("half ")
        os.write(1, b"and half from C\n")
        print("to stderr", file=sys.stderr)
        os.write(2, b"to stderr from C\n")
        sys.stdout.buffer.write("bytes: ü\n".encode())
        subprocess.run(["echo", "from a process of its own"])
        print("no newline at the end", end="")

    run = labkit.launch(speak, world_size=2)
    for rank in range(2):
        said = lines_of(run, rank)
        assert [line for line in said if "stderr" not in line] == [
            "unflushed text",
            "half and half from C",
            "bytes: ü",
            "from a process of its own",
            "no newline at the end",
        ]
        assert [line for line in said if "stderr" in line] == ["to stderr", "to stderr from C"]
    shown = capfd.readouterr()
    assert "all 2 ranks: half and half from C\n" in shown.out
    assert "all 2 ranks: to stderr from C\n" in shown.err


def test_lines_are_seen_while_ranks_run(moment):
    """A line without a newline or a flush is there before the run ends."""

    class Witness:
        def tick(self, session):
            seen.append(moment.path.exists() and "first" in session.prints.text())
            return False

        def close(self, session, failure):
            pass

    def speak(rank):
        print("first", end="")
        moment.note()
        time.sleep(0.5)

    from labkit.launcher import run_ranks

    seen = []
    run_ranks(speak, (), {}, world_size=1, view=Witness())
    assert seen.count(True) >= 2


def test_carriage_returns_of_each_rank():
    def bar(rank):
        for at in range(101):
            sys.stderr.write(f"\rrank {rank.rank}: {at} %")
        sys.stderr.write("\n")
        print("done")

    run = labkit.launch(bar, world_size=2, live=False)
    for rank in range(2):
        said = lines_of(run, rank)
        assert "done" in said and f"rank {rank}: 100 %" in said
        assert len(said) == 2


def test_100_000_lines(capfd):
    def chatter(rank):
        for at in range(50_000):
            print("line", at, "of rank", rank.rank)

    run = labkit.launch(chatter, world_size=2, timeout=10, live=False)
    for rank in range(2):
        assert lines_of(run, rank) == [f"line {at} of rank {rank}" for at in range(50_000)]
    shown = capfd.readouterr().out
    assert len(shown.splitlines()) < 300 and "more lines here" in shown


def test_prints_of_a_failing_rank_come_before_its_error(capfd):
    def speak(rank):
        print("the last words", end="")
        os._exit(3)

    with pytest.raises(labkit.RankError) as caught:
        labkit.launch(speak, world_size=1)
    assert caught.value.run.log == "rank 0: the last words\n"
    assert capfd.readouterr().out == "rank 0: the last words\n"


def test_text_is_the_same_every_time(capfd):
    def speak(rank):
        for step in range(5):
            print("step", step)
            time.sleep(0.001 * rank.rank)
            print("loss of rank", rank.rank, "is", rank.rank + step)

    texts = set()
    for _ in range(8):
        labkit.launch(speak, world_size=2, live=False)
        texts.add(capfd.readouterr().out)
    (text,) = texts
    assert text.startswith("all 2 ranks: step 0\nrank 0: loss of rank 0 is 0\nrank 1: loss of rank 1 is 1\nall 2 ranks: step 1\n")


def test_nothing_is_said_by_labkit_or_its_backend(capfd):
    import torch
    import torch.distributed as dist

    def silent(rank):
        dist.all_reduce(torch.ones(3))
        dist.new_group([0, 1])
        rank.barrier()

    run = labkit.launch(silent, world_size=2)
    shown = capfd.readouterr()
    assert (run.log, shown.out, shown.err) == ("", "", "")
