"""What the operating system, the NVIDIA driver and torch say about this machine, before anything is decided."""

import os
import platform
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.cgroup import integer_of, read_memory_limit, read_quota, text_of
from labkit.nvml import Card, read_cards


@dataclass(frozen=True)
class Cpu:
    """A logical CPU: `core` is equal for the hardware threads of one physical core; `speed` only compares, 0 unknown."""

    id: int
    core: tuple = ()
    speed: int = 0


@dataclass(frozen=True)
class Readings:
    """Raw readings, all of them replaceable in tests; None, 0 or "" where the machine does not say."""

    cpus: tuple[Cpu, ...] = (Cpu(0),)  # those that this process may use
    cpu_count: int = 1  # those that the machine has
    cpu_name: str = ""
    quota_cpus: float | None = None
    seat: str = ""  # tells this process's container or login from its neighbours on the same host
    ram_bytes: int = 0
    memory_limit_bytes: int | None = None
    cards: tuple[Card, ...] = ()
    nvml_problem: str = ""
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES
    device_order: str = ""  # CUDA_DEVICE_ORDER
    torch_version: str = ""
    torch_has_cuda: bool = False
    torch_gpus: int = 0  # torch's own count, asked only where NVML lists nothing
    system: str = "Linux"
    python: str = ""


def read(root: Path = Path("/")) -> Readings:
    """Read this machine, with /proc and /sys under `root`."""
    cards, problem = read_cards()
    has_cuda = bool(torch.version.cuda or torch.version.hip)
    mac = _sysctl() if platform.system() == "Darwin" else {}
    return Readings(
        cpus=mac_cpus(mac) if mac else read_cpus(root, _allowed()),
        cpu_count=os.cpu_count() or 1,
        cpu_name=mac.get("machdep.cpu.brand_string") or read_cpu_name(root) or platform.machine(),
        quota_cpus=read_quota(root),
        seat=f"{platform.node()} {text_of(root / 'proc/self/cgroup')}",
        ram_bytes=_ram_bytes(),
        memory_limit_bytes=read_memory_limit(root),
        cards=cards,
        nvml_problem=problem,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=os.environ.get("CUDA_DEVICE_ORDER", ""),
        torch_version=torch.__version__,
        torch_has_cuda=has_cuda,
        torch_gpus=_torch_gpus() if has_cuda and not cards else 0,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def read_cpus(root: Path, allowed: tuple[int, ...]) -> tuple[Cpu, ...]:
    """The allowed logical CPUs with physical core and speed (Linux ABI documentation, sysfs-devices-system-cpu)."""
    folder = root / "sys/devices/system/cpu"
    core_of: dict[int, tuple] = {}
    for cpu in allowed:
        if cpu not in core_of:
            siblings = _siblings(folder / f"cpu{cpu}/topology", cpu)
            core_of.update(dict.fromkeys(siblings or (cpu,), siblings or _numbered_core(folder / f"cpu{cpu}/topology", cpu)))
    first = {core_of[cpu]: cpu for cpu in reversed(allowed)}
    # Capacity is the scheduler's own measure, but many kernels give every CPU the same; then the top clock tells them apart.
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speed_of = {core: integer_of(folder / f"cpu{cpu}" / name) or 0 for core, cpu in first.items()}
        if len(set(speed_of.values())) > 1:
            break
    return tuple(Cpu(cpu, core_of[cpu], speed_of[core_of[cpu]]) for cpu in allowed)


def _siblings(topology: Path, cpu: int) -> tuple[int, ...]:
    for name in ("thread_siblings_list", "core_cpus_list"):
        siblings = cpu_list(text_of(topology / name))
        if cpu in siblings:
            return siblings
    return ()


def _numbered_core(topology: Path, cpu: int) -> tuple:
    core = text_of(topology / "core_id")
    return ("package", text_of(topology / "physical_package_id"), "core", core) if core else (cpu,)


def cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a kernel list such as "0-2,8"."""
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def read_cpu_name(root: Path) -> str:
    """The processor's name in /proc/cpuinfo, "" where it has none (most ARM kernels)."""
    try:
        with open(root / "proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            found = (line.partition(":")[2] for line in lines if line.startswith("model name"))
            return " ".join(next(found, "").split())
    except OSError:
        return ""


def mac_cpus(values: dict[str, str]) -> tuple[Cpu, ...]:
    """One CPU per physical core of a Mac, performance cores (perflevel0) first, from the values of `sysctl`."""
    cores = int(values["hw.physicalcpu"])
    fast = int(values.get("hw.perflevel0.physicalcpu", cores))
    return tuple(Cpu(index, (index,), 2 if index < fast else 1) for index in range(cores))


def _sysctl() -> dict[str, str]:
    names = ("hw.physicalcpu", "hw.perflevel0.physicalcpu", "machdep.cpu.brand_string")
    fallback = {"hw.physicalcpu": str(os.cpu_count() or 1)}
    try:
        done = subprocess.run(["sysctl", *names], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return fallback
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return fallback | {name: value.strip() for name, _, value in pairs}


def _allowed() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _ram_bytes() -> int:
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def _torch_gpus() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver in disorder becomes one note of the machine, not a warning per call
        return torch.cuda.device_count()
