"""The stored notebooks are as `make outputs` leaves them, and compare enough; `pytest --nbval notebooks` runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from labkit.publish import NOTEBOOKS, faults, neutral, select

ROOT = Path(__file__).parents[1]
ALL = pytest.mark.parametrize("path", select([], folder=NOTEBOOKS), ids=lambda path: path.relative_to(NOTEBOOKS).as_posix())


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code" and cell.source.strip()]


@ALL
def test_stored_as_make_outputs_leaves_it(path):
    assert faults(nbformat.read(path, as_version=4)) == []


@ALL
def test_most_outputs_are_compared(path):
    cells = code_cells(path)
    assert not [cell.source for cell in cells if re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source)]
    tags = [cell.metadata.get("tags", []) for cell in cells]
    assert not [tag for some in tags for tag in some if tag == "nbval-skip"]
    assert sum("nbval-ignore-output" in some for some in tags) <= len(cells) / 3


def validate(path, environment):
    """The summary line of nbval, run as `make test` runs it."""
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "-c", str(ROOT / "pyproject.toml"), "-p", "conftest", str(path)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    return result.stdout.splitlines()[-1]


def test_validation_compares_text_but_neither_warnings_nor_html_nor_other_kernels(tmp_path):
    """Cells 0 to 2 differ where that is no fault; cells 3 and 4 where it is one."""
    cells = [
        new_code_cell("import sys; print('new warning', file=sys.stderr)"),
        new_code_cell("from IPython.display import HTML; HTML('<b>new</b>')"),
        new_code_cell("sys.executable"),
        new_code_cell("print('new')"),
        new_code_cell("1 / 0"),
    ]
    html = {"text/html": "<b>old</b>", "text/plain": "<IPython.core.display.HTML object>"}
    cells[1].outputs = [new_output("execute_result", data=html, execution_count=2)]
    cells[2].outputs = [new_output("execute_result", data={"text/plain": repr(sys.executable)}, execution_count=3)]
    cells[3].outputs = [new_output("stream", text="old\n")]
    for number, cell in enumerate(cells):
        cell.execution_count = number + 1
    path = tmp_path / "differs.ipynb"
    nbformat.write(neutral(new_notebook(cells=cells)), path)

    decoy = tmp_path / "jupyter/kernels/python3/kernel.json"
    decoy.parent.mkdir(parents=True)
    decoy.write_text('{"argv": ["/bin/false"], "display_name": "Python 3", "language": "python"}')
    environment = {**os.environ, "JUPYTER_PATH": str(tmp_path / "jupyter")}
    assert re.match(r"2 failed, 3 passed\b", validate(path, environment))
