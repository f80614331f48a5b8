"""Readings of running processes from /proc; where there is none (macOS), they are None."""

import os

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid):
    """Returns the CPU time that a process has used, or None."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else None


def memory_bytes(pid):
    """Returns the resident memory of a process in bytes, or None."""
    fields = _stat(pid)
    return int(fields[21]) * _PAGE if fields else None


def session_cpu_seconds(leader):
    """Returns the CPU time of all processes in the session that `leader` leads, such as loader workers, or None."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    rows = [fields for fields in map(_stat, pids) if fields and int(fields[3]) == leader]
    return sum(int(row[11]) + int(row[12]) for row in rows) / _TICKS


def _stat(pid):
    """Returns the fields of /proc/<pid>/stat from the state on (the name before it may hold spaces)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None
