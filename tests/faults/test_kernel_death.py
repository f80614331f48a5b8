"""A kernel that dies takes its ranks and all that they started with it; other kernels are not touched."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import survivors
from kernels import START, Kernel
from workers import Moment

import labkit
from labkit import process_table, server_link

BUSY = """
import subprocess, sys, torch.utils.data

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, at):
        time.sleep(0.1)
        return at

def strategy(rank, folder):
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    for session in (False, True):
        subprocess.Popen(sleep, start_new_session=session)
    loader = iter(torch.utils.data.DataLoader(Slow(), num_workers=2))
    next(loader)
    dist.barrier()
    Moment(f"{folder}/started-{rank.rank}").note()
    for batch in loader:
        pass
"""


def test_kernel_killed_with_ranks_and_their_children_alive(tmp_path, kernel):
    """Each of 2 ranks has 2 loader workers, a subprocess, and another one in a session of its own."""
    with Kernel(tmp_path) as dying:
        dying.run(START)
        dying.send(BUSY + f"labkit.launch(strategy, {str(tmp_path)!r}, world_size=2)")
        for rank in range(2):
            Moment(tmp_path / f"started-{rank}").wait()
        kernel.send("[labkit.launch(lambda rank: rank.mean(rank.rank), world_size=2).results for _ in range(5)]")
        server, directory = server_of(dying)
        assert os.stat(directory).st_mode & 0o777 == 0o700
        family = process_table.family(server, process_table.processes())
        assert len(family) >= 1 + 2 * (1 + 2 + 2)
        killed_at = time.monotonic()
        dying.kill()
        while survivors.of(family) or os.path.exists(directory):
            assert time.monotonic() - killed_at < survivors.GONE_S
            time.sleep(0.01)
        assert kernel.reply()["value"] == [[0.5, 0.5]] * 5


def server_of(kernel):
    """Returns the id of a kernel's fork server and its private directory, which is on its command line."""
    (server,) = process_table.children(kernel.process.pid)
    with open(f"/proc/{server}/cmdline") as file:
        words = file.read().split("'")
    (directory,) = [word for word in words if "labkit-" in word and os.path.isdir(word)]
    return server, directory


def test_a_fork_of_the_kernel_keeps_no_rank_alive(fail):
    """It holds the kernel's ends of all pipes too, so that nobody sees them closed."""

    def strategy(rank, moment):
        time.sleep(0.3)
        moment.note()
        raise ValueError("wrong")

    def fork():
        time.sleep(0.2)
        forked.start()

    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    labkit.launch(lambda rank: None, world_size=1, live=False)
    threads = [threading.Thread(target=fork)]
    threads[0].start()
    try:
        assert str(fail(strategy)) == "rank 0 raised ValueError: wrong"
        assert labkit.launch(lambda rank: time.sleep(0.1), world_size=2, live=False).results == (None, None)
    finally:
        threads[0].join()
        forked.kill()
        forked.join()


def test_a_rank_that_cannot_be_started_is_named(monkeypatch):
    from labkit import children, server

    def no_room(*args, **options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    one = server.Server.__new__(server.Server)
    one.runs = {1: server.Run(2, None, None)}
    monkeypatch.setattr(children, "start_rank", no_room)
    assert one.on_rank([], run=1, rank=0, fork=True) == {"pid": None, "trouble": os.strerror(errno.EAGAIN)}


def test_fork_server_killed_during_a_run(moment, monkeypatch):
    """Ranks end by themselves, since nobody is left who could end them; what they had started is ended by the kernel."""

    def strategy(rank, moment, server):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        rank.barrier()
        if rank.rank == 0:
            moment.note()
            os.kill(server, signal.SIGKILL)
        time.sleep(600)

    def await_their_own_end(leaders):
        while any(process_table.process(leader) for leader in leaders):
            assert moment.age_s() < survivors.GONE_S
        ended.extend(leaders)
        kill_families(leaders)

    ended, kill_families = [], process_table.kill_families
    monkeypatch.setattr(process_table, "kill_families", await_their_own_end)
    labkit.launch(lambda rank: None, world_size=1, live=False)
    with pytest.raises(RuntimeError, match="fork server was ended, and all ranks with it; the next run starts a new one"):
        labkit.launch(strategy, moment, server_link._link.process.pid, world_size=2, live=False)
    assert moment.age_s() < survivors.GONE_S and len(ended) == 2
    survivors.assert_gone(within_s=survivors.GONE_S - moment.age_s())
