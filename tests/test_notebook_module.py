"""Strategies out of notebooks: loaded from anywhere, sent by value, refused when they are more than definitions."""

import inspect
import json
import pickle
import subprocess
import sys
import traceback

import cloudpickle
import nbclient
import nbformat
import pytest

from labkit import notebook, states

CONSTANTS = """
from __future__ import annotations
import math
from dataclasses import dataclass

SIZE = 25 * 2**20
WORDS: tuple = ("a", math.pi)
"""
BASE = """
from __future__ import annotations

@dataclass(frozen=True)
class Base:
    size: int = SIZE

    def area(self):
        return self.size
"""
FUNCTIONS = """
class Square(Base):
    def area(self):
        return super().area() ** 2

def helper(x, *, size=SIZE):
    return double(x) + math.floor(size / SIZE)

def double(x):
    return 2 * x

def broken(x):
    return (
        x / 0)
"""
CELLS = [
    ("markdown", "# Title", []),
    ("code", "raise SystemExit('never run')", []),
    ("code", "   \n", ["strategy"]),
    ("code", CONSTANTS, ["strategy"]),
    ("code", BASE, ["strategy"]),
    ("code", FUNCTIONS, ["strategy", "other"]),
    ("code", "helper(0)", []),
]


def write(folder, name, cells):
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    held = [make[kind](source, metadata={"tags": tags} if tags else {}) for kind, source, tags in cells]
    path = folder / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=held), path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of notebooks, and a working folder two levels below its parent."""
    (tmp_path / "notebooks" / "solutions").mkdir(parents=True)
    write(tmp_path / "notebooks", "93_techniques", CELLS)
    write(tmp_path / "notebooks", "93_techniques-Copy1", CELLS[:1])
    write(tmp_path / "notebooks" / "solutions", "93", CELLS[:1])
    monkeypatch.chdir(tmp_path / "notebooks" / "solutions")
    return tmp_path / "notebooks"


def test_load_gives_the_definitions_and_runs_nothing_else(folder):
    loaded = notebook.load("93_techniques")
    assert sorted(vars(loaded)) == ["Base", "SIZE", "Square", "WORDS", "broken", "double", "helper"]
    assert loaded.helper(3) == 7 and loaded.Square(3).area() == 9 and loaded.SIZE == 26_214_400


@pytest.mark.parametrize("name", ["93", "93_techniques", "93_techniques.ipynb"])
def test_names_and_numbers_are_found_from_below_and_in_a_given_folder(folder, name, monkeypatch, tmp_path):
    assert notebook.load(name).double(1) == 2
    monkeypatch.chdir("/")
    assert notebook.load(name, folder).double(1) == 2
    assert notebook.load(folder / "93_techniques.ipynb").double(1) == 2
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))
    assert notebook.load(name).double(1) == 2


def test_an_unknown_notebook_names_those_there_are(folder):
    with pytest.raises(FileNotFoundError, match="no notebook '94'; there are 93_techniques, 93_techniques-Copy1$"):
        notebook.load("94", folder)
    (folder / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="LABKIT_NOTEBOOKS"):
        notebook.load("93", folder / "empty")


@pytest.mark.parametrize(
    "source, message",
    [
        ("x = 1\nprint(x)", r"94_bad.ipynb, cell 1, line 2: `print\(x\)` does not belong here"),
        ("x = len('abc')", r"cell 1, line 1: `x = len\('abc'\)` does not belong here"),
        ("for i in range(3):\n    pass", r"cell 1, line 1: `for i in range\(3\):` does not belong here"),
        ("%matplotlib inline", "cell 1, line 1: invalid syntax"),
        ("def f(:", "cell 1, line 1"),
        ("def f(x):\n    return torch.sum(x)", "cell 1, in f: `torch` is neither imported nor defined"),
        ("def f():\n    def g():\n        return missing\n    return g", "cell 1, in g: `missing` is neither"),
    ],
)
def test_a_cell_that_is_more_than_definitions_is_named(tmp_path, source, message):
    write(tmp_path, "94_bad", [("code", source, ["strategy"])])
    with pytest.raises(ValueError, match=message):
        notebook.load("94", tmp_path)


def test_a_notebook_without_strategies_and_a_file_that_is_none_are_named(tmp_path):
    write(tmp_path, "94_none", CELLS[:2])
    (tmp_path / "95_text.ipynb").write_text("text")
    with pytest.raises(ValueError, match="no cell of 94_none.ipynb has the tag `strategy`"):
        notebook.load("94", tmp_path)
    with pytest.raises(ValueError, match="95_text.ipynb is not a notebook"):
        notebook.load("95", tmp_path)


def test_tracebacks_and_sources_point_at_the_cell(folder):
    loaded = notebook.load("93")
    with pytest.raises(ZeroDivisionError) as caught:
        loaded.broken(1)
    text = "".join(traceback.format_exception(caught.value))
    assert 'File "93_techniques.ipynb, cell 4", line 14, in broken\n    x / 0)' in text
    code = loaded.broken.__code__
    assert notebook.place(code.co_filename, 14) == "93_techniques.ipynb, cell 4, line 14"
    assert inspect.getsource(loaded.double) == "def double(x):\n    return 2 * x\n"


def test_functions_and_classes_travel_by_value(folder):
    loaded = notebook.load("93")
    sent = cloudpickle.dumps((loaded.helper, loaded.Square))
    code = "import sys, pickle; f, c = pickle.loads(sys.stdin.buffer.read()); print(f(3), f(3, size=0), c(5).area(), c().size)"
    result = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, cwd="/", check=True)
    assert result.stdout == b"7 6 25 26214400\n"
    helper, _ = pickle.loads(sent)
    assert helper is not loaded.helper and not any(name.startswith("labkit_notebook") for name in sys.modules)


def test_a_place_in_a_file_shows_its_base_name_only():
    assert notebook.place("/home/someone/course/helper.py", 3) == "helper.py, line 3"


EXERCISES = [
    ("markdown", "## Exercises\n### Exercise 93.1 · Sum or mean?\nText", []),
    ("code", "def answer(x):\n    ...", ["exercise"]),
    ("code", "labkit.check('93.1', answer)", []),
    ("markdown", "### Exercise 93.2\nText", []),
    ("code", "secret = 27", ["solution"]),
]


def test_progress_shows_every_exercise_of_the_folder(tmp_path, monkeypatch):
    write(tmp_path, "93_techniques", EXERCISES)
    (tmp_path / "94_broken.ipynb").write_text("{")
    states.record("93.2", "not yet", "off by the factor 2 < 3", folder=tmp_path, keep=True)
    table = notebook.progress(tmp_path)
    assert table.states == {"93.1": "to do", "93.2": "not yet"}
    states.record("93.1", "passed", "", folder=tmp_path, keep=False)
    monkeypatch.chdir(tmp_path)
    table = notebook.progress()
    assert table.states == {"93.1": "passed", "93.2": "not yet"}
    assert str(table).splitlines() == [
        "93_techniques             93.1  ✓ passed   Sum or mean?",
        "93_techniques             93.2  ✗ not yet",
        "1 of 2 exercises passed",
    ]
    assert "off by the factor 2 &lt; 3" in table._repr_html_()


def test_progress_of_a_folder_without_exercises(tmp_path):
    assert str(notebook.progress(tmp_path)) == "no exercises found"


def test_student_copies_hold_no_outputs_and_no_solutions(tmp_path):
    source, target = tmp_path / "notebooks", tmp_path / "handout"
    (source / "solutions").mkdir(parents=True)
    path = write(source, "93_techniques", EXERCISES)
    write(source / "solutions", "93", EXERCISES)
    (source / "README.md").write_text("for teachers")
    ran = json.loads(path.read_text())
    ran["cells"][2] |= {"execution_count": 3, "outputs": [stream("exercise 93.1: to do\n")]}
    path.write_text(json.dumps(ran))
    assert notebook.student(source, target) == [target / "93_techniques.ipynb"]
    assert [file.name for file in target.iterdir()] == ["93_techniques.ipynb"]
    copy = nbformat.read(target / "93_techniques.ipynb", as_version=4)
    nbformat.validate(copy)
    assert [cell.source for cell in copy.cells] == [source for _, source, _ in EXERCISES[:4]]
    assert [(cell.outputs, cell.execution_count) for cell in copy.cells if cell.cell_type == "code"] == [([], None)] * 2
    assert copy.cells[1].metadata == {"tags": ["exercise"]}


def stream(text):
    return {"output_type": "stream", "name": "stdout", "text": [text]}


def test_student_refuses_an_answered_notebook_and_writes_nothing(tmp_path):
    path = write(tmp_path, "93_techniques", EXERCISES)
    ran = json.loads(path.read_text())
    ran["cells"][2] |= {"execution_count": 3, "outputs": [stream("exercise 93.1: passed\n")]}
    path.write_text(json.dumps(ran))
    with pytest.raises(ValueError, match="exercise 93.1 is answered in 93_techniques.ipynb"):
        notebook.student(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="a folder of their own"):
        notebook.student(tmp_path, tmp_path)


def test_places_in_cells_of_a_kernel(folder):
    cells = [
        "from labkit import notebook\nimport inspect, sys",
        "def f():\n    return inspect.currentframe()\n\ncode = f().f_code\nprint(notebook.place(code.co_filename, 2))",
        "print(notebook.load('93').double(2))",
    ]
    held = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(held, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    assert [cell.outputs[0].text for cell in held.cells[1:]] == ["cell In[2], line 2\n", "4\n"]
