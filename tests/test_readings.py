"""Readings of a fake /proc, /sys and NVML: physical cores, kinds, quotas and limits of both cgroup versions, cards, MIG."""

import ctypes

import pytest

from labkit import nvml, readings
from labkit.cgroup import read_memory_limit, read_quota
from labkit.nvml import Card, read_cards
from labkit.readings import Cpu, cpu_list, mac_cpus, read_cpu_name, read_cpus


@pytest.fixture
def write(tmp_path):
    """Write `text` to a file under the fake root."""

    def write_file(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    return write_file


def test_cpu_list_reads_ranges_and_single_numbers():
    assert cpu_list("0-2,8") == (0, 1, 2, 8)
    assert cpu_list("5") == (5,)
    assert cpu_list("") == ()


def test_hardware_threads_share_a_core(tmp_path, write):
    for cpu in range(4):
        write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 2},{cpu % 2 + 2}")
    cpus = read_cpus(tmp_path, (0, 1, 2, 3))
    assert [cpu.core for cpu in cpus] == [(0, 2), (1, 3), (0, 2), (1, 3)]


def test_cores_are_told_apart_by_number_and_package_without_sibling_lists(tmp_path, write):
    for cpu, (package, core) in enumerate([(0, 0), (0, 0), (1, 0), (1, 0)]):
        write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", package)
        write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", core)
    cores = [cpu.core for cpu in read_cpus(tmp_path, (0, 1, 2, 3))]
    assert cores[0] == cores[1] != cores[2] == cores[3]


def test_every_cpu_is_a_core_where_sys_is_masked(tmp_path):
    assert [cpu.core for cpu in read_cpus(tmp_path, (4, 9))] == [(4,), (9,)]


def test_speed_is_the_top_clock_when_capacities_are_all_equal(tmp_path, write):
    for cpu, clock in enumerate([4_400_000, 5_700_000]):
        write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", 1024)
        write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", clock)
    assert [cpu.speed for cpu in read_cpus(tmp_path, (0, 1))] == [4_400_000, 5_700_000]


def test_speed_is_the_capacity_when_capacities_differ(tmp_path, write):
    for cpu, capacity in enumerate([380, 1024]):
        write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", capacity)
        write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", 2_000_000)
    assert [cpu.speed for cpu in read_cpus(tmp_path, (0, 1))] == [380, 1024]


def test_quota_version_2_is_the_smallest_up_to_the_root(tmp_path, write):
    write("proc/self/cgroup", "0::/slice/job/step")
    write("sys/fs/cgroup/slice/job/step/cpu.max", "max 100000")
    write("sys/fs/cgroup/slice/job/cpu.max", "250000 100000")
    write("sys/fs/cgroup/slice/cpu.max", "800000 100000")
    assert read_quota(tmp_path) == 2.5


def test_quota_version_2_without_limit(tmp_path, write):
    write("proc/self/cgroup", "0::/")
    write("sys/fs/cgroup/cpu.max", "max 100000")
    assert read_quota(tmp_path) is None


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_quota_version_1(tmp_path, write, folder):
    write("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/user/lab\n1:name=systemd:/")
    write(f"sys/fs/cgroup/{folder}/user/lab/cpu.cfs_quota_us", -1)
    write(f"sys/fs/cgroup/{folder}/user/lab/cpu.cfs_period_us", 100000)
    write(f"sys/fs/cgroup/{folder}/user/cpu.cfs_quota_us", 400000)
    write(f"sys/fs/cgroup/{folder}/user/cpu.cfs_period_us", 200000)
    assert read_quota(tmp_path) == 2.0


def test_quota_of_a_container_that_reads_the_hosts_path(tmp_path, write):
    write("proc/self/cgroup", "4:cpu,cpuacct:/docker/0123abc")
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", 150000)
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", 100000)
    assert read_quota(tmp_path) == 1.5


def test_memory_limit_is_the_smallest_of_both_versions(tmp_path, write):
    write("proc/self/cgroup", "3:memory:/a\n0::/b/c")
    write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", 9223372036854771712)
    write("sys/fs/cgroup/unified/b/c/memory.max", "max")
    write("sys/fs/cgroup/unified/b/memory.max", 10 * 2**30)
    assert read_memory_limit(tmp_path) == 10 * 2**30


def test_limits_are_unknown_without_cgroups(tmp_path):
    assert read_quota(tmp_path) is None
    assert read_memory_limit(tmp_path) is None


def test_cpu_name_is_the_first_model_name(tmp_path, write):
    write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast  Chip 9\nprocessor\t: 1\nmodel name\t: other")
    assert read_cpu_name(tmp_path) == "Fast Chip 9"
    assert read_cpu_name(tmp_path / "empty") == ""


def test_macs_name_performance_cores_first():
    assert mac_cpus({"hw.physicalcpu": "3", "hw.perflevel0.physicalcpu": "1"}) == (
        Cpu(0, (0,), 2),
        Cpu(1, (1,), 1),
        Cpu(2, (2,), 1),
    )
    assert len({cpu.speed for cpu in mac_cpus({"hw.physicalcpu": "4"})}) == 1


class FakeNvml:
    """The NVML calls that labkit makes, answered from a list of cards; handles are numbers, instances follow the cards."""

    def __init__(self, cards, *, broken=(), init=0):
        self.cards, self.broken, self.init, self.open = cards, broken, init, 0
        self.devices = [*cards, *(instance for card in cards for instance in card.instances)]
        self.nvmlErrorString = lambda code: {4: b"Insufficient Permissions", 18: b"Driver/library version mismatch"}[code]

    def nvmlInit_v2(self):
        self.open += self.init == 0
        return self.init

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index + 1
        return 4 if index in self.broken else 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total = self.devices[handle.value - 1].memory_bytes
        return 0 if memory._obj.total else 3

    def nvmlDeviceGetName(self, handle, buffer, size):
        buffer.value = self.devices[handle.value - 1].name.encode()
        return 0

    def nvmlDeviceGetUUID(self, handle, buffer, size):
        buffer.value = self.devices[handle.value - 1].uuid.encode()
        return 0

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        current._obj.value = self.devices[handle.value - 1].mig
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle, count):
        count._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index, instance):
        # Free slots lie between the instances, as on a card from which some were removed.
        instances = self.devices[handle.value - 1].instances
        if index % 2 or index // 2 >= len(instances):
            return 6
        instance._obj.value = self.devices.index(instances[index // 2]) + 1
        return 0


CARD = Card("NVIDIA GeForce RTX 4090", 24 * 2**30, "GPU-1")
SPLIT = Card(
    "NVIDIA H200", 140 * 2**30, "GPU-2", True, tuple(Card(f"NVIDIA H200 MIG {n}", n * 2**30, f"MIG-{n}") for n in (1, 2))
)


def test_nvml_cards_and_mig_instances_are_read():
    library = FakeNvml([CARD, SPLIT, Card("NVIDIA GB10", 0, "GPU-3")])
    assert read_cards(library) == ((CARD, SPLIT, Card("NVIDIA GB10", 0, "GPU-3")), "")
    assert library.open == 0


def test_nvml_with_mig_on_and_no_instances():
    (card,), _ = read_cards(FakeNvml([Card("NVIDIA H200", 1, "GPU-1", True)]))
    assert card.mig and card.instances == ()


def test_nvml_that_does_not_start_gives_the_drivers_sentence():
    assert read_cards(FakeNvml([CARD], init=18)) == ((), "Driver/library version mismatch")


def test_nvml_skips_a_card_it_may_not_read():
    cards, problem = read_cards(FakeNvml([CARD, SPLIT], broken=(0,)))
    assert cards == (SPLIT,)
    assert problem == "GPU 0: Insufficient Permissions"


def test_no_driver_is_no_problem(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvml.read_cards() == ((), "")


def test_cuda_visible_devices_is_read_as_it_is_at_the_call(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert readings.read().visible_devices == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert readings.read().visible_devices is None
