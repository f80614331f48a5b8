"""What the doctor says about GPUs that are not here: each finding good and bad."""

import ctypes
from dataclasses import replace

import pytest
from machines import cards, fake
from test_peer_to_peer import FULL, HANG, FakeRun, machine_of  # noqa: F401  (a fixture)
from test_readings import CARD, FakeNvml

from labkit import gpu_checks, nvml, peer_to_peer
from labkit.peer_to_peer import VARIABLE, Trials


@pytest.mark.parametrize(
    "changes, state, words",
    [
        ({}, "fine", "none: ranks run on CPU cores"),
        ({"gpus": 4}, "fine", "4 RTX 4090; driver 550"),
        ({"gpus": 4, "visible_devices": "0,1"}, "fine", "2 RTX 4090; driver 550; CUDA_VISIBLE_DEVICES"),
        ({"gpus": 4, "visible_devices": ""}, "look", "shows 0 of 4"),
        ({"gpus": 4, "torch_has_cuda": False}, "look", "built without CUDA"),
        ({"gpus": 1, "nvml_problem": "GPU 1: GPU is lost"}, "look", "NVML complains: GPU 1: GPU is lost"),
        ({"nvml_problem": "Driver/library version mismatch"}, "look", "Driver/library version mismatch"),
        ({"torch_gpus": 2}, "look", "NVML not available"),
    ],
)
def test_gpus(changes, state, words):
    finding = gpu_checks.gpus(fake(**changes), "550")
    assert finding.state == state and words in finding.found and bool(finding.remedy) == (state != "fine")


@pytest.mark.parametrize(
    "modes, state, words",
    [
        ((0, 0), "fine", "any number"),
        ((0, 3), "look", "GPU 1 (as nvidia-smi counts) lets in one process at a time"),
        ((1, 0), "look", "GPU 0 (as nvidia-smi counts) lets in one thread at a time"),
        ((3, 2), "broken", "GPU 1 (as nvidia-smi counts) lets in no process at all"),
    ],
)
def test_compute_mode(modes, state, words):
    listed = tuple(replace(card, compute_mode=mode) for card, mode in zip(cards(2), modes))
    finding = gpu_checks.compute_mode(fake(cards=listed), listed)
    assert finding.state == state and words in finding.found and ("nvidia-smi -c DEFAULT" in finding.remedy) == (state != "fine")


def test_compute_mode_of_hidden_cards_does_not_matter():
    listed = (replace(cards(2)[0], compute_mode=2), cards(2)[1])
    assert gpu_checks.compute_mode(fake(cards=listed, visible_devices="1"), listed).state == "fine"
    assert gpu_checks.compute_mode(fake(), ()).found == "no GPU to share"


class Nvml(FakeNvml):
    """Knows the driver and the compute modes too."""

    def nvmlSystemGetDriverVersion(self, buffer, size):
        buffer.value = b"550.54.15"
        return 0

    def nvmlDeviceGetComputeMode(self, handle, mode):
        mode._obj.value = 3
        return 0 if handle.value == 1 else 3


def test_nvml_tells_driver_and_compute_modes():
    library = Nvml([CARD, replace(CARD, uuid="GPU-9")])
    assert nvml.read_driver(library) == "550.54.15" and library.open == 0
    assert [card.compute_mode for card in nvml.read_cards(library)[0]] == [3, 0]


def test_the_driver_of_a_library_that_does_not_answer(monkeypatch):
    assert nvml.read_driver(FakeNvml([CARD])) == "" and nvml.read_driver(Nvml([CARD], init=18)) == ""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvml.read_driver() == ""


@pytest.mark.parametrize(
    "outcome, states, words",
    [
        ({}, ("fine", "fine", "fine"), "12 of them direct | right in | left to NCCL"),
        ({"copies": [(1, 0)]}, ("broken", "fine", "look"), "1 to 0 | right in | sets NCCL_P2P_DISABLE=1"),
        ({"direct": HANG}, ("fine", "look", "look"), "as sent | with P2P: all_reduce hangs | all_reduce hangs"),
        ({"direct": 3}, ("fine", "look", "look"), "as sent | 3 wrong numbers; without: all_reduce right | 3 wrong"),
        ({"over_host": HANG}, ("fine", "look", "fine"), "as sent | without: all_reduce hangs | left to NCCL"),
        ({"direct": HANG, "over_host": HANG}, ("fine", "broken", "look"), "as sent | hangs | not decided"),
        ({"copies": FULL}, ("look", "fine", "look"), "out of memory | right in | not decided"),
    ],
)
def test_two_and_more_gpus(machine_of, outcome, states, words):  # noqa: F811
    machine_of(4)
    findings = ask(outcome, 4)
    assert tuple(finding.state for finding in findings) == states
    for finding, word in zip(findings, words.split(" | ")):
        assert word in finding.found and bool(finding.remedy) == (finding.state != "fine")


def ask(outcome, count, driver="550.54", environ=()):
    here, trials = fake(gpus=count), Trials(FakeRun(**outcome), count)
    decision = gpu_checks.decision(trials, here, driver, dict(environ))
    return gpu_checks.copies(trials), gpu_checks.all_reduce(trials), decision


def test_what_the_doctor_decides_is_what_runs_use(machine_of):  # noqa: F811
    machine_of(4)
    uuids = tuple(gpu.uuid for gpu in fake(gpus=4).gpus)
    ask({"direct": HANG}, 4)
    assert peer_to_peer.remembered(uuids, "550.54").disable
    ask({}, 4)  # a repaired machine
    assert not peer_to_peer.remembered(uuids, "550.54").disable
    ask({"direct": HANG, "over_host": HANG}, 4)
    assert not peer_to_peer.remembered(uuids, "550.54").disable


@pytest.mark.parametrize(
    "outcome, environ, state, words",
    [
        ({}, {VARIABLE: "1"}, "fine", "your own NCCL_P2P_DISABLE=1 stays"),
        ({"direct": HANG}, {VARIABLE: "1"}, "fine", "your own NCCL_P2P_DISABLE=1 stays"),
        ({"direct": HANG}, {VARIABLE: "0"}, "look", "your own NCCL_P2P_DISABLE=0 stays, but all_reduce hangs"),
        ({"direct": HANG}, {"NCCL_P2P_LEVEL": "SYS"}, "look", "your own NCCL_P2P_LEVEL=SYS stays, but"),
    ],
)
def test_a_setting_of_the_user_stays(machine_of, outcome, environ, state, words):  # noqa: F811
    machine_of(4)
    finding = ask(outcome, 4, environ=environ.items())[2]
    assert finding.state == state and words in finding.found


def test_a_machine_that_cannot_be_remembered_says_so(machine_of):  # noqa: F811
    machine_of(4)
    finding = ask({"direct": HANG}, 4, driver="")[2]
    assert finding.state == "look" and "can't remember" in finding.found and not peer_to_peer.store().exists()


def test_one_gpu_gets_one_rank_and_none_gets_no_question():
    for outcome, state in (({}, "fine"), ({"direct": HANG}, "broken")):
        (name, check), *others = gpu_checks.questions(fake(gpus=1), Trials(FakeRun(**outcome), 1))
        assert name == "GPU rank" and check().state == state and not others
    assert gpu_checks.questions(fake(), None) == []
    assert [name for name, _ in gpu_checks.questions(fake(gpus=2), None)] == ["GPU copies", "GPU all_reduce", "GPU P2P"]
