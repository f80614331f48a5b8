"""P2P is decided by trials with data, kept per machine, used by runs on CUDA, and never against the user's own setting."""

import os
from types import SimpleNamespace

import pytest
from machines import fake

from labkit import launcher, peer_to_peer
from labkit.devices import place
from labkit.errors import RankError
from labkit.exchange import copies_on_one_rank, ended_after, wrong_sums
from labkit.peer_to_peer import VARIABLE, Decision, Trials

HANG = RankError("no rank made progress for 30 s", rank=None, kind="hang")
FULL = RankError("rank 0: OutOfMemoryError: CUDA out of memory", rank=0, kind="raised")
REFUSED = RankError("rank 1: DistBackendError: unhandled cuda error", rank=1, kind="raised")


class FakeRun:
    """Stands for launcher.run_ranks on GPUs: what each trial gives, or raises."""

    def __init__(self, copies=(), direct=0, over_host=0):
        self.outcome = {"copies": copies, "direct": direct, "over host": over_host}
        self.asked = []

    def __call__(self, function, args, kwargs, *, world_size, device, timeout, live, warn):
        assert device == "cuda" and timeout > 0 and not live and not kwargs
        if function is copies_on_one_rank:
            assert world_size == 1
            name, results = "copies", [(self.outcome["copies"], 12)]
        else:
            assert function is wrong_sums
            name = {"0": "direct", "1": "over host"}[os.environ[VARIABLE]]
            results = [self.outcome[name]] * world_size
        self.asked.append(name)
        if isinstance(self.outcome[name], Exception):
            raise self.outcome[name]
        return SimpleNamespace(results=results)


@pytest.fixture
def machine_of(monkeypatch, tmp_path):
    """machine_of(count, driver=…) pretends that so many GPUs are here; decisions go to a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in peer_to_peer.USERS_OWN:
        monkeypatch.delenv(name, raising=False)

    def pretend(count, driver="550.54", **changes):
        peer_to_peer._tried_once.cache_clear()
        peer_to_peer._say_once.cache_clear()
        monkeypatch.setattr(peer_to_peer, "machine", lambda: fake(gpus=count, **changes))
        monkeypatch.setattr(peer_to_peer, "read_driver", lambda: driver)

    return pretend


def environ_of(ranks, monkeypatch, run, **options):
    """What the ranks of a run on so many of 4 GPUs get for NCCL_P2P_DISABLE."""
    monkeypatch.setattr(launcher, "run_ranks", run)
    return launcher._plan(place(ranks, "cuda", machine=fake(gpus=4), **options))["environ"].get(VARIABLE)


@pytest.mark.parametrize(
    "outcome, verdict, words",
    [
        ({}, (False, ""), ""),
        ({"copies": [(0, 1), (1, 0)]}, True, "2 of 12 copies between GPUs arrive changed: 0 to 1, 1 to 0"),
        ({"direct": HANG}, True, "all_reduce hangs"),
        ({"direct": 7}, True, "all_reduce gives 7 wrong numbers"),
        ({"direct": REFUSED}, True, "all_reduce fails: rank 1: DistBackendError"),
        ({"over_host": HANG}, (False, ""), ""),
        ({"direct": HANG, "over_host": HANG}, None, ""),
        ({"copies": [(0, 1)], "over_host": REFUSED}, None, ""),
        ({"direct": FULL}, None, ""),
        ({"copies": FULL}, None, ""),
        ({"copies": HANG}, True, "hangs"),
    ],
)
def test_verdict(outcome, verdict, words):
    run = FakeRun(**outcome)
    found = Trials(run, 4).verdict
    assert found == verdict or (verdict is True and found[0] and words in found[1])
    # Where nothing is wrong with P2P, the way without it is not tried.
    assert ("over host" in run.asked) == (verdict != (False, "") and FULL not in outcome.values())


def test_sums_are_compared_by_real_ranks_and_a_setting_of_the_user_comes_back(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    run = lambda *args, **options: launcher.run_ranks(*args, **{**options, "device": "cpu"})  # noqa: E731
    trial = Trials(run, 2).over_host
    assert trial.state == "works", trial.found
    assert os.environ[VARIABLE] == "0"


def test_a_rank_that_hangs_in_compiled_code_is_ended_by_the_clock(monkeypatch):
    def spin(rank, count, limit_s):
        with ended_after(limit_s):
            while True:
                pass

    monkeypatch.setattr(peer_to_peer, "LIMIT_S", 1)
    run = lambda _, *args, **options: launcher.run_ranks(spin, *args, **{**options, "device": "cpu"})  # noqa: E731
    trial = Trials(run, 2).copies
    assert trial.state == "fails" and trial.found.startswith("hangs"), trial.found


def test_a_broken_machine_is_tried_once_told_once_and_remembered(machine_of, monkeypatch, capsys):
    machine_of(4)
    run = FakeRun(copies=[(0, 1)])
    assert [environ_of(4, monkeypatch, run) for _ in range(3)] == ["1"] * 3
    assert run.asked == ["copies", "over host"]
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 2
    assert "tries once" in told.err and "labkit sets NCCL_P2P_DISABLE=1" in told.err and "arrive changed: 0 to 1" in told.err
    machine_of(4)  # a new kernel: told again, not tried again
    assert environ_of(4, monkeypatch, FakeRun()) == "1"
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and "labkit sets" in told


def test_a_good_machine_is_left_to_nccl(machine_of, monkeypatch, capsys):
    machine_of(4)
    run = FakeRun()
    assert [environ_of(4, monkeypatch, run) for _ in range(2)] == [None, None]
    assert run.asked == ["copies", "direct"] and len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name, value", [(VARIABLE, "0"), (VARIABLE, "1"), (VARIABLE, ""), ("NCCL_P2P_LEVEL", "SYS")])
def test_the_users_own_setting_is_left_alone(machine_of, monkeypatch, capsys, name, value):
    machine_of(4)
    peer_to_peer.remember(Decision(tuple(gpu.uuid for gpu in fake(gpus=4).gpus), "550.54", True, "hangs"))
    monkeypatch.setenv(name, value)
    run = FakeRun(direct=HANG)
    assert environ_of(4, monkeypatch, run) == (value if name == VARIABLE else None)
    assert run.asked == [] and capsys.readouterr().err == ""


def test_one_rank_shared_gpus_and_the_cpu_need_no_trial(machine_of, monkeypatch):
    machine_of(4)
    run = FakeRun(direct=HANG)
    assert environ_of(1, monkeypatch, run) is None
    assert environ_of(8, monkeypatch, run, share_device=True) is None
    monkeypatch.setattr(launcher, "run_ranks", run)
    assert VARIABLE not in launcher._plan(place(2, "cpu", machine=fake(gpus=4)))["environ"]
    assert run.asked == []


@pytest.mark.parametrize("outcome", [{"direct": HANG, "over_host": HANG}, {"copies": ValueError("not a rank's failure")}])
def test_an_undecided_trial_lets_the_run_start_and_is_not_repeated(machine_of, monkeypatch, capsys, outcome):
    machine_of(4)
    run = FakeRun(**outcome)
    assert environ_of(4, monkeypatch, run) is None
    count = len(run.asked)
    assert environ_of(4, monkeypatch, run) is None
    assert len(run.asked) == count and not peer_to_peer.store().exists()
    assert "could not find that out" in capsys.readouterr().err


def test_gpus_that_nobody_can_name_are_not_tried(machine_of, monkeypatch):
    run = FakeRun(direct=HANG)
    machine_of(4, driver="")
    assert environ_of(4, monkeypatch, run) is None
    machine_of(0, torch_gpus=4)
    assert environ_of(4, monkeypatch, run) is None
    assert run.asked == []


def test_another_driver_is_tried_anew_and_fewer_of_the_same_gpus_are_not(machine_of, monkeypatch):
    machine_of(4)
    environ_of(4, monkeypatch, FakeRun(direct=HANG))
    machine_of(2)
    run = FakeRun()
    assert environ_of(2, monkeypatch, run) == "1" and run.asked == []
    machine_of(4, driver="570.86")
    assert environ_of(4, monkeypatch, run) is None and run.asked == ["copies", "direct"]


def test_a_new_decision_replaces_the_old_one_and_a_spoilt_file_holds_none(machine_of):
    machine_of(2)
    first, second = Decision(("a", "b"), "550", True, "hangs"), Decision(("b", "a"), "550", False, "")
    alone = Decision(("c",), "550", True, "zeros")
    for decision in (first, alone, second):
        peer_to_peer.remember(decision)
    assert peer_to_peer.remembered(("a",), "550") == second and peer_to_peer.remembered(("c",), "550") == alone
    assert peer_to_peer.remembered(("a", "c"), "550") is None and peer_to_peer.remembered(("a",), "560") is None
    for text in ("", "{}", "[1]", '[{"gpus": 1}]'):
        peer_to_peer.store().write_text(text)
        assert peer_to_peer.remembered(("a",), "550") is None


def test_a_run_may_be_tried_from_within_the_start_of_another(monkeypatch):
    seen = []

    def environment(placement, environ, run):
        if not seen:
            seen.append("asked")
            seen.append(run(wrong_sums, (20,), {}, world_size=2, device="cpu", live=False, warn=False).results)
        return {VARIABLE: "1"}

    monkeypatch.setattr(peer_to_peer, "environment", environment)
    results = launcher.launch(lambda rank: os.environ[VARIABLE], world_size=2, device="cpu", live=False).results
    assert seen == ["asked", (0, 0)] and results == ("1", "1")
