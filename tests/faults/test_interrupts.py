"""Stop ends all ranks at any moment, in one line, and leaves the kernel as it was."""

import signal
import threading
import time

import pytest
import survivors
from workers import Moment

import labkit

TRAINING = """
def strategy(rank, moment):
    for step in rank.steps(100_000):
        rank.log(loss=1.0)
        moment.note()
        time.sleep(0.01)
"""
COLLECTIVE = """
def strategy(rank, moment):
    dist.barrier()
    moment.note()
    if rank.rank == 0:
        dist.all_reduce(torch.ones(3))
    time.sleep(1000)
"""
COMPUTING = """
def strategy(rank, moment):
    moment.note()
    while True:
        torch.ones(300, 300) @ torch.ones(300, 300)
"""
PRINTING = """
def strategy(rank, moment):
    moment.note()
    while True:
        print("step", time.time())
"""


def stop(kernel, moment, cell, presses=1):
    """Presses Stop when the moment has come, and returns what the cell ended with."""
    kernel.send(cell)
    moment.wait()
    time.sleep(0.1)
    pressed_at = time.monotonic()
    for _ in range(presses):
        kernel.interrupt()
        time.sleep(0.03)
    reply = kernel.reply(within_s=5)
    survivors.assert_gone(pressed_at + survivors.GONE_S - time.monotonic())
    return reply


def test_during_start_up(kernel, moment):
    """The fork server was killed since the last run, and Stop comes while a new one still imports torch."""
    assert kernel.run("labkit.launch(lambda rank: rank.rank, world_size=2).results") == [0, 1]
    kernel.run("os.kill(labkit.server_link._link.process.pid, 9)")
    cell = f"Moment({str(moment.path)!r}).note()\nlabkit.launch(lambda rank: None, world_size=2)"
    reply = stop(kernel, moment, cell)
    assert (reply["error"], reply["message"]) == ("Stopped", "stopped while the ranks were starting")
    assert kernel.run("labkit.launch(lambda rank: rank.rank, world_size=2).results") == [0, 1]


@pytest.mark.parametrize("cell", (TRAINING, COLLECTIVE, COMPUTING, PRINTING), ids=["train", "collective", "compute", "print"])
@pytest.mark.parametrize("presses", [1, 2], ids=["once", "twice quickly"])
def test_while_ranks_run(kernel, moment, cell, presses):
    kernel.run("kept = [1, 2, 3]")
    launch = f"labkit.launch(strategy, Moment({str(moment.path)!r}), world_size=2)"
    reply = stop(kernel, moment, cell + launch, presses)
    assert (reply["error"], reply["message"]) == ("Stopped", "stopped: all 2 ranks have ended")
    assert kernel.run("kept") == [1, 2, 3]
    assert kernel.run("labkit.launch(lambda rank: rank.rank, world_size=2).results") == [0, 1]


def test_while_ranks_leave_is_not_lost(monkeypatch):
    """Stop that comes when the results are there already still stops the cell."""
    from labkit import session

    let_go = session.Session._let_go

    def slow(self):
        signal.raise_signal(signal.SIGINT)
        let_go(self)

    monkeypatch.setattr(session.Session, "_let_go", slow)
    with pytest.raises(labkit.Stopped) as caught:
        labkit.launch(lambda rank: rank.rank, world_size=2, live=False)
    assert caught.value.run.results == (0, 1)


def test_what_was_recorded_is_kept(moment):
    def strategy(rank, moment):
        for step in rank.steps(1000):
            rank.log(loss=float(step))
            time.sleep(0.01)
            if step == 30:
                moment.note()

    def press():
        moment.wait()
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        labkit.launch(strategy, Moment(moment.path), world_size=2, live=False)
    presser.join()
    assert len(caught.value.run.records) > 20
    assert signal.getsignal(signal.SIGINT) is before
