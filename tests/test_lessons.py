"""Every lesson: its shape, and its exercises: stubs are "to do", solutions pass, wrong answers are refused with their cause.

tests/wrong_answers/NN.py defines WRONG_ANSWERS = {"NN.1": [(answer, regular expression of the cause), …], …}.
"""

import ast
import functools
import linecache
import re
import runpy
from pathlib import Path

import nbformat
import pytest

from labkit.exercises import CHECK_NAME, find_check, judged, known_exercises
from labkit.publish import NOTEBOOKS
from labkit.states import HEADING

WRONG = Path(__file__).parent / "wrong_answers"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
MOST_LINES, MOST_STRATEGY_LINES = 20, 60
pytestmark = pytest.mark.filterwarnings("ignore:.*CPU cores")


@functools.cache
def cells_of(path):
    return nbformat.read(path, as_version=4).cells


def code_of(path, *tags):
    """Cells of code that bear one of the tags; all of them where none is named."""
    cells = [cell for cell in cells_of(path) if cell.cell_type == "code" and cell.source.strip()]
    return [cell for cell in cells if not tags or set(tags) & set(cell.metadata.get("tags", []))]


@functools.cache
def exercises_of(path):
    """{exercise: position of the cell with its heading}."""
    cells = enumerate(cells_of(path))
    headings = [(number, HEADING.findall(cell.source)) for number, cell in cells if cell.cell_type == "markdown"]
    return {exercise: number for number, found in headings for exercise, _ in found}


@functools.cache
def checks_of(path):
    """{exercise: source of the answer} of every `labkit.check("3.1", answer)`."""
    calls = [node for cell in code_of(path) for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    calls = [call for call in calls if ast.unparse(call.func) in ("check", "labkit.check")]
    return {call.args[0].value: ast.unparse(call.args[1]) for call in calls}


@functools.cache
def namespace_of(path, *tags):
    """What the cells with these tags (all but checks for none) define; sent to ranks by value, as from a notebook."""
    namespace = {"__name__": f"lesson_{path.parent.name}_{path.stem.partition('_')[0]}"}
    cells = [cell for cell in code_of(path, *tags) if not cell.source.startswith("labkit.check(")]
    for number, cell in enumerate(cells, 1):
        name = f"{path.name}, tested cell {number}"
        linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
        exec(compile(cell.source, name, "exec"), namespace)
    return namespace


@functools.cache
def wrong_answers_of(path):
    number = path.name[:2]
    return runpy.run_path(str(WRONG / f"{number}.py"), run_name=f"wrong_answers_{number}")["WRONG_ANSWERS"]


def solutions_of(path):
    return path.parent / "solutions" / f"{path.name[:2]}.ipynb"


def judge(exercise, answer):
    return judged(find_check(exercise)[1], answer)


every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
every_exercise = pytest.mark.parametrize(
    "path, exercise", [pytest.param(path, one, id=one) for path in LESSONS for one in exercises_of(path)]
)


@every_lesson
def test_a_lesson_is_as_long_as_a_lesson(path):
    cells = cells_of(path)
    assert 25 <= len(cells) <= 45
    assert sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown") <= 1800
    for cell in code_of(path):
        most = MOST_STRATEGY_LINES if "strategy" in cell.metadata.get("tags", []) else MOST_LINES
        assert len(cell.source.splitlines()) <= most, cell.source


@every_lesson
def test_a_lesson_begins_with_its_title_and_question(path):
    title = cells_of(path)[0].source
    assert title.startswith(f"# {path.name[:2]} ") and "?" in title


@every_lesson
def test_cells_have_names_that_last(path):
    names = [cell.id for cell in cells_of(path)]
    assert len(set(names)) == len(names)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9-]+", name) or re.fullmatch(r"[0-9a-f-]{8,}", name)]


@every_lesson
def test_every_exercise_has_all_that_belongs_to_it(path):
    chapter = int(path.name[:2])
    judges = {f"{lesson}.{number}" for lesson, number in known_exercises() if lesson == chapter}
    wrong, solved = wrong_answers_of(path), checks_of(solutions_of(path))
    assert 2 <= len(exercises_of(path)) <= 4
    assert set(exercises_of(path)) == set(checks_of(path)) == judges == set(wrong) == set(solved)
    assert all(len(answers) >= 3 for answers in wrong.values())


@every_exercise
def test_an_exercise_is_a_goal_with_hints_a_stub_and_a_check(path, exercise):
    at = exercises_of(path)[exercise]
    goal, stub, check = cells_of(path)[at : at + 3]
    assert len(re.findall(r"<details>\s*<summary>", goal.source)) == goal.source.count("</details>") == 3
    assert "exercise" in stub.metadata.tags and "..." in stub.source
    assert f'labkit.check("{exercise}", ' in check.source
    function = find_check(exercise)[1]
    assert CHECK_NAME.fullmatch(function.__name__) and function.__doc__


@every_exercise
def test_an_untouched_stub_is_to_do(path, exercise):
    answer = eval(checks_of(path)[exercise], namespace_of(path, "strategy", "exercise"))
    assert judge(exercise, answer) == ("to do", "")


@every_exercise
def test_the_solution_passes(path, exercise):
    solutions = solutions_of(path)
    answer = eval(checks_of(solutions)[exercise], namespace_of(solutions))
    assert judge(exercise, answer) == ("passed", "")


def wrong_answers():
    lessons = [path for path in LESSONS if (WRONG / f"{path.name[:2]}.py").exists()]
    rows = [(one, at) for path in lessons for one, answers in wrong_answers_of(path).items() for at in enumerate(answers, 1)]
    return [pytest.param(one, *answer, id=f"{one}-{at}") for one, (at, answer) in rows]


@pytest.mark.parametrize("exercise, answer, cause", wrong_answers())
def test_a_wrong_answer_is_refused_with_its_cause(exercise, answer, cause):
    state, message = judge(exercise, answer)
    assert state == "not yet"
    assert re.search(cause, message), message
