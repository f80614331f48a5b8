"""Cores that ranks get: one logical CPU per physical core, the faster kind first, within quota and limits."""

import pytest
from machines import GIB, cpus, fake

from labkit.readings import Cpu


def test_one_logical_cpu_per_physical_core():
    here = fake(cpus=cpus(8, threads=2), cpu_count=8)
    assert here.cores == (0, 1, 2, 3)
    assert (here.allowed_cpus, here.physical_cores) == (8, 4)
    assert "8 CPUs are the hardware threads of 4 physical cores: one rank per core" in here.notes


def test_a_core_counts_through_whichever_of_its_threads_is_allowed():
    here = fake(cpus=(Cpu(5, (1, 5)), Cpu(2, (2, 6)), Cpu(6, (2, 6))), cpu_count=8)
    assert here.cores == (2, 5)
    assert "affinity or cpuset: 3 of 8 CPUs" in here.notes


@pytest.mark.parametrize(
    "quota, count, note",
    [
        (2.0, 2, "cgroup quota: 2 of 128 CPUs"),
        (3.7, 3, "cgroup quota: 3.7 of 128 CPUs"),
        (0.5, 1, "cgroup quota: 0.5 of 128 CPUs: the system will pause even one rank"),
        (100.0, 64, "cgroup quota: 100 of 128 CPUs"),
    ],
)
def test_quota_cuts_the_cores(quota, count, note):
    here = fake(cpus=cpus(128, threads=2), cpu_count=128, quota_cpus=quota)
    assert here.cores == tuple(range(count))
    assert here.quota_cores == quota
    assert note in here.notes


def test_a_quota_above_the_cores_changes_nothing():
    here = fake(cores=4, quota_cpus=16.0)
    assert here.cores == (0, 1, 2, 3)
    assert here.notes == ()


def test_containers_on_one_host_do_not_all_take_the_first_cores():
    taken = [fake(cores=64, quota_cpus=2.0, seat=f"container {number}").cores for number in range(30)]
    assert all(len(set(cores)) == 2 and set(cores) <= set(range(64)) for cores in taken)
    assert all(one == other or not set(one) & set(other) for one in taken for other in taken)
    assert len(set(taken)) > 10
    assert taken[7] == fake(cores=64, quota_cpus=2.0, seat="container 7").cores


def test_faster_kind_first():
    slow, fast = cpus(8, speed=4_400_000), cpus(8, threads=2, first=8, speed=5_700_000)
    here = fake(cpus=slow + fast, cpu_count=16)
    assert here.cores == (8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7)
    assert "4 fast and 8 slower cores: with more than 4 ranks, steps wait for the slower" in here.notes
    assert fake(cpus=slow + fast, cpu_count=16, quota_cpus=2.0).cores == (8, 9)


def test_favoured_cores_are_not_another_kind():
    here = fake(cpus=(Cpu(0, (0,), 5_700_000), Cpu(1, (1,), 6_000_000)), cpu_count=2)
    assert here.cores == (0, 1)
    assert here.notes == ()


def test_memory_is_the_smaller_of_ram_and_limit():
    here = fake(ram_bytes=64 * GIB, memory_limit_bytes=10 * GIB)
    assert here.memory_bytes == 10 * GIB
    assert "cgroup memory limit: 10 of 64 GiB" in here.notes
    unlimited = fake(ram_bytes=64 * GIB, memory_limit_bytes=9223372036854771712)
    assert (unlimited.memory_bytes, unlimited.notes) == (64 * GIB, ())
