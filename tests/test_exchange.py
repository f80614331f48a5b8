"""Copies are judged by the data that arrive: a planted broken copy is found, in each direction."""

import pytest
import torch

from labkit.exchange import changed_copies


def zeros(tensor, device):
    return torch.zeros_like(tensor, device=device)


def one_changed(tensor, device):
    copied = tensor.to(device, copy=True)
    copied[-1] ^= 1
    return copied


def long_ones_shifted(tensor, device):
    return tensor.roll(512) if len(tensor) > 1000 else tensor


def test_good_copies_are_found_good():
    assert changed_copies(["cpu"] * 3, sizes=(1000, 5000)) == []


@pytest.mark.parametrize("broken", [zeros, one_changed, long_ones_shifted])
def test_broken_copies_are_found_in_both_directions(broken):
    assert changed_copies(["cpu"] * 2, copy=broken, sizes=(1000, 5000)) == [(0, 1), (1, 0)]


def test_copies_that_bring_what_the_memory_held_before_are_found():
    earlier = []

    def stale(tensor, device):
        earlier.append(tensor)
        return earlier[max(0, len(earlier) - 2)]

    # Only the very first copy has nothing to be taken for.
    assert changed_copies(["cpu"] * 3, copy=stale, sizes=(1000,)) == [(0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_one_broken_direction_is_named():
    devices = [torch.device("cpu", index) for index in range(3)]

    def broken(tensor, device):
        return zeros(tensor, "cpu") if device.index == 2 else tensor

    assert changed_copies(devices, copy=broken, sizes=(1000,)) == [(0, 2), (1, 2)]
