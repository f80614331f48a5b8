"""What a learner sees in JupyterLab: pictures that move while a cell is busy, Stop that stops, predictions that stay."""

import re
import time
from pathlib import Path

import lab as lab_module
import nbformat
import pytest
from nbformat.v4 import new_code_cell

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_data_parallel.ipynb"
GONE_S = 5.0


def test_a_race_moves_while_its_cell_is_busy_and_stop_leaves_no_rank(lab):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    race = next(number for number, cell in enumerate(notebook.cells) if "labkit.scaling(" in cell.source)
    # As long as it takes to look three times on a slow machine; the race's own 15 rounds end it before that.
    notebook.cells[race].source = re.sub(r"seconds=\d+", "seconds=60", notebook.cells[race].source)
    notebook.cells.append(new_code_cell("labkit.launch(lambda rank: rank.rank, world_size=2).results"))
    lab.show(NOTEBOOK.stem, notebook)
    for number, cell in enumerate(notebook.cells[:race]):
        if "strategy" in cell.metadata.get("tags", []) or "labkit.guess(" in cell.source:
            lab.run(number)

    lab.start(race)
    assert len(lab.frames(race, count=4, within_s=50)) == 4
    assert len(lab.ranks()) == 2
    lab.stop()
    assert gone(lab)
    lab.wait(race)
    assert lab.text(race).strip().splitlines()[-1] == "stopped: all 2 ranks have ended"

    assert lab.run(len(notebook.cells) - 1).endswith("(0, 1)")
    assert gone(lab)


def gone(lab):
    """Whether no rank is left, at the latest after GONE_S."""
    deadline = time.monotonic() + GONE_S
    while lab.ranks() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not lab.ranks()


def test_a_learner_commits_to_a_number_and_the_picture_carries_it(lab):
    ask = "prediction = labkit.guess('speed-up', 'How many times as fast are two?', unit='×')"
    race = "labkit.scaling(one_device, world_sizes=(2,), repeats=3, job=labkit.small_job(), live=False, guess=prediction)"
    say = "race.predictions, [text.get_text() for text in race.figure.texts if ' on 2 ranks' in text.get_text()][-1]"
    setup = "import labkit\nfrom labkit.training import one_device"
    lab.open("predict", f"{setup}\n{ask}", f"race = {race}", "race.figure", say)
    lab.run(0)
    assert lab.run(1) == ""
    lab.run(2)
    before = lab.frame(2)
    assert "{}" in lab.run(3)

    field, commit = lab.cell(0).locator("input"), lab.cell(0).get_by_role("button", name="commit")
    field.fill("fast")
    commit.click()
    lab.cell(0).get_by_text("'fast' is not a number").wait_for()
    field.fill("1,8")
    commit.click()
    lab.cell(0).get_by_text("your prediction: 1.8 ×").wait_for()
    assert field.count() == commit.count() == 0

    lab.run(2)
    assert lab.frame(2) not in (None, before)
    assert "({2: 1.8}, '1.8 on 2 ranks')" in lab.run(3)


@pytest.mark.parametrize("ci, outcome", [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_chromium_these_tests_are_skipped_but_never_in_ci(monkeypatch, ci, outcome):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="Chromium is"):
        lab_module.find_chromium()
