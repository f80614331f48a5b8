"""Verdicts of exercises: every state, every cause, what is remembered, and how a notebook shows it."""

import functools
import json
import math
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import nbclient
import nbformat
import numpy
import pytest
import torch

from labkit import RankError, check, checks, states
from labkit.checks import compare, factor
from labkit.stubs import gap_in, is_stub

CHECKS = """
from labkit.checks import compare
from labkit.exercises import Blocked

def exercise_98_1(answer):
    return compare(answer, 12, world_size=4)

def exercise_98_2(answer):
    return compare(answer(3.0), 9.0)

def exercise_98_3(answer):
    raise Blocked("needs 2 GPUs")
"""


@pytest.fixture
def exercises(tmp_path, monkeypatch):
    """Exercises 98.1 to 98.3, in a module that only this test has, and an empty working folder."""
    folder = tmp_path / "site-packages" / "checks"  # a check is library code: no line of it is shown to a learner
    folder.mkdir(parents=True)
    (folder / "nb98.py").write_text(CHECKS)
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "labkit.checks.nb98", raising=False)
    monkeypatch.setattr(states, "_checked_here", {})
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def test_a_right_answer_passes_and_prints_one_line(exercises, capsys):
    verdict = check("98.1", 12)
    assert verdict and verdict.state == "passed" and verdict.exercise == "98.1"
    assert capsys.readouterr() == ("exercise 98.1: passed\n", "")


def test_a_wrong_answer_is_told_the_cause(exercises, capsys):
    verdict = check("98.1", 48)
    assert not verdict and verdict.state == "not yet"
    assert verdict.message == "off by the factor 4 = N: a sum where a mean belongs?"
    assert capsys.readouterr().out == f"exercise 98.1: not yet — {verdict.message}\n"
    assert "<b" in verdict._repr_html_() and "a sum where a mean belongs?" in verdict._repr_html_()


def test_what_the_machine_cannot_run_is_blocked(exercises):
    verdict = check("98.3", 1)
    assert not verdict and (verdict.state, verdict.message) == ("blocked", "needs 2 GPUs")


def test_an_answer_that_raises_is_told_its_error_and_line(exercises):
    def answer(x):
        return x / 0

    line = answer.__code__.co_firstlineno + 1
    message = f"it raised ZeroDivisionError: float division by zero (test_exercises.py, line {line})"
    assert check("98.2", answer).message == message
    assert check("98.2", sys.exit).message == "it called exit(): 3.0"
    assert check("98.2", 5).message == "it raised TypeError: 'int' object is not callable"


def test_an_error_of_a_rank_is_told_with_the_learners_line(exercises):
    def answer(x):
        raise RankError("rank 1 raised ValueError: no", rank=1, kind="raised", traceback="cell In[3], line 2\ncell In[3], line 9")

    assert check("98.2", answer).message == "rank 1 raised ValueError: no (cell In[3], line 9)"


def test_stop_is_not_swallowed(exercises):
    def answer(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("98.2", answer)


@pytest.mark.parametrize(
    "number, nearest", [("98.9", "98.3"), ("97.1", "98.1"), ("98", None), ("x", None), ("98.01.2", None), (None, None)]
)
def test_an_unknown_exercise_names_the_nearest(exercises, number, nearest):
    with pytest.raises(ValueError, match=rf"there is no exercise {number!r}; the nearest one is {nearest or ''}"):
        check(number, 1)


def stub(x):
    """What to do."""
    ...  # noqa: PIE790


class StubClass(torch.nn.Module):
    """A model."""

    def forward(self, x): ...


class EmptyClass: ...


def raising(x):
    raise NotImplementedError("write it")


STUBS = [..., None, "...", " ", stub, raising, StubClass, EmptyClass, lambda x: None, lambda x: ..., functools.partial(stub, 1)]
STUBS += [
    (1, ...),
    {"a": ...},
    [None, None],
    [3, [..., 4]],
    (stub, 3),
    StubClass().forward,
    functools.wraps(stub)(lambda *args: stub(*args)),
]


def without_address(answer):
    """A name for a test that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(answer))


@pytest.mark.parametrize("answer", STUBS, ids=without_address)
def test_an_untouched_stub_is_to_do(exercises, answer, capsys):
    verdict = check("98.2", answer)
    assert (verdict.state, verdict.message) == ("to do", "")
    assert capsys.readouterr().out == "exercise 98.2: to do\n"


def begun(x):
    print(x)


class Begun:
    def forward(self, x):
        return x

    def backward(self, x): ...


ANSWERS = [
    0,
    False,
    [],
    {},
    "a",
    [None, 1],
    [[None, None], [1, 2]],
    begun,
    Begun,
    lambda x: 0,
    lambda x: x,
    print,
    torch.zeros(2),
]
ANSWERS += [numpy.zeros(3), torch.nn.Linear(1, 1), lambda x: math.pi]


@pytest.mark.parametrize("answer", ANSWERS, ids=without_address)
def test_an_answer_is_no_stub(answer):
    assert not is_stub(answer)


def half_done(x):
    doubled = 2 * x
    ...  # noqa: PIE790
    return doubled


def uses_stub(x):
    return stub(x) + 1


def test_a_gap_in_a_function_that_was_begun_is_named_with_what_is_wrong(exercises):
    line = half_done.__code__.co_firstlineno + 2
    verdict = check("98.2", half_done)
    assert verdict.state == "to do"
    assert verdict.message.startswith(f"a `...` is still there (test_exercises.py, line {line}); so far: it is 33 % too small")
    assert check("98.2", uses_stub).message.startswith("`stub` is still empty; so far: it raised TypeError")
    assert gap_in(begun) is None and gap_in(3) is None and gap_in(print) is None


def test_a_left_over_ellipsis_does_not_spoil_a_right_answer(exercises):
    def right(x):
        ...  # noqa: PIE790
        return x * x

    assert check("98.2", right)


def test_states_are_remembered_in_this_process_but_not_stored_outside_notebooks(exercises, tmp_path):
    check("98.1", 12)
    check("98.2", ...)
    folder = tmp_path / "work"
    assert list(folder.iterdir()) == []
    assert {exercise: entry["state"] for exercise, entry in states.entries_in(folder).items()} == {"98.1": "passed"}


def test_to_do_never_replaces_what_was_reached(tmp_path):
    states.record("98.1", "passed", "", folder=tmp_path, keep=True)
    states.record("98.1", "to do", "", folder=tmp_path, keep=True)
    assert states.stored_in(tmp_path)["98.1"]["state"] == "passed"
    states.record("98.1", "not yet", "why", folder=tmp_path, keep=True)
    assert states.stored_in(tmp_path)["98.1"]["state"] == "not yet"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"98": 3}', '{"98": {"98.2": {"state": "odd"}}}', '{"98": {"98.2": []}}', "\x00"]
)
def test_a_corrupted_file_is_replaced_without_a_word(tmp_path, text):
    (tmp_path / states.FILE).write_text(text)
    states.record("98.1", "passed", "", folder=tmp_path, keep=True)
    assert list(states.stored_in(tmp_path)) == ["98.1"]
    assert json.loads((tmp_path / states.FILE).read_text())["98"]["98.1"]["state"] == "passed"


def test_a_folder_that_cannot_be_written_breaks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "_checked_here", {})
    gone = tmp_path / "gone"
    states.record("98.1", "passed", "", folder=gone, keep=True)
    assert not gone.exists() and states.entries_in(gone)["98.1"]["state"] == "passed"


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    # The module alone: its package would spend seconds on importing torch.
    code = """
    import sys, pathlib
    sys.path.insert(0, sys.argv[2])
    import states
    for number in range(20):
        states.record(f"{sys.argv[1]}.{number}", "passed", "", folder=pathlib.Path.cwd(), keep=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    for process in [
        subprocess.Popen([*command, str(chapter), str(Path(states.__file__).parent)], cwd=tmp_path) for chapter in (97, 98)
    ]:
        assert process.wait() == 0
    assert len(states.stored_in(tmp_path)) == 40
    assert [path.name for path in tmp_path.iterdir()] == [states.FILE]


CELLS = [
    "import labkit, labkit.checks; labkit.checks.__path__.append({folder!r})",
    'verdict = labkit.check("98.1", 12)\nlabkit.check("98.2", ...)',
    "verdict",
    'def square(x):\n    return x / 0\n\nlabkit.check("98.2", square)',
    'print(bool(labkit.check("98.3", 1)))',
]


@pytest.fixture
def executed(exercises, tmp_path):
    held = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.format(folder=str(exercises))) for cell in CELLS])
    nbclient.NotebookClient(held, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "work")}}).execute()
    return held


def test_a_notebook_shows_each_verdict_once(executed, tmp_path):
    shown = [[output.get("data", {}).get("text/plain", output.get("text")) for output in cell.outputs] for cell in executed.cells]
    assert shown == [
        [],
        ["exercise 98.1: passed", "exercise 98.2: to do"],
        ["exercise 98.1: passed"],
        ["exercise 98.2: not yet — it raised ZeroDivisionError: float division by zero (cell In[4], line 2)"],
        ["exercise 98.3: blocked — needs 2 GPUs", "False\n"],
    ]
    assert all("text/html" in output.data for output in executed.cells[1].outputs)
    stored = json.loads((tmp_path / "work" / states.FILE).read_text())
    assert {exercise: entry["state"] for exercise, entry in stored["98"].items()} == {
        "98.1": "passed",
        "98.2": "not yet",
        "98.3": "blocked",
    }


T = torch.tensor([[1.5, -2.0, 3.25], [4.0, 0.5, -6.0], [7.0, 8.5, 9.75], [-1.25, 2.0, 0.25]], dtype=torch.float64)
WRONG = [
    (2 * T, "off by the factor 2 = N: a sum where a mean belongs?"),
    (T / 2, "off by the factor 1/2 = 1/N: a mean where a sum belongs, or divided by N twice?"),
    (4 * T, "off by the factor 4 = N²"),
    (3 * T, "off by the factor 3"),
    (-3 * T, "off by the factor −3"),
    (0.37 * T, "off by the factor 0.37"),
    (-T, "the sign is flipped"),
    (T + 0.5, "every value is 0.5 too large"),
    (0 * T, "all values are 0"),
    (T.T, "shape [3, 4] where [4, 3] is expected: transposed?"),
    (T[:2], "shape [2, 3] where [4, 3] is expected: one rank's shard along dim 0, not gathered?"),
    (torch.cat([T, T], 1), "shape [4, 6] where [4, 3] is expected: the shards of all 2 ranks along dim 1"),
    (T[None], "a dim of size 1 too many"),
    (T[0, 0], "shape [] where [4, 3] is expected"),
    (T.flip(0), "in reversed order"),
    (T.roll(1, 0), "1 further on than they belong"),
    (T.roll(-1, 0), "1 further back than they belong"),
    (T[[0, 2, 1, 3]], "the right values, in another order"),
    (torch.cat([T[:3], T[3:] + 1]), "only the last 1 of 4 along dim 0 are wrong: an uneven last chunk?"),
    (T * float("nan"), "12 of 12 values are NaN"),
    (T / 0, "12 of 12 values are inf"),
    ((T + 0.01 * T.sin()).bfloat16(), "right to the precision of torch.bfloat16"),
    (T + 0.01 * T.sin(), "values are wrong; the largest error is"),
    (None, "it is None"),
    ("text", "text where a tensor of shape [4, 3] is expected"),
    (torch.nn.Linear, "a type where a tensor"),
]


@pytest.mark.parametrize("answer, cause", WRONG, ids=[cause for _, cause in WRONG])
def test_a_wrong_tensor_is_told_what_it_looks_like(answer, cause):
    assert cause in compare(answer, T, world_size=2)


@pytest.mark.parametrize(
    "answer", [T, T.clone(), T.numpy(), T.tolist(), T.float(), T.requires_grad_(), torch.nn.Parameter(T)], ids=type
)
def test_a_right_tensor_may_come_in_any_form(answer):
    assert compare(answer, T) is None


PAIRS = [
    (12, 12, None),
    (12.0, 12, None),
    (torch.tensor(12), 12, None),
    (numpy.float32(0.5), 0.5, None),
    (124_439_807, 124_439_808, "it is 1 too small: off by one?"),
    (124_439_908, 124_439_808, "it is 8e-05 % too large"),
    (0.28, 0.25, "it is 12 % too large"),
    (0.2500001, 0.25, None),
    (27.3, 0.273, "percent where a fraction belongs?"),
    (24 * 10**9, 24 * 2**30, "GB (10⁹ bytes) and GiB (2³⁰ bytes) exchanged?"),
    (48, 12, "off by the factor 4 = N: a sum"),
    (9, 12, "off by the factor 3/4 = (N−1)/N: the rank's own part left out?"),
    (0, 12, "it is 0"),
    (3, 0, "it is too large"),
    (float("nan"), 0.5, "it is NaN"),
    (True, True, None),
    (False, True, "it is not False"),
    ("ring", "ring", None),
    ("Ring ", "ring", "'Ring ' differs in blanks or capitals only"),
    ("tree", "ring", "it is not 'tree'"),
    (3, "ring", "a number where text is expected"),
    ([1, 2, 3], (1, 2, 3), None),
    (torch.tensor([1, 2, 3]), [1, 2, 3], None),
    ([2e-5, 1.0e9], [2.04e-5, 1.0e9], "only the first 1 of 2"),
    ([1, 2], [1, 2, 3], "it has 2 entries where 3 are expected"),
    ([1, 2, 4], [1, 2, 3], "only the last 1 of 3"),
    (3, [1, 2], "a number where a list of 2 entries is expected"),
    ([T, 4 * T], [T, T], "entry 1: off by the factor 4 = N"),
    ([4 * T, 4 * T], [T, T], "every entry: off by the factor 4 = N"),
    ({"a": 1}, {"a": 1, "b": 2}, "there is no entry 'b'"),
    ({"a": 1, "b": 2}, {"a": 1}, "entry 'b' is not asked for"),
    ({"a": [1, "x"]}, {"a": [1, "y"]}, "entry 'a': entry 1: it is not 'x'"),
    ([], [], None),
]


@pytest.mark.parametrize("answer, expected, cause", PAIRS, ids=[str(pair[2]) for pair in PAIRS])
def test_numbers_texts_and_containers(answer, expected, cause):
    found = compare(answer, expected, world_size=4)
    assert found is None if cause is None else cause in found


def test_a_tolerance_is_relative_to_each_number_of_a_list():
    assert compare([2e-5, 1.04e9], [2.04e-5, 1e9], tolerance=0.05) is None
    assert "wrong" in compare([2.2e-5, 1.04e9], [2.04e-5, 1e9], tolerance=0.05)


def test_factor_is_for_checks_that_name_their_own_multiple():
    assert factor(3 * T, T) == pytest.approx(3) and factor(T + 1, T) is None and factor(0 * T, T) is None
