"""The doctor: nothing holds it up, scripts can read it, and leftovers are ended only when somebody says so."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from machines import fake
from test_peer_to_peer import HANG, FakeRun, machine_of  # noqa: F401  (a fixture)

from labkit import doctor, leftovers, run_checks, server_link
from labkit.errors import RankError
from labkit.findings import Question, broken, fine, look
from labkit.leftovers import Known, Leftover

WITHOUT = """
import sys
for name in ("matplotlib", "ipywidgets", "IPython", "jupyterlab"):
    sys.modules[name] = None
from labkit.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def hang():
    time.sleep(60)


def test_a_question_that_is_never_answered_holds_nobody_up():
    started = time.monotonic()
    finding = Question("host name", hang, 0.2).finding()
    assert time.monotonic() - started < 2
    assert (finding.name, finding.state, finding.found) == ("host name", "broken", "no answer within 0.2 s")


def test_a_question_that_fails_is_a_finding():
    finding = Question("cores", lambda: 1 / 0, 5).finding()
    assert finding.state == "broken" and "ZeroDivisionError" in finding.found and finding.remedy


def test_a_finding_is_one_line():
    line = look("one\ntwo", "three").line(4)
    assert line.startswith("look") and line.endswith("one two  ->  three")


def test_all_questions_hang_and_the_doctor_still_ends(monkeypatch):
    monkeypatch.setattr(doctor, "QUICK", [(name, hang) for name, _ in doctor.QUICK])
    for name in ("fork_server", "old_ranks"):
        monkeypatch.setattr(run_checks, name, hang)
    for name in ("QUICK_S", "SERVER_S"):
        monkeypatch.setattr(doctor, name, 0.3)
    started = time.monotonic()
    findings = list(doctor.examine())
    assert time.monotonic() - started < 5
    assert {finding.state for finding in findings} == {"broken"} and len(findings) == len(doctor.QUICK) + 2


@pytest.fixture
def healthy(monkeypatch):
    """A doctor whose quick checks, fork server and ranks are all fine; ended holds what it was told to end."""
    monkeypatch.setattr(doctor, "QUICK", [("Python", lambda: fine("3.11"))])
    monkeypatch.setattr(doctor, "machine", fake)
    monkeypatch.setattr(run_checks, "fork_server", lambda: fine("ready"))
    monkeypatch.setattr(run_checks, "two_ranks", lambda run: fine("right"))
    monkeypatch.setattr(run_checks, "old_ranks", lambda: look("2 processes", "end them"))
    ended = []
    monkeypatch.setattr(run_checks, "end_leftovers", lambda: ended.append(True) or fine("ended"))
    return ended


def state_of(name, findings):
    return {finding.name: finding.state for finding in findings}[name]


def test_leftovers_are_ended_only_when_asked_for(healthy):
    asked = []
    assert state_of("leftovers", doctor.examine()) == "look" and not healthy
    assert state_of("leftovers", doctor.examine(ask=lambda found: asked.append(found))) == "look" and not healthy
    assert asked == ["2 processes"]
    assert state_of("leftovers", doctor.examine(ask=lambda found: True)) == "fine" and len(healthy) == 1
    assert state_of("leftovers", doctor.examine(end_leftovers=True, ask=asked.append)) == "fine" and len(healthy) == 2
    assert len(asked) == 1


@pytest.mark.parametrize("answer, ended", [("y", 1), ("YES ", 1), ("", 0), ("n", 0)])
def test_a_person_is_asked_in_a_terminal(healthy, monkeypatch, answer, ended):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: answer)
    doctor.main([])
    assert len(healthy) == ended
    doctor.main(["--json"])
    assert len(healthy) == ended


def test_exit_status_and_json(healthy, monkeypatch, capsys):
    assert doctor.main(["--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert rows[1] == {"name": "leftovers", "state": "look", "found": "2 processes", "remedy": "end them"}
    assert doctor.main(["--end-leftovers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["fine", "Python", "3.11"] and lines[-1] == "4 fine"
    assert len({line.index(word) for line, word in zip(lines, ("3.11", "ended", "ready", "right"))}) == 1
    with pytest.raises(SystemExit) as usage:
        doctor.main(["--wrong"])
    assert usage.value.code == 2


def test_no_rank_is_tried_without_a_fork_server(healthy, monkeypatch):
    monkeypatch.setattr(run_checks, "fork_server", lambda: broken("did not start", "free memory"))
    assert [finding.name for finding in doctor.examine()] == ["Python", "leftovers", "fork server"]


def test_gpus_get_their_questions(healthy, monkeypatch, machine_of):  # noqa: F811
    machine_of(4)
    monkeypatch.setattr(doctor, "machine", lambda: fake(gpus=4))
    findings = list(doctor.examine(end_leftovers=True, run=FakeRun(direct=HANG)))
    assert [(finding.name, finding.state) for finding in findings[-3:]] == [
        ("GPU copies", "fine"),
        ("GPU all_reduce", "look"),
        ("GPU P2P", "look"),
    ]


def test_fork_server():
    assert run_checks.fork_server(lambda interrupts: None).state == "fine"

    def gone(interrupts):
        raise server_link.ServerGone("labkit's fork server did not start: MemoryError")

    finding = run_checks.fork_server(gone)
    assert finding.state == "broken" and "MemoryError" in finding.found and finding.remedy


@pytest.mark.parametrize(
    "outcome, state, words",
    [
        ((3, 3), "fine", "right on 2 CPU ranks"),
        ((3, 1), "broken", "gave 3 and 1, not 3"),
        (HANG, "broken", "no rank made progress"),
    ],
)
def test_two_ranks(outcome, state, words):
    def run(function, args, kwargs, **options):
        if isinstance(outcome, RankError):
            raise outcome
        return SimpleNamespace(results=outcome)

    finding = run_checks.two_ranks(run)
    assert finding.state == state and words in finding.found


def test_leftovers_that_go_by_themselves_and_those_that_stay(tmp_path, monkeypatch):
    running = [Leftover(tmp_path, (Known(7, 1), Known(8, 1)))]
    looks = iter([running, running, []])
    assert run_checks.old_ranks(lambda: next(looks), settle_s=5).found == "none"
    finding = run_checks.old_ranks(lambda: running, settle_s=0)
    assert finding.found == "1 private directory of kernels that are gone, 2 processes running: 7, 8"
    assert run_checks.old_ranks(lambda: [Leftover(tmp_path)] * 2, settle_s=0).found.startswith("2 private directories")
    finding = run_checks.end_leftovers(lambda: running, lambda found: [Known(7, 1)])
    assert finding.state == "broken" and "still running: 7" in finding.found
    monkeypatch.setattr(leftovers, "known", lambda pid: None)
    assert run_checks.old_ranks(lambda: running).state == "fine"


def test_the_command_on_this_machine_without_pictures_and_notebooks(tmp_path):
    environ = {**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT, "doctor", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150, check=False)
    states = {row["name"]: row["state"] for row in json.loads(done.stdout)}
    assert {name for name, _ in doctor.QUICK} | {"leftovers", "fork server", "ranks"} <= set(states)
    assert states["loopback"] == states["fork server"] == states["ranks"] == "fine"
    assert done.returncode == int(set(states.values()) != {"fine"})
    assert not list(tmp_path.glob("labkit-*"))
