"""How long two ranks take to a ready group and one all_reduce: labkit, torchrun and torch.multiprocessing.spawn."""

import os
import subprocess
import sys
import tempfile
import time

from report import paired, report

import labkit

ROUNDS = 5
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
SPAWN = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def rank(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
if __name__ == "__main__":
    import time
    start = time.perf_counter()
    mp.spawn(rank, (sys.argv[1],), nprocs=2)
    print(time.perf_counter() - start)
"""


def add_up(rank):
    import torch

    torch.distributed.all_reduce(torch.ones(1))


def main():
    labkit.launch(add_up, world_size=2)  # the first one starts the fork server
    ours, torchrun, spawn = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            ours.append(_seconds(lambda: labkit.launch(add_up, world_size=2)))
            torchrun.append(_seconds(lambda: _torchrun(folder)))
            spawn.append(_spawn(folder))
    report("a later launch of 2 ranks, whole call, seconds", ours, "≤ 0.15", " s")
    report("torchrun ÷ labkit", paired(torchrun, ours), "≥ 20", " x")
    report("torch.multiprocessing.spawn ÷ labkit", paired(spawn, ours), "≥ 10", " x")


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _torchrun(folder):
    path = os.path.join(folder, "script.py")
    with open(path, "w") as file:
        file.write(SCRIPT)
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path]
    subprocess.run(command, check=True, capture_output=True, env=environ)


def _spawn(folder):
    """Returns the seconds of mp.spawn alone, without the import of torch in the process that calls it."""
    path = os.path.join(folder, "spawn.py")
    with open(path, "w") as file:
        file.write(SPAWN)
    store = os.path.join(folder, f"store-{time.monotonic_ns()}")
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, path, store], check=True, capture_output=True, text=True, env=environ)
    return float(done.stdout.split()[-1])
