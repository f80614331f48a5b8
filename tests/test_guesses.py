"""A prediction is made once, kept for the next kernel, never waited for, and shown by the figure that answers it."""

import json
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import labkit
from labkit import guess, guesses
from labkit.guess_card import WIDGET_VIEW
from labkit.publish import execute, neutral
from labkit.results import BASELINE, LIMIT, Scaling

ROOT = Path(__file__).parents[1]
QUESTION = "How many times as fast are 2 ranks?"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder, in which nothing is known yet."""
    monkeypatch.setattr(guesses, "_committed", {})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_outside_notebooks_it_is_text_that_tells_how_to_commit(capsys, folder):
    made = guess("speed-up", QUESTION, unit="×")
    assert made.value is None and made.text == made.note == ""
    assert capsys.readouterr().out == f"your prediction?  {QUESTION}\ncommit to it with .commit(number)\n"
    assert made.commit(1.8) is made
    assert (made.value, made.text, made.note) == (1.8, "1.8 ×", "your prediction: 1.8 ×")
    assert str(made) == f"your prediction: 1.8 ×  {QUESTION}\n.change() opens it again"
    assert list(folder.iterdir()) == []


def test_a_commitment_is_final_until_it_is_changed():
    made = guess("speed-up", QUESTION)
    made.commit(1.8).commit(1.8)
    with pytest.raises(ValueError, match=r"you have committed to 1.8; .change\(\) opens the question again"):
        made.commit(2)
    assert made.value == 1.8
    assert made.change().value is None
    assert made.commit(2).value == 2.0


def test_it_is_known_to_the_cell_that_asks_again_but_not_to_another_question():
    guess("speed-up", QUESTION).commit(1.8)
    assert guess("speed-up", QUESTION).value == 1.8
    assert guess("speed-up", "How many times as fast are 4 ranks?").value is None
    assert guess("memory", QUESTION).value is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1.8", None, 1j])
def test_what_is_no_number_is_refused(value):
    made = guess("speed-up", QUESTION)
    with pytest.raises(ValueError, match="is not a number that can be drawn"):
        made.commit(value)
    assert made.value is None


def test_one_of_the_choices_is_chosen(capsys):
    made = guess("winner", "Which is faster?", choices=["data parallel", "tensor parallel"])
    assert "commit to it with .commit('data parallel') or .commit('tensor parallel')" in capsys.readouterr().out
    with pytest.raises(ValueError, match="'pipeline' is none of the choices; choose 'data parallel' or"):
        made.commit("pipeline")
    assert made.commit("tensor parallel").note == "your prediction: tensor parallel"
    assert guess("count", "How many?", choices=(1, 2, 4), unit="ranks").commit(4).text == "4 ranks"


@pytest.mark.parametrize("choices", [["one"], ["1", 1], []])
def test_a_choice_needs_two_that_differ(choices):
    with pytest.raises(ValueError, match="at least two that differ"):
        guess("winner", "Which?", choices=choices)


@pytest.mark.parametrize(
    "text, value",
    [("1.8", 1.8), (" 1,8 ", 1.8), ("12,000", 12e3), ("1,234,567.5", 1234567.5), ("-2 ×", -2.0), ("3×", 3.0), ("1e9", 1e9)],
)
def test_numbers_as_people_type_them(text, value):
    assert guess("speed-up", QUESTION, unit="×").commit_text(text).value == value


@pytest.mark.parametrize("text, complaint", [("", "type a number first"), ("fast", "'fast' is not a number"), ("nan", "drawn")])
def test_other_texts_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        guess("speed-up", QUESTION).commit_text(text)


def race(guess):
    scaling = Scaling(job=labkit.small_job(), badge="2 CPU cores", batch="global", names=("dp",), world_sizes=(2, 4), guess=guess)
    for n in (2, 4):
        scaling.add_round(n, {BASELINE: 2.0, LIMIT: 1.0, "dp": 1.25})
    return scaling


def marks(figure):
    """The places of the learner's marks in the picture, (ranks, value)."""
    lines = [line for line in figure.axes[0].lines if line.get_label() == "your prediction"]
    return [tuple(map(float, place)) for line in lines for place in line.get_xydata()]


def texts(figure):
    return " | ".join(text.get_text() for text in figure.texts)


def test_the_picture_of_a_race_carries_the_prediction_once_there_is_one():
    made = guess("speed-up", QUESTION)
    raced = race(made)
    assert marks(raced.figure) == [] and "prediction" not in texts(raced.figure)
    made.commit(1.7)
    assert marks(raced.figure) == [(4, 1.7)] and "your prediction" in texts(raced.figure)
    assert marks(race({2: made, 4: 3, 8: 7}).figure) == [(2, 1.7), (4, 3)]
    assert race(None).predictions == {}


def test_the_picture_of_a_race_says_what_was_chosen():
    made = guess("winner", "Which is faster?", choices=["data parallel", "tensor parallel"])
    raced = race(made)
    assert raced.note == ""
    made.commit("tensor parallel")
    assert marks(raced.figure) == [] and "your prediction: tensor parallel" in texts(raced.figure)


def test_labkit_and_guesses_need_no_widgets(folder):
    code = """
import sys
import labkit
labkit.guess("speed-up", "How many?").commit(1)
print([name for name in ("ipywidgets", "IPython", "matplotlib") if name in sys.modules])"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


ASK = f"g = labkit.guess('speed-up', {QUESTION!r}, unit='×')"
CHOOSE = "labkit.guess('winner', 'Which <is> faster?', choices=['dp', 'tp'])"


def notebook(*sources):
    held = new_notebook(cells=[new_code_cell(source) for source in ("import labkit", *sources)])
    held.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return held


def run(*sources):
    """The outputs of each cell, run in a kernel of their own in the working folder."""
    held = notebook(*sources)
    nbclient.NotebookClient(held, record_timing=False, coalesce_streams=True).execute()
    return [[dict(output.get("data", {"text/plain": output.get("text")})) for output in cell.outputs] for cell in held.cells[1:]]


def test_a_notebook_asks_with_widgets_and_keeps_plain_texts_once_answered(folder):
    asked, chosen, value, *_ = run(ASK, CHOOSE, "g.value", "g.commit(1.8); None")
    for outputs in (asked, chosen):
        assert len(outputs) == 2 and all("text/plain" in output for output in outputs)
    # nbclient puts updates in place: the question of `g` was answered two cells later.
    assert "your prediction: 1.8 ×" in asked[0]["text/html"] and WIDGET_VIEW not in asked[1]
    assert "Which &lt;is&gt; faster?" in chosen[0]["text/html"] and WIDGET_VIEW in chosen[1]
    assert value == []
    entry = {"question": QUESTION, "value": 1.8}
    assert json.loads((folder / guesses.FILE).read_text()) == {"speed-up": entry}


def store(folder, **values):
    """What a learner has committed to in an earlier kernel."""
    questions = {"speed-up": QUESTION, "winner": "Which <is> faster?"}
    entries = {name.replace("_", "-"): value for name, value in values.items()}
    entries = {name: {"question": questions[name], "value": value} for name, value in entries.items()}
    (folder / guesses.FILE).write_text(json.dumps(entries))


def test_the_next_kernel_knows_what_was_committed_to(folder):
    store(folder, speed_up=1.8, winner="tp")
    asked, chosen, value, changed = run(ASK, CHOOSE, "g.value", "g.change()")
    assert value == [{"text/plain": "1.8"}]
    assert "your prediction: tp" in chosen[0]["text/html"] and WIDGET_VIEW not in chosen[1]
    assert "your prediction?" in changed[0]["text/html"] and WIDGET_VIEW in changed[1]
    assert asked == changed
    assert json.loads((folder / guesses.FILE).read_text()).keys() == {"winner"}


@pytest.mark.parametrize("content", ["", "[]", '{"speed-up": 3}', '{"speed-up": {"question": "Q", "value": "x"}}', "\x00"])
def test_a_broken_file_is_no_answer(folder, content):
    (folder / guesses.FILE).write_text(content)
    assert guess("speed-up", "Q").value is None


def test_without_ipywidgets_a_notebook_shows_how_to_commit(folder):
    hide = "import labkit.guess_card; labkit.guess_card.importlib.util.find_spec = lambda name: None"
    _, asked = run(hide, ASK)
    assert WIDGET_VIEW not in asked[1] and ".commit(number)" in asked[0]["text/html"]


def test_stored_outputs_of_the_workbook_hold_nobodys_predictions(folder):
    store(folder, speed_up=1.8)
    held = execute(notebook(ASK, "g.value", "g.commit(2); None"), cwd=folder, name="x")
    assert held.cells[2].outputs == []
    assert json.loads((folder / guesses.FILE).read_text())["speed-up"]["value"] == 1.8


def test_strict_nbval_passes_whatever_was_committed_to(folder):
    held = execute(notebook(ASK, CHOOSE, "g"), cwd=folder, name="asks")
    for name in ("unanswered", "answered"):
        (folder / name).mkdir()
        nbformat.write(neutral(held), folder / name / "asks.ipynb")
    store(folder / "answered", speed_up=1.8, winner="tp")
    # Run as `make test` runs it.
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "-c", str(ROOT / "pyproject.toml"), "-p", "conftest"]
    command += [str(folder / "unanswered"), str(folder / "answered")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-1].startswith("8 passed")
