"""Machines that are not here, made of fake readings."""

from dataclasses import replace

from labkit.devices import machine
from labkit.nvml import Card
from labkit.readings import Cpu, Readings

GIB = 2**30


def cards(count, name="NVIDIA GeForce RTX 4090"):
    return tuple(Card(name, 24 * GIB, f"GPU-{index}a5f") for index in range(count))


def cpus(count, *, threads=1, first=0, speed=0):
    """`count` logical CPUs; as Linux on x86 numbers them, a core's threads are `count / threads` apart."""
    cores = count // threads
    return tuple(Cpu(first + cpu, (first + cpu % cores,), speed) for cpu in range(count))


def fake(gpus=0, cores=2, **changes):
    """A machine with `gpus` RTX 4090 and `cores` plain CPU cores."""
    seen = Readings(cpus=cpus(cores), cpu_count=cores, cards=cards(gpus), torch_has_cuda=True, system="Linux 6.8 x86_64")
    return machine(readings=replace(seen, **changes))
