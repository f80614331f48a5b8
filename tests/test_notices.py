"""Notices beside a run: a warning for scripts, a bare line for notebooks."""

import nbformat
import pytest
from nbclient import NotebookClient

import labkit

RUN = "import labkit\nmore = len(labkit.machine().cores) + 1\n_ = labkit.launch(lambda rank: None, world_size=more, device='cpu')"


def test_a_script_is_warned_at_its_own_line():
    more = len(labkit.machine().cores) + 1
    with pytest.warns(UserWarning, match="speeds mean nothing") as caught:
        labkit.launch(lambda rank: None, world_size=more, device="cpu")
    assert caught[0].filename == __file__


def test_a_notebook_reads_the_sentence_once_and_no_path():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (RUN, RUN)])
    NotebookClient(notebook, kernel_name="python3", timeout=60).execute()
    first, second = (cell.outputs for cell in notebook.cells)
    assert [output.name for output in first] == ["stderr"] and not second
    assert first[0].text.endswith("results are right, speeds mean nothing\n") and "/" not in first[0].text
