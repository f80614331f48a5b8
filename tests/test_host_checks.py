"""What the doctor finds out about a machine without running anything: each finding good and bad."""

import errno
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import cpus, fake

from labkit import host_checks, version_checks

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "changes, state, words",
    [
        ({}, "fine", "2 CPU cores"),
        ({"cores": 128, "quota_cpus": 2.0}, "fine", "cgroup quota: 2 of 128 CPUs"),
        ({"cores": 128, "quota_cpus": 1.0}, "look", "docker run --cpus 2"),
        ({"cores": 1, "cpu_count": 8}, "look", "sbatch --cpus-per-task 2"),
        ({"cores": 1, "quota_cpus": 1.0}, "look", "nothing to repair"),
        ({"cpus": cpus(2, threads=2)}, "look", "hardware threads of 1 physical core"),
    ],
)
def test_cores(changes, state, words):
    finding = host_checks.cores(fake(**changes))
    assert finding.state == state and words in f"{finding.found} {finding.remedy}"
    assert bool(finding.remedy) == (state != "fine")


@pytest.mark.parametrize(
    "changes, environ, own_threads, shell_cpus, state, words",
    [
        ({}, {}, 2, 2, "fine", "1 per rank; 2 in"),
        ({"cores": 1}, {"OMP_PROC_BIND": "close"}, 1, 2, "look", "OMP_PROC_BIND=close binds this process"),
        ({"cores": 1}, {"OMP_PLACES": "cores"}, 1, 2, "look", "to 1 of 2 CPUs"),
        ({"cores": 1}, {"GOMP_CPU_AFFINITY": "0"}, 1, 2, "look", "unset GOMP_CPU_AFFINITY"),
        ({"cores": 1}, {"OMP_PROC_BIND": "FALSE"}, 1, 2, "fine", ""),
        ({}, {"OMP_PROC_BIND": "true"}, 2, 2, "fine", ""),
        ({"cores": 128, "quota_cpus": 2.0}, {}, 128, 128, "look", "export OMP_NUM_THREADS=2"),
        ({"cores": 2}, {"OMP_NUM_THREADS": "64"}, 64, 2, "look", "64 on 2 CPUs"),
        ({"cores": 4, "quota_cpus": 2.5}, {}, 3, 4, "fine", ""),
    ],
)
def test_threads(changes, environ, own_threads, shell_cpus, state, words):
    finding = host_checks.threads(fake(**changes), environ, own_threads, shell_cpus)
    assert finding.state == state and words in f"{finding.found} {finding.remedy}"


@pytest.fixture
def space(monkeypatch):
    """Lets every file system have `free` of 8 GB."""

    def set_free(free):
        numbers = SimpleNamespace(f_blocks=8 * 10**6, f_bavail=free // 1000, f_frsize=1000)
        monkeypatch.setattr(os, "statvfs", lambda path: numbers)

    return set_free


@pytest.mark.parametrize(
    "gpus, free, state", [(0, 300 * 10**6, "fine"), (0, 64 * 10**6, "look"), (4, 10**9, "look"), (4, 3 * 10**9, "fine")]
)
def test_shared_memory_by_the_number_of_gpus(tmp_path, space, gpus, free, state):
    space(free)
    finding = host_checks.shared_memory(gpus, str(tmp_path), "linux")
    assert finding.state == state and "of 8.0 GB" in finding.found and ("--shm-size" in finding.remedy) == (state != "fine")


def test_shared_memory_that_is_not_there(tmp_path):
    finding = host_checks.shared_memory(0, str(tmp_path / "none"), "linux")
    assert finding.state == "broken" and "No such file" in finding.found
    assert host_checks.shared_memory(0, str(tmp_path / "none"), "darwin").state == "fine"


def test_temp_directory(tmp_path, space, monkeypatch):
    space(10**9)
    assert host_checks.temp_directory(str(tmp_path)).state == "fine"
    space(10**7)
    assert host_checks.temp_directory(str(tmp_path)).state == "look"
    assert host_checks.temp_directory(str(tmp_path / "none")).state == "broken"

    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(host_checks.tempfile, "gettempdir", none)
    finding = host_checks.temp_directory()
    assert finding.state == "broken" and "No usable" in finding.found and "TMPDIR" in finding.remedy


def test_loopback(monkeypatch):
    assert host_checks.loopback().state == "fine"
    # An address kept for documentation: no interface has it.
    finding = host_checks.loopback("203.0.113.1")
    assert finding.state == "broken" and "ip link set lo up" in finding.remedy
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    assert host_checks.loopback().state == "broken"


@pytest.mark.parametrize(
    "addresses, state, words",
    [
        (["127.0.0.1"], "fine", "resolves to 127.0.0.1"),
        (["127.0.0.1", "203.0.113.9"], "fine", ""),
        (["203.0.113.9"], "look", "203.0.113.9, which is not this machine"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "look", "does not resolve (Name or service not known)"),
    ],
)
def test_host_name(monkeypatch, addresses, state, words):
    def resolve(name, *_, **__):
        if isinstance(addresses, Exception):
            raise addresses
        return [(socket.AF_INET, None, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    finding = host_checks.host_name("desk")
    assert finding.state == state and words in finding.found and ("/etc/hosts" in finding.remedy) == (state != "fine")


def test_host_name_that_takes_long(monkeypatch):
    monkeypatch.setattr(host_checks, "SLOW_NAME_S", -1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, None, 6, "", ("127.0.0.1", 0))])
    assert "to resolve" in host_checks.host_name("desk").found


def test_tested_versions_are_those_of_the_constraints():
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {name: pins[name] for name in version_checks.TESTED} == version_checks.TESTED


@pytest.mark.parametrize("version, state", [("3.10.13", "broken"), ("3.11.0", "fine"), ("3.14.0rc1", "fine")])
def test_python_version(version, state):
    assert version_checks.python_version(version).state == state


@pytest.mark.parametrize(
    "version, state, words",
    [
        ("2.13.0", "fine", ""),
        ("2.13.1+cu130", "fine", ""),
        ("2.9.1", "look", "older"),
        ("2.14.0a0", "look", "newer"),
        ("3.0.0", "look", "newer"),
        (None, "broken", "missing"),
    ],
)
def test_torch_version(version, state, words):
    finding = version_checks.torch_version(lambda name: version)
    assert finding.state == state and words in finding.found


@pytest.mark.parametrize(
    "changes, state, words",
    [
        ({}, "fine", "jupyterlab 4.6.6"),
        ({"matplotlib": "3.8.0"}, "fine", "matplotlib 3.8.0"),
        ({"ipywidgets": "7.8.1"}, "look", "ipywidgets 7.8.1 (tested: 8.1.9)"),
        ({"matplotlib": None, "jupyterlab": None}, "look", "missing: jupyterlab, matplotlib"),
    ],
)
def test_packages(changes, state, words):
    finding = version_checks.packages((version_checks.TESTED | changes).get)
    assert finding.state == state and words in finding.found
