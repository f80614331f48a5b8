"""The explorer of notebook 11: each menu predicts anew and redraws timeline, memory and tokens/s; a refusal is said."""

from pathlib import Path

import nbformat
from test_panel import BYTES, changed

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "11_plan_a_cluster.ipynb"


def test_menus_redraw_timeline_memory_and_tokens_per_second(lab):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id in ("setup", "explorer")]
    for cell in notebook.cells:
        cell.outputs, cell.execution_count = [], None
    lab.show(NOTEBOOK.stem, notebook)
    lab.run(0)
    lab.run(1)
    pictures, menus = lab.cell(1).locator(".jp-OutputArea img"), lab.cell(1).locator("select")
    pictures.nth(2).wait_for()
    assert menus.count() == 11
    beneath = pictures.nth(2).evaluate(BYTES)
    told = lab.cell(1).locator(".widget-html-content")
    first, timeline, held = told.inner_text(), pictures.nth(0).evaluate(BYTES), pictures.nth(1).evaluate(BYTES)
    assert "tokens/s" in first and "GiB a card" in first
    for number, value in ((1, "RTX 5090"), (8, "2"), (0, "GPT-2-355M")):  # machine, micro-batch, model
        menus.nth(number).select_option(value)
        held = changed(lab, pictures.nth(1), held)
        timeline, before = pictures.nth(0).evaluate(BYTES), timeline
        assert timeline != before
    assert told.inner_text() != first
    menus.nth(3).select_option("2")  # cards
    told.get_by_text("2 cards do not divide into tp 1 × pp 8 = 8").wait_for()
    assert pictures.nth(2).evaluate(BYTES) == beneath
