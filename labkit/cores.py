"""Which CPU cores ranks may use: one logical CPU per physical core, the faster kind first, within the quota."""

import zlib

from labkit.readings import Cpu, Readings

# Within 10 % of each other, cores are one kind: favoured cores of one kind differ by some 5 %, efficiency cores by 20 % or more.
SAME_KIND = 0.9


def usable_cores(readings: Readings) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Logical CPU ids for ranks, the number of physical cores behind the allowed CPUs, and sentences about the cuts."""
    physical = {cpu.core or (cpu.id,): cpu for cpu in sorted(readings.cpus, key=lambda cpu: -cpu.id)}
    kinds = _kinds(list(physical.values()))
    count = _count_within_quota(len(physical), readings.quota_cpus)
    fast = _own_share(kinds[0], count, readings.seat)
    cores = (fast + [core for kind in kinds[1:] for core in kind])[:count]
    return tuple(cores), len(physical), _notes(readings, len(physical), fast, cores)


def _kinds(cpus: list[Cpu]) -> list[list[int]]:
    kinds: list[list[Cpu]] = []
    for cpu in sorted(cpus, key=lambda cpu: -cpu.speed):
        if kinds and cpu.speed >= SAME_KIND * kinds[-1][0].speed:
            kinds[-1].append(cpu)
        else:
            kinds.append([cpu])
    return [sorted(cpu.id for cpu in kind) for kind in kinds]


def _count_within_quota(physical: int, quota: float | None) -> int:
    return physical if quota is None else max(1, min(physical, int(quota)))


def _own_share(fast: list[int], count: int, seat: str) -> list[int]:
    # Under a quota the neighbours' containers see the same cores: if all pinned their ranks to the first two, those would be
    # everybody's. Each seat therefore starts at its own place.
    if not seat or count >= len(fast):
        return fast
    start = zlib.crc32(seat.encode()) % (len(fast) // count) * count
    return fast[start:] + fast[:start]


def _notes(readings: Readings, physical: int, fast: list[int], cores: list[int]) -> tuple[str, ...]:
    allowed, quota = len(readings.cpus), readings.quota_cpus
    notes = []
    if allowed < readings.cpu_count:
        notes.append(f"affinity or cpuset: {allowed} of {readings.cpu_count} CPUs")
    if quota is not None and quota < allowed:
        pauses = ": the system will pause even one rank" if quota < 1 else ""
        notes.append(f"cgroup quota: {round(quota, 2):g} of {allowed} CPUs{pauses}")
    if physical < allowed:
        notes.append(f"{allowed} CPUs are the hardware threads of {physical} physical cores: one rank per core")
    if len(fast) < len(cores):
        slow = len(cores) - len(fast)
        notes.append(f"{len(fast)} fast and {slow} slower cores: with more than {len(fast)} ranks, steps wait for the slower")
    return tuple(notes)
