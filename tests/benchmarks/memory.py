"""How much a kernel grows over many watched runs."""

import gc
import os

from kernel import run_in_kernel

import labkit
from labkit.training import one_device

WARM_UP, RUNS = 5, 30


def memory_bytes():
    """Returns the resident memory of this process in bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure():
    """Returns the growth in bytes over RUNS runs with live figures; run inside a kernel."""
    job = labkit.small_job()
    for _ in range(WARM_UP):
        labkit.train(one_device, world_size=2, steps=10, job=job)
    gc.collect()
    before = memory_bytes()
    for _ in range(RUNS):
        labkit.train(one_device, world_size=2, steps=10, job=job)
    gc.collect()
    return memory_bytes() - before


def main():
    folder = os.path.dirname(__file__)
    growth = run_in_kernel(f"import sys; sys.path.insert(0, {folder!r}); import memory; memory.measure()")
    print(f"  kernel growth over {RUNS} watched runs: {growth / 1e6:.1f} MB   goal < 20 MB")
