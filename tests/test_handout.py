"""The folder that `make student` fills: what students get, what stays with the teacher, and that it opens and runs."""

import functools
import subprocess

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from labkit import handout, notebook, publish
from labkit.__main__ import main as command_line
from labkit.handout import ROOT, hand_out

LESSONS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    """The real repository, handed out; nothing in it may be changed."""
    folder = tmp_path_factory.mktemp("class") / "student"
    assert [path.name for path in hand_out(folder)] == LESSONS
    return folder


@pytest.fixture
def folder(tmp_path):
    """A folder of one test's own."""
    hand_out(tmp_path / "student")
    return tmp_path / "student"


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_students_get_what_they_need_and_nothing_else(handed_out):
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "labkit").rglob("*") if path.suffix in (".py", ".csv")}
    files = {name for name in handout.NEEDED if (ROOT / name).is_file()}
    assert files_in(handed_out) == files | modules | {f"notebooks/{name}" for name in LESSONS}


def test_notebooks_are_as_before_their_first_run(handed_out):
    for name in LESSONS:
        ours, theirs = (nbformat.read(folder / "notebooks" / name, as_version=4) for folder in (ROOT, handed_out))
        nbformat.validate(theirs)
        assert [cell.source for cell in theirs.cells] == [cell.source for cell in ours.cells]
        code = [cell for cell in theirs.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)


def text_of(path):
    """What a person reads in a file: of a notebook the cells."""
    if path.suffix == ".ipynb":
        return "\n\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    return path.read_text(encoding="utf-8")


def test_no_solution_is_handed_out(handed_out):
    solutions = [nbformat.read(path, as_version=4) for path in (ROOT / "notebooks/solutions").glob("*.ipynb")]
    cells = [cell for one in solutions for cell in one.cells if "exercise" in cell.metadata.get("tags", [])]
    answers = [cell.source.partition("_ = labkit.check(")[0].strip() for cell in cells]
    everything = "\n\n".join(text_of(handed_out / name) for name in files_in(handed_out))
    assert answers and not [answer for answer in answers if answer in everything]


def test_make_lab_sets_the_folder_up_and_opens_its_notebooks(folder):
    """With a stand-in for the environment's Python, which writes down where it is called, and how."""
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    python, calls = folder / ".venv/bin/python", folder / "calls"
    python.write_text(f'#!/bin/sh\necho "$PWD $*" >>"{calls}"\n')
    python.chmod(0o755)
    result = subprocess.run(["make", "lab"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")  # no file that the set-up reads is missing
    *_, installed, opened = calls.read_text().splitlines()
    assert installed.startswith(f"{folder} -m pip install ") and installed.endswith("-c constraints.txt -e .[test]")
    assert opened.startswith(f"{folder / 'notebooks'} -m jupyterlab")


def test_the_first_notebook_runs_in_the_folder(folder, monkeypatch):
    """With the folder's own labkit, from its first cell to its last."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    path = folder / "notebooks/00_your_machine.ipynb"
    held = nbformat.read(path, as_version=4)
    held.cells.append(new_code_cell("labkit.__file__"))
    cells = publish.execute(held, cwd=path.parent, name=path.name).cells
    assert cells[-1].outputs[0].data["text/plain"] == repr(str(folder / "labkit/__init__.py"))
    verdicts = [cell.outputs[0].data["text/plain"] for cell in cells if cell.source.startswith("labkit.check(")]
    assert verdicts == [f"exercise 0.{number}: to do" for number in (1, 2, 3)]


def test_a_new_class_has_done_nothing_yet(handed_out):
    states = notebook.progress(handed_out / "notebooks").states
    assert {"0.1", "2.1", "3.1"} <= set(states) and set(states.values()) == {"to do"}


def test_a_folder_that_exists_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(ValueError, match="exists already; remove it, or name another folder: make student TO=other"):
        hand_out(tmp_path)
    assert files_in(tmp_path) == {"mine.txt"}


def test_the_command_says_what_to_hand_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert handout.main([]) == 0
    sentence = "notebooks are in student/notebooks; hand out the folder student: `make lab` in it opens them"
    assert capsys.readouterr() == (f"{len(LESSONS)} {sentence}\n", "")
    assert (tmp_path / "student/Makefile").exists()

    assert handout.main([]) == 1
    refusal = "student exists already; remove it, or name another folder: make student TO=other"
    assert capsys.readouterr() == ("", f"student: {refusal}\n")


def test_the_command_refuses_answered_notebooks_and_writes_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    answered = nbformat.read(ROOT / "notebooks/00_your_machine.ipynb", as_version=4)
    check = next(cell for cell in answered.cells if cell.source.startswith("labkit.check("))
    check.outputs = [nbformat.v4.new_output("display_data", data={"text/plain": "exercise 0.1: passed"})]
    nbformat.write(answered, tmp_path / "notebooks/00_your_machine.ipynb")
    monkeypatch.setattr(handout, "hand_out", functools.partial(hand_out, root=tmp_path))
    assert handout.main([str(tmp_path / "class")]) == 1
    assert "student: exercise 0.1 is answered in 00_your_machine.ipynb" in capsys.readouterr().err
    assert not (tmp_path / "class").exists()


def test_it_is_the_command_student_of_labkit(capsys):
    with pytest.raises(SystemExit, match="0"):
        command_line(["student", "--help"])
    assert "a folder that does not exist yet (default: student)" in " ".join(capsys.readouterr().out.split())
