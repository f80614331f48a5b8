"""What the machine around the ranks gives them: cores, threads, shared memory, a place for files, and the loopback network."""

import math
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from labkit.devices import Machine, machine
from labkit.findings import Finding, broken, fine, look
from labkit.gpus import about_gpus

GB = 10**9
SHARED_BYTES, SHARED_PER_GPU_BYTES = 256 * 10**6, GB // 2  # loader workers; NCCL's buffers besides
TEMP_BYTES = 100 * 10**6
SLOW_NAME_S = 1.0
# OpenMP's own binding; libgomp applies it to the process that loads it, and everything forked from it inherits it.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
NOT_BINDING = ("", "false", "none", "disabled")


def cores(here: Machine | None = None) -> Finding:
    """How many cores ranks get, after affinity, quota and hardware threads."""
    here = here or machine()
    notes = [note for note in here.notes if note not in about_gpus(here.notes)]
    found = "; ".join([f"{here.describe(len(here.cores), 'cpu')} for ranks", *notes])
    if len(here.cores) >= 2:
        return fine(found)
    if here.quota_cores is not None and here.physical_cores >= 2:
        remedy = "give the container 2 CPUs or more (docker run --cpus 2)"
    elif any(note.startswith("affinity") for note in notes):
        remedy = "ask for 2 CPUs or more (docker run --cpuset-cpus 0,1; sbatch --cpus-per-task 2)"
    else:
        remedy = "nothing to repair: results are right, a speed-up needs a second core"
    return look(f"{found}: more ranks are not faster", remedy)


def threads(
    here: Machine | None = None,
    environ: Mapping[str, str] = os.environ,
    own_threads: int | None = None,
    shell_cpus: int | None = None,
) -> Finding:
    """Whether OpenMP's settings bind all ranks to one CPU, or give this process more threads than it has cores.

    `own_threads` is what torch would use here, `shell_cpus` the number of CPUs before torch was imported.
    """
    here = here or machine()
    own_threads = own_threads or torch.get_num_threads()
    shell_cpus = shell_cpus or _parents_cpus()
    binding = [f"{name}={environ[name]}" for name in BINDING if environ.get(name, "").lower() not in NOT_BINDING]
    if binding and here.allowed_cpus < shell_cpus:
        names = " ".join(part.partition("=")[0] for part in binding)
        found = f"{' '.join(binding)} binds this process and all its ranks to {here.allowed_cpus} of {shell_cpus} CPUs"
        return look(found, f"unset {names} before Jupyter is started")
    room = max(1, min(here.allowed_cpus, math.ceil(here.quota_cores or here.allowed_cpus)))
    if own_threads > room:
        found = f"ranks compute with 1 thread each, but the notebook's own process with {own_threads} on {room} CPUs"
        return look(found, f"export OMP_NUM_THREADS={room} before Jupyter is started")
    return fine(f"1 per rank; {own_threads} in a notebook's own process")


def shared_memory(gpus: int = 0, folder: str = "/dev/shm", system: str = sys.platform) -> Finding:
    """Whether /dev/shm has room for loader workers and, with several GPUs, for NCCL."""
    if system != "linux":
        return fine("not needed on this system")
    remedy = "in a container: docker run --shm-size 8g (or --ipc host)"
    problem = _cannot_write(folder)
    if problem:
        return broken(f"{folder}: {problem}", remedy)
    total, free = _space(folder)
    need = SHARED_BYTES + (SHARED_PER_GPU_BYTES * gpus if gpus >= 2 else 0)
    found = f"{folder}: {_size(free)} free of {_size(total)}"
    if free < need:
        return look(f"{found}, less than the {_size(need)} that loader workers and NCCL may take", remedy)
    return fine(found)


def temp_directory(folder: str | None = None) -> Finding:
    """Whether the directory for temporary files can be written and is not full."""
    remedy = "free space there, or set TMPDIR to a directory of your own"
    try:
        folder = folder or tempfile.gettempdir()
    except OSError as error:
        return broken(str(error), remedy)
    problem = _cannot_write(folder)
    if problem:
        return broken(f"{folder}: {problem}", remedy)
    found = f"{folder}: {_size(_space(folder)[1])} free"
    return fine(found) if _space(folder)[1] >= TEMP_BYTES else look(f"{found}, which a few runs' files can fill", remedy)


def loopback(address: str = "127.0.0.1", system: str = sys.platform) -> Finding:
    """Whether two ends of a connection meet on this machine, over the interface that gloo is told to use."""
    interface = "lo0" if system == "darwin" else "lo"
    remedy = f"bring the interface up (ip link set {interface} up); every container needs it"
    try:
        with socket.create_server((address, 0)) as server, socket.create_connection(server.getsockname(), timeout=1):
            pass
    except OSError as error:
        return broken(f"{address} can't be used: {error}", remedy)
    if interface not in [name for _, name in socket.if_nameindex()]:
        return broken(f"no network interface is called {interface}, which gloo uses", remedy)
    return fine(f"{address} on {interface} connects")


def host_name(name: str | None = None) -> Finding:
    """Whether this host's name resolves quickly to an address of this host; labkit does without, other launchers don't."""
    name = name or socket.gethostname()
    remedy = f'add "127.0.1.1 {name}" to /etc/hosts; labkit itself uses the loopback address and works'
    started = time.monotonic()
    try:
        addresses = sorted({row[4][0] for row in socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)})
    except OSError as error:
        return look(f"{name} does not resolve ({error.strerror}): torchrun and plain gloo may fail", remedy)
    seconds = time.monotonic() - started
    if not any(_is_ours(address) for address in addresses):
        return look(f"{name} resolves to {', '.join(addresses)}, which is not this machine", remedy)
    if seconds > SLOW_NAME_S:
        return look(f"{name} takes {seconds:.1f} s to resolve", remedy)
    return fine(f"{name} resolves to {', '.join(addresses)}")


def _parents_cpus() -> int:
    try:
        return len(os.sched_getaffinity(os.getppid()))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _cannot_write(folder) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return f"can't be written ({error.strerror})"
    return ""


def _space(folder) -> tuple[int, int]:
    numbers = os.statvfs(Path(folder))
    return numbers.f_blocks * numbers.f_frsize, numbers.f_bavail * numbers.f_frsize


def _size(number: int) -> str:
    return f"{number / GB:.1f} GB" if number >= GB else f"{number / 10**6:.0f} MB"


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
