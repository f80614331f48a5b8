"""The slider panel of notebook 06: each move draws the ideal timeline anew, and leaves the picture beneath alone."""

from pathlib import Path

import nbformat

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_pipeline_parallel.ipynb"
BYTES = "async image => Array.from(new Uint8Array(await (await fetch(image.src)).arrayBuffer())).join()"


def test_sliders_and_choice_redraw_the_ideal_timeline(lab):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id in ("setup", "panel")]
    for cell in notebook.cells:
        cell.outputs, cell.execution_count = [], None
    lab.show(NOTEBOOK.stem, notebook)
    lab.run(0)
    lab.run(1)
    pictures = lab.cell(1).locator(".jp-OutputArea img")
    pictures.nth(1).wait_for()
    beneath, seen = pictures.nth(1).evaluate(BYTES), [pictures.first.evaluate(BYTES)]
    handles = lab.cell(1).locator(".noUi-handle")
    assert handles.count() == 3
    for number in range(3):
        handles.nth(number).focus()
        lab.page.keyboard.press("ArrowRight")
        seen.append(changed(lab, pictures.first, seen[-1]))
    lab.cell(1).locator("select").select_option("zero bubble")
    seen.append(changed(lab, pictures.first, seen[-1]))
    assert len(set(seen)) == 5
    assert pictures.nth(1).evaluate(BYTES) == beneath


def changed(lab, picture, before):
    """The picture's bytes as soon as they are others; within 20 s."""
    for _ in range(200):
        now = picture.evaluate(BYTES)
        if now != before:
            return now
        lab.page.wait_for_timeout(100)
    raise AssertionError("the picture stays as it was")
