"""What this machine gives to ranks, and which rank goes where."""

import operator
from dataclasses import dataclass

from labkit import passport
from labkit import readings as raw
from labkit.cores import usable_cores
from labkit.gpus import Gpu, about_gpus, group_names, usable_gpus

__all__ = ["Gpu", "Machine", "Placement", "default_world_size", "machine", "place"]
MOST_RANKS = 512  # each is a process; a mistyped number must not exhaust the machine


@dataclass(frozen=True, repr=False)
class Machine:
    """The devices that ranks may use here; shows itself as a passport, in a terminal and in a notebook.

    `cores` holds one logical CPU per physical core that this process may use, the faster kind first, cut to the cgroup's
    quota; `physical_cores` counts those behind the `allowed_cpus`; `memory_bytes` is the smaller of RAM and cgroup limit.
    """

    gpus: tuple[Gpu, ...]
    cores: tuple[int, ...]
    cpu_name: str
    memory_bytes: int
    allowed_cpus: int
    physical_cores: int
    quota_cores: float | None
    system: str
    python: str
    torch: str
    notes: tuple[str, ...] = ()

    @property
    def mode(self) -> str:
        """Where ranks run on this machine, and what would change that, in two sentences."""
        return " ".join(passport.mode(self))

    def describe(self, count: int, device_type: str) -> str:
        """The first `count` devices in words: "2 CPU cores", "4 RTX 4090", "1 RTX 4090 + 1 RTX 3090"."""
        if device_type == "cuda":
            return group_names(self.gpus[:count]) or "0 GPUs"
        return _counted(count, "CPU core")

    def __repr__(self) -> str:
        return passport.as_text(self)

    def _repr_html_(self) -> str:
        return passport.as_html(self)


@dataclass(frozen=True)
class Placement:
    """Where each rank runs: `devices` and `cores` (CPUs to be bound to, () for none) have one entry per rank."""

    device_type: str
    devices: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    backend: str
    badge: str
    warnings: tuple[str, ...] = ()


def machine(*, readings: raw.Readings | None = None) -> Machine:
    """Find out what this machine has, without opening a CUDA context; `readings` replaces what was read (tests)."""
    seen = readings or raw.read()
    gpus, gpu_notes = usable_gpus(seen)
    cores, physical, core_notes = usable_cores(seen)
    limit = seen.memory_limit_bytes
    limited = limit is not None and 0 < limit < seen.ram_bytes
    memory_notes = (f"cgroup memory limit: {limit / 2**30:.3g} of {seen.ram_bytes / 2**30:.3g} GiB",) if limited else ()
    return Machine(
        gpus=gpus,
        cores=cores,
        cpu_name=seen.cpu_name,
        memory_bytes=limit if limited else seen.ram_bytes,
        allowed_cpus=len(seen.cpus),
        physical_cores=physical,
        quota_cores=seen.quota_cpus,
        system=seen.system,
        python=seen.python,
        torch=seen.torch_version,
        notes=gpu_notes + core_notes + memory_notes,
    )


def place(
    world_size: int,
    device: str | None = None,
    *,
    share_device: bool = False,
    largest: int | None = None,
    machine: Machine | None = None,
) -> Placement:
    """Give each rank a device: all ranks on CUDA or all on CPU, decided for the `largest` world size of the whole call.

    None takes CUDA where every rank of the largest world size gets its own GPU (or may share one), else the CPU. Refuses
    with `ValueError` a world size that is no whole number from 1 up, an unknown device, and CUDA with too few GPUs.
    """
    here = machine or _this_machine()
    world_size = _checked_size(world_size, "world_size")
    largest = max(world_size, _checked_size(largest, "largest") if largest is not None else 1)
    if device not in (None, "cuda", "cpu"):
        raise ValueError(f'device is None, "cuda" or "cpu", not {device!r}; CUDA_VISIBLE_DEVICES selects single GPUs')
    fits = largest <= len(here.gpus) or (share_device and len(here.gpus) > 0)
    if device == "cuda" and not fits:
        raise ValueError(_too_few_gpus(largest, here))
    if device == "cpu" or not fits:
        return _on_cpu(world_size, here)
    return _on_cuda(world_size, here, shared=largest > len(here.gpus))


def default_world_size(device: str | None = None, *, machine: Machine | None = None) -> int:
    """All devices: every GPU where there are two or more (or CUDA is asked for), else one rank per CPU core."""
    here = machine or _this_machine()
    if device == "cuda" and not here.gpus:
        raise ValueError(_too_few_gpus(1, here))
    return len(here.gpus) if device == "cuda" or (device is None and len(here.gpus) >= 2) else len(here.cores)


def _this_machine() -> Machine:
    return machine()


def _checked_size(size, name: str) -> int:
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if isinstance(size, bool) or number < 1:
        raise ValueError(f"{name} is a whole number of ranks, 1 or more, not {size!r}")
    if number > MOST_RANKS:
        raise ValueError(f"{name}={number:,} would start as many processes; use {MOST_RANKS} at most")
    return number


def _too_few_gpus(ranks: int, here: Machine) -> str:
    if not here.gpus:
        reasons = "".join(f"; {note}" for note in about_gpus(here.notes))
        return f'device="cuda" for {_counted(ranks, "rank")}, but torch can use no GPU here: use device="cpu"{reasons}'
    found = here.describe(len(here.gpus), "cuda")
    remedy = f'use world_size={len(here.gpus)} at most, device="cpu", or share_device=True (ranks share GPUs over gloo)'
    return f'device="cuda" for {ranks} ranks, but this machine has {found}: {remedy}'


def _on_cuda(world_size: int, here: Machine, *, shared: bool) -> Placement:
    count = len(here.gpus)
    used = here.describe(min(world_size, count), "cuda")
    return Placement(
        device_type="cuda",
        devices=tuple(f"cuda:{here.gpus[rank % count].index}" for rank in range(world_size)),
        cores=((),) * world_size,
        backend="gloo" if shared else "nccl",  # NCCL refuses two ranks on one GPU
        badge=f"{used} shared by {world_size} ranks" if world_size > count else used,
    )


def _on_cpu(world_size: int, here: Machine) -> Placement:
    count = len(here.cores)
    used = here.describe(min(world_size, count), "cpu")
    bound = here.system.startswith("Linux")
    crowded = world_size > count
    warning = f"{world_size} ranks share {used}: results are right, speeds mean nothing"
    return Placement(
        device_type="cpu",
        devices=("cpu",) * world_size,
        cores=tuple((here.cores[rank % count],) if bound else () for rank in range(world_size)),
        backend="gloo",
        badge=f"{world_size} ranks on {used}" if crowded else used,
        warnings=(warning,) if crowded else (),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
