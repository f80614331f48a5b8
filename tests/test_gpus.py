"""GPUs that ranks get: what CUDA_VISIBLE_DEVICES, MIG, a missing NVML and a torch without CUDA leave of them."""

from dataclasses import replace

import pytest
import torch
from machines import GIB, cards, fake

from labkit.devices import place
from labkit.nvml import Card


def instances(count):
    return tuple(Card("NVIDIA H200 MIG 1g.18gb", 18 * GIB, f"MIG-{index}b7e") for index in range(count))


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_gpus_are_counted(count):
    here = fake(gpus=count)
    assert [gpu.index for gpu in here.gpus] == list(range(count))
    assert all(gpu.memory_bytes == 24 * GIB and not gpu.mig for gpu in here.gpus)
    assert here.notes == ()


@pytest.mark.parametrize(
    "variable, uuids, note",
    [
        ("0,1,2,3", "0123", None),
        ("3, 1", "31", 'CUDA_VISIBLE_DEVICES="3, 1" shows 2 of 4 RTX 4090'),
        ("", "", 'CUDA_VISIBLE_DEVICES="" shows 0 of 4 RTX 4090'),
        ("-1", "", 'CUDA_VISIBLE_DEVICES="-1" shows 0 of 4 RTX 4090'),
        ("2,-1,3", "2", 'CUDA_VISIBLE_DEVICES="2,-1,3" shows 1 of 4 RTX 4090'),
        ("1,9,2", "1", 'CUDA_VISIBLE_DEVICES="1,9,2" shows 1 of 4 RTX 4090: "9" names none of them'),
        ("none", "", 'CUDA_VISIBLE_DEVICES="none" shows 0 of 4 RTX 4090: "none" names none of them'),
        ("1,1", "", 'CUDA_VISIBLE_DEVICES="1,1" names a GPU twice: CUDA then shows none'),
        ("GPU-2a5f,GPU-0", "20", 'CUDA_VISIBLE_DEVICES="GPU-2a5f,GPU-0" shows 2 of 4 RTX 4090'),
        ("GPU-", "", 'CUDA_VISIBLE_DEVICES="GPU-" shows 0 of 4 RTX 4090: "GPU-" names none of them'),
        ("GPU-1,2", "1", 'CUDA_VISIBLE_DEVICES="GPU-1,2" shows 1 of 4 RTX 4090: "2" names none of them'),
    ],
)
def test_cuda_visible_devices(variable, uuids, note):
    here = fake(gpus=4, visible_devices=variable)
    assert [gpu.uuid for gpu in here.gpus] == [f"GPU-{index}a5f" for index in uuids]
    assert [gpu.index for gpu in here.gpus] == list(range(len(uuids)))
    assert here.notes == ((note,) if note else ())


@pytest.mark.parametrize(
    "variable", ["0,1,2,3", "3,1", "", "-1", "2,-1,3", "1,9,2", "none", "1,1", "GPU-2a5f,GPU-0", "GPU-", "1x,2"]
)
def test_cuda_visible_devices_means_what_it_means_to_torch(monkeypatch, variable):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 4)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: [card.uuid for card in cards(4)])
    assert len(fake(gpus=4, visible_devices=variable).gpus) == torch.cuda._device_count_nvml()


def test_mig_gives_one_instance_to_a_process():
    here = fake(cards=(Card("NVIDIA H200", 140 * GIB, "GPU-0", True, instances(7)),))
    (gpu,) = here.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.uuid, gpu.mig) == ("NVIDIA H200 MIG 1g.18gb", 18 * GIB, "MIG-0b7e", True)
    note = "MIG is on: CUDA shows a process 1 instance of 7, here H200 MIG 1g.18gb; CUDA_VISIBLE_DEVICES selects which"
    assert here.notes == (note,)
    assert place(2, "cuda", share_device=True, machine=here).badge == "1 H200 MIG 1g.18gb shared by 2 ranks"


def test_a_single_mig_instance_needs_no_note():
    assert fake(cards=(Card("NVIDIA H200", 140 * GIB, "GPU-0", True, instances(1)),)).notes == ()


def test_mig_instance_named_in_cuda_visible_devices():
    split = (Card("NVIDIA H200", 140 * GIB, "GPU-0", True, instances(3)), *cards(1))
    assert [gpu.uuid for gpu in fake(cards=split, visible_devices="MIG-2b7e,MIG-1").gpus] == ["MIG-2b7e"]
    assert fake(cards=split, visible_devices="MIG-9").gpus == ()
    (whole,) = fake(cards=split, visible_devices="1").gpus
    assert (whole.name, whole.mig) == ("NVIDIA GeForce RTX 4090", False)


def test_mig_without_instances_leaves_the_other_cards():
    here = fake(cards=(Card("NVIDIA H200", 140 * GIB, "GPU-9", True), *cards(2)))
    assert [gpu.uuid for gpu in here.gpus] == ["GPU-0a5f", "GPU-1a5f"]
    assert "MIG is on without instances: 1 H200 can't be used" in here.notes


def test_without_nvml_torch_counts():
    here = fake(torch_gpus=2, nvml_problem="Driver/library version mismatch")
    assert len(here.gpus) == 2
    assert here.describe(2, "cuda") == "2 GPUs"
    assert here.notes == ("NVML not available (Driver/library version mismatch): names and memory of the 2 GPUs are unknown",)


def test_a_driver_in_disorder_is_told():
    assert fake(nvml_problem="Driver Not Loaded").notes == ("NVIDIA driver present, but it lists no GPU (Driver Not Loaded)",)


def test_a_torch_without_cuda_is_told_and_what_to_install():
    here = fake(gpus=2, torch_has_cuda=False, torch_version="2.13.0+cpu")
    assert here.gpus == ()
    (note,) = here.notes
    assert note.startswith("2 RTX 4090 found, but torch 2.13.0+cpu is built without CUDA")
    assert "pip install" in note
    with pytest.raises(ValueError, match="built without CUDA"):
        place(2, "cuda", machine=here)
    assert place(2, machine=here).device_type == "cpu"


def test_cards_of_two_kinds():
    mixed = (*cards(1), *cards(2, "NVIDIA GeForce RTX 3090"))
    mixed = tuple(replace(card, uuid=f"GPU-{index}") for index, card in enumerate(mixed))
    here = fake(cards=mixed)
    assert here.describe(3, "cuda") == "1 RTX 4090 + 2 RTX 3090"
    assert here.describe(1, "cuda") == "1 RTX 4090"
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in here.notes)
    assert fake(cards=mixed, device_order="PCI_BUS_ID").notes == ()
