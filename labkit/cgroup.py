"""The limits that a container, a batch system or a login puts on this process (Linux control groups, versions 1 and 2)."""

from pathlib import Path


def read_quota(root: Path) -> float | None:
    """The smallest CPU quota (in CPUs) of this process's group and all groups above it; None: no quota."""
    quotas = []
    for folder in _groups(root, "cpu"):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        quota = quota or text_of(folder / "cpu.cfs_quota_us")
        period = period or text_of(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def read_memory_limit(root: Path) -> int | None:
    """The smallest memory limit (bytes) of this process's group and all groups above it; None: no limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [integer_of(folder / name) for folder in _groups(root, "memory") for name in names]
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's group for a controller, from its own up to the root of the mount.

    A container often reads a path of the host that its own mount lacks: the missing folders then read as empty, and the root
    of the mount is the container's own.
    """
    base = root / "sys/fs/cgroup"
    folders = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            mounts = (base, base / "unified")
        elif controller in controllers.split(","):
            mounts = (base / controllers, base / controller)
        else:
            continue
        inner = [part for part in path.split("/") if part not in ("", "..")]
        folders += [mount.joinpath(*inner[:depth]) for mount in mounts for depth in range(len(inner), -1, -1)]
    return folders


def text_of(path: Path) -> str:
    """The stripped text of a small file, "" where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def integer_of(path: Path) -> int | None:
    """The whole number in a small file, None where there is none ("max", missing, negative)."""
    text = text_of(path)
    return int(text) if text.isdigit() else None
