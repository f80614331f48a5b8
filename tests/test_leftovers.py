"""Leftovers are told by process id and start time, never a stranger's, and are ended with what they started."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from labkit import leftovers, run_checks
from labkit.leftovers import Known, Register

GONE = [2**22 + 1, 5]  # no process can have this id
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells start times")


@pytest.fixture
def rank():
    """A process that leads its own session and has a child, as a rank with a loader worker."""
    process = subprocess.Popen(["sh", "-c", "sleep 100 & wait"], start_new_session=True)
    while not leftovers.process_table.children(process.pid):
        time.sleep(0.01)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def write(tmp_path):
    """write(rank, …) makes the private directory of a kernel that is gone, with one rank on its list."""

    def write_list(*ranks, kernel=GONE, name="labkit-abc", **changes):
        directory = tmp_path / name
        directory.mkdir(0o700)
        head = {"seat": leftovers._seat(), "kernel": kernel, "server": GONE, **changes}
        lines = [json.dumps(line) for line in (head, *ranks)]
        (directory / leftovers.FILE).write_text("\n".join(lines) + "\n")
        return directory

    return write_list


def test_a_rank_is_found_with_its_child_and_ended(rank, write, tmp_path):
    directory = write(leftovers.known(rank.pid))
    child = leftovers.process_table.children(rank.pid)[0]
    (found,) = leftovers.find(tmp_path)
    assert {process.pid for process in found.processes} == {rank.pid, child} and found.directory == directory
    assert leftovers.end([found]) == []
    assert leftovers.known(rank.pid) is None and leftovers.known(child) is None and not directory.exists()


def test_the_child_is_found_when_the_rank_is_gone(rank, write, tmp_path):
    write(leftovers.known(rank.pid))
    child = leftovers.process_table.children(rank.pid)[0]
    rank.kill()
    rank.wait()
    (found,) = leftovers.find(tmp_path)
    assert [process.pid for process in found.processes] == [child]
    assert leftovers.end([found]) == [] and leftovers.known(child) is None


def test_a_later_process_with_the_same_id_is_nobodys_leftover(rank, write, tmp_path):
    known = leftovers.known(rank.pid)
    directory = write(Known(known.pid, known.start_ticks - 1))
    (found,) = leftovers.find(tmp_path)
    assert found.processes == ()
    assert leftovers.end([found]) == [] and not directory.exists()
    assert leftovers.known(rank.pid) == known


def test_a_process_that_changed_hands_since_it_was_found_is_left(rank, write, tmp_path):
    known = leftovers.known(rank.pid)
    directory = write(known)
    found = leftovers.find(tmp_path)
    (directory / leftovers.FILE).write_text(
        json.dumps({"seat": leftovers._seat(), "kernel": GONE, "server": GONE}) + "\n" + json.dumps([rank.pid, 1]) + "\n"
    )
    leftovers.end(found)
    assert leftovers.known(rank.pid) == known


def test_what_is_somebody_elses_or_in_use_is_left_alone(rank, write, tmp_path, monkeypatch):
    known = leftovers.known(rank.pid)
    write(known, kernel=leftovers.known(os.getpid()), name="labkit-running")
    write(known, seat="another start of the machine", name="labkit-seat")
    (tmp_path / "labkit-plain").mkdir()
    (tmp_path / "labkit-file").write_text("")
    (tmp_path / "labkit-link").symlink_to(write(known, name="other"), target_is_directory=True)
    for index, text in enumerate(("", "{}", "[1]", '{"seat": 1, "kernel": null, "server": null}')):
        (tmp_path / f"labkit-spoilt{index}").mkdir()
        (tmp_path / f"labkit-spoilt{index}" / leftovers.FILE).write_text(text)
    assert leftovers.find(tmp_path) == []
    write(known)
    assert len(leftovers.find(tmp_path)) == 1
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert leftovers.find(tmp_path) == []


def test_a_process_whose_end_nobody_has_waited_for_counts_as_gone(write, tmp_path):
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    kernel = leftovers.known(process.pid)
    write(kernel=kernel)
    assert leftovers.find(tmp_path) == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert len(leftovers.find(tmp_path)) == 1
    process.wait()


def test_the_register_lists_ranks_until_no_run_is_left(rank, tmp_path):
    register = Register(str(tmp_path), os.getpid())
    register.add_rank(rank.pid)
    lines = [json.loads(line) for line in (tmp_path / leftovers.FILE).read_text().splitlines()]
    assert Known(*lines[0]["kernel"]) == Known(*lines[0]["server"]) == leftovers.known(os.getpid())
    assert lines[1:] == [list(leftovers.known(rank.pid))]
    register.forget_ranks()
    assert len((tmp_path / leftovers.FILE).read_text().splitlines()) == 1


KERNEL = """
import subprocess, time, labkit
def hold(rank):
    subprocess.Popen(["sleep", "100"])
    print("up", flush=True)
    time.sleep(100)
labkit.launch(hold, world_size=2, device="cpu")
"""


def test_a_kernel_and_its_fork_server_that_were_killed_leave_processes_that_the_doctor_ends(tmp_path):
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True, env=environ)
    assert "up" in kernel.stdout.readline()
    (record,) = tmp_path.glob(f"labkit-*/{leftovers.FILE}")
    server = json.loads(record.read_text().splitlines()[0])["server"][0]
    assert leftovers.find(tmp_path) == []
    os.kill(server, signal.SIGSTOP)
    kernel.kill()
    kernel.communicate()
    os.kill(server, signal.SIGKILL)

    finding = run_checks.old_ranks(lambda: leftovers.find(tmp_path), settle_s=0.5)
    assert finding.state == "look" and "2 processes running" in finding.found and "--end-leftovers" in finding.remedy
    finding = run_checks.end_leftovers(lambda: leftovers.find(tmp_path))
    assert finding.state == "fine" and "2 processes" in finding.found
    assert not list(tmp_path.glob("labkit-*")) and run_checks.old_ranks(lambda: leftovers.find(tmp_path)).found == "none"
