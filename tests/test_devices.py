"""Which rank goes where, what is refused, and this very machine."""

import os

import numpy
import pytest
import torch
from machines import fake

from labkit.devices import default_world_size, machine, place


def test_cpu_ranks_get_one_core_each():
    placement = place(2, machine=fake(cores=4))
    assert (placement.device_type, placement.backend) == ("cpu", "gloo")
    assert placement.devices == ("cpu", "cpu")
    assert placement.cores == ((0,), (1,))
    assert (placement.badge, placement.warnings) == ("2 CPU cores", ())
    assert place(1, machine=fake()).badge == "1 CPU core"


def test_more_ranks_than_cores_warn():
    placement = place(4, machine=fake(cores=2))
    assert placement.cores == ((0,), (1,), (0,), (1,))
    assert placement.badge == "4 ranks on 2 CPU cores"
    assert placement.warnings == ("4 ranks share 2 CPU cores: results are right, speeds mean nothing",)


def test_macs_bind_no_core():
    assert place(2, machine=fake(system="Darwin 24.0 arm64")).cores == ((), ())


@pytest.mark.parametrize(
    "gpus, world_size, largest, device_type",
    [
        (0, 1, None, "cpu"),
        (1, 1, None, "cuda"),
        (1, 2, None, "cpu"),
        (2, 2, None, "cuda"),
        (8, 8, None, "cuda"),
        (2, 3, None, "cpu"),
        (2, 1, 2, "cuda"),
        (2, 1, 4, "cpu"),
        (1, 1, 2, "cpu"),
    ],
)
def test_one_call_never_mixes(gpus, world_size, largest, device_type):
    assert place(world_size, largest=largest, machine=fake(gpus=gpus)).device_type == device_type


def test_gpu_ranks_get_one_gpu_each():
    placement = place(2, machine=fake(gpus=4))
    assert placement.devices == ("cuda:0", "cuda:1")
    assert placement.cores == ((), ())
    assert (placement.backend, placement.badge) == ("nccl", "2 RTX 4090")


@pytest.mark.parametrize("gpus, largest", [(2, None), (4, 8)])
def test_cuda_with_too_few_gpus_is_refused_with_numbers_and_remedy(gpus, largest):
    with pytest.raises(ValueError) as refusal:
        place(4, "cuda", largest=largest, machine=fake(gpus=gpus))
    for part in (f"{largest or 4} ranks", f"{gpus} RTX 4090", f"world_size={gpus}", 'device="cpu"', "share_device=True"):
        assert part in str(refusal.value)


def test_cuda_without_gpus_is_refused():
    with pytest.raises(ValueError, match='device="cuda" for 1 rank, but torch can use no GPU here: use device="cpu"'):
        place(1, "cuda", share_device=True, machine=fake())


def test_shared_gpus_go_round_over_gloo():
    placement = place(5, share_device=True, machine=fake(gpus=2))
    assert placement.devices == ("cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0")
    assert (placement.backend, placement.badge) == ("gloo", "2 RTX 4090 shared by 5 ranks")
    alone = place(1, "cuda", share_device=True, largest=2, machine=fake(gpus=1))
    assert (alone.devices, alone.backend, alone.badge) == (("cuda:0",), "gloo", "1 RTX 4090")


@pytest.mark.parametrize("share", [False, True])
def test_share_device_changes_nothing_where_no_gpu_is_shared(share):
    assert place(2, "cuda", share_device=share, machine=fake(gpus=2)).backend == "nccl"
    assert place(2, "cpu", share_device=share, machine=fake(gpus=1)).device_type == "cpu"
    assert place(2, share_device=share, machine=fake()).device_type == "cpu"


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None])
def test_world_size_is_a_whole_number_from_1(size):
    with pytest.raises(ValueError, match="world_size is a whole number of ranks, 1 or more, not"):
        place(size, machine=fake())


def test_a_mistyped_number_of_ranks_starts_none():
    assert len(place(512, machine=fake()).devices) == 512
    for size in (513, 10**9):
        with pytest.raises(ValueError, match=f"world_size={size:,} would start as many processes; use 512 at most"):
            place(size, machine=fake())


def test_world_size_may_be_a_numpy_integer():
    assert len(place(numpy.int64(2), machine=fake()).devices) == 2


@pytest.mark.parametrize("device", ["cuda:0", "gpu", "mps", torch.device("cpu")])
def test_unknown_devices_are_refused(device):
    with pytest.raises(ValueError, match='None, "cuda" or "cpu"'):
        place(1, device, machine=fake(gpus=1))


def test_default_world_size_is_all_devices():
    assert default_world_size(machine=fake(gpus=0, cores=3)) == 3
    assert default_world_size(machine=fake(gpus=1, cores=3)) == 3
    assert default_world_size(machine=fake(gpus=4, cores=3)) == 4
    assert default_world_size("cuda", machine=fake(gpus=1, cores=3)) == 1
    assert default_world_size("cpu", machine=fake(gpus=4, cores=3)) == 3
    with pytest.raises(ValueError, match="no GPU"):
        default_world_size("cuda", machine=fake())


def test_this_machine_is_read_without_cuda():
    here = machine()
    assert not torch.cuda.is_initialized()
    assert len(here.cores) == len(set(here.cores)) >= 1
    assert len(here.cores) <= here.physical_cores <= here.allowed_cpus <= os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert set(here.cores) <= os.sched_getaffinity(0)
    assert here.memory_bytes > 0 and here.cpu_name and here.torch == torch.__version__
    assert place(default_world_size("cpu"), "cpu").warnings == ()
    assert here == machine()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no CPUs")
def test_affinity_is_respected():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed)})
        assert machine().cores == (max(allowed),)
    finally:
        os.sched_setaffinity(0, allowed)
