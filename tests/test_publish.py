"""`python -m labkit outputs`: what is run, in which environment, what is stored, and what a failure leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import publish
from labkit.__main__ import main


def write(path, *cells, metadata=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [new_code_cell(cell, id=f"cell-{i}") if isinstance(cell, str) else cell for i, cell in enumerate(cells)]
    nbformat.write(new_notebook(cells=cells, metadata=metadata or {}), path)
    return path


def texts(path):
    notebook = nbformat.read(path, as_version=4)
    return [output.get("text") or output.data["text/plain"] for cell in notebook.cells for output in cell.get("outputs", [])]


def outputs(folder, *arguments):
    return main(["outputs", "--folder", str(folder), *arguments])


@pytest.fixture
def decoys(tmp_path, monkeypatch):
    """A kernel of the same name that comes first on Jupyter's path, and a start-up file that marks every kernel."""
    kernel = tmp_path / "jupyter/kernels/python3/kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": ["/bin/false"], "display_name": "Python 3", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    startup = tmp_path / "ipython/profile_default/startup/00.py"
    startup.parent.mkdir(parents=True)
    startup.write_text("marked = True")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_runs_in_this_environment_whatever_else_is_named_python3(tmp_path, decoys):
    path = write(
        tmp_path / "notebooks/01_a.ipynb",
        f"import sys; print(sys.executable == {sys.executable!r})",
        "import os; print(os.listdir())",
        "print('marked' in globals())",
        metadata={"kernelspec": {"name": "mycourse", "display_name": "My course", "language": "python"}},
    )
    assert outputs(path.parent) == 0
    assert texts(path) == ["True\n", "['01_a.ipynb']\n", "False\n"]


def test_stores_a_neutral_file_and_the_same_bytes_again(tmp_path, capsys):
    noisy = new_code_cell("6 * 7", id="noisy", execution_count=9)
    noisy.metadata = {"tags": ["strategy"], "execution": {"iopub.execute_input": "2026"}, "scrolled": True}
    noisy.outputs = [new_output("stream", text="stale\n")]
    widget = "import ipywidgets; ipywidgets.IntSlider()"
    metadata = {"language_info": {"name": "python", "version": "3.11.2"}, "widgets": {}}
    path = write(tmp_path / "01_a.ipynb", noisy, new_markdown_cell("text", id="text"), widget, metadata=metadata)

    assert outputs(tmp_path, "--check") == 1
    assert outputs(tmp_path) == 0
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == publish.METADATA
    assert notebook.cells[0].metadata == {"tags": ["strategy"]}
    assert [cell.get("execution_count") for cell in notebook.cells] == [1, None, 2]
    assert texts(path)[0] == "42" and texts(path)[1].startswith("IntSlider(")
    assert "widget-view" not in path.read_text()

    first = path.read_bytes()
    assert outputs(tmp_path) == 0 and outputs(tmp_path, "--check") == 0
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == ["01_a.ipynb"]


@pytest.mark.parametrize(
    "cell, cause",
    [
        ("# divides\n1 / 0", "ZeroDivisionError: division by zero"),
        ("# divides\nimport os; os.write(2, b'no memory\\n'); os._exit(3)", "the kernel is gone\n  no memory"),
        ("# divides\nimport time; time.sleep(60)", "still busy after 1 s"),
    ],
)
def test_a_failing_cell_is_named_and_leaves_the_file_alone(tmp_path, capsys, monkeypatch, cell, cause):
    monkeypatch.setattr(publish, "CELL_TIMEOUT_S", 1 if "sleep" in cell else 60)
    bad = write(tmp_path / "01_bad.ipynb", "x = 1", cell, "x")
    good = write(tmp_path / "02_good.ipynb", "'stored'")
    before = bad.read_bytes()

    assert outputs(tmp_path) == 1
    complaint = capsys.readouterr().err
    assert "01_bad.ipynb: code cell 2 failed" in complaint and "# divides" in complaint and cause in complaint
    assert len(complaint.splitlines()) <= 4
    assert bad.read_bytes() == before
    assert texts(good) == ["'stored'"]


def test_a_notebook_that_shows_a_place_of_this_machine_is_not_accepted(tmp_path, capsys):
    write(tmp_path / "01_a.ipynb", "import sys; sys.prefix + '/lib/site-packages'")
    assert outputs(tmp_path) == 1
    assert "cell 0 shows a place on one machine" in capsys.readouterr().err


def test_a_stop_ends_the_kernel_and_leaves_the_file_alone(tmp_path):
    started = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'started'); time.sleep(60)"
    path = write(tmp_path / "01_a.ipynb", started)
    before, mark = path.read_bytes(), tmp_path / "started"
    command = [sys.executable, "-m", "labkit", "outputs", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not mark.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == "stopped; the notebook that ran is as it was\n"
    assert process.returncode == 130 and path.read_bytes() == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_names_choose_notebooks_and_their_solutions(tmp_path):
    paths = [write(tmp_path / name) for name in ("03_a.ipynb", "04_b.ipynb", "solutions/03.ipynb")]
    assert publish.select([], folder=tmp_path) == paths
    assert publish.select(["03"], folder=tmp_path) == [paths[0], paths[2]]
    assert publish.select(["solutions/03", "04_b.ipynb"], folder=tmp_path) == paths[1:]
    with pytest.raises(ValueError, match="'05'; there are 03_a, 04_b, 03"):
        publish.select(["03", "05"], folder=tmp_path)


def test_an_unknown_name_runs_nothing(tmp_path, capsys):
    path = write(tmp_path / "03_a.ipynb", "1")
    before = path.read_bytes()
    assert outputs(tmp_path, "03", "99") == 2
    assert "'99'" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_every_fault_of_a_stored_notebook_is_found():
    def stored(**changes):
        cell = new_code_cell("1", execution_count=1, outputs=[new_output("execute_result", data={"text/plain": "1"})])
        cell.update(changes)
        return publish.neutral(new_notebook(cells=[cell]))

    def faults(notebook, **metadata):
        notebook.cells[0].metadata.update(metadata)
        return " ".join(publish.faults(notebook))

    assert faults(stored()) == ""
    assert "in a clean kernel" in faults(stored(execution_count=None))
    assert "in a clean kernel" in faults(stored(execution_count=2))
    assert "metadata execution" in faults(stored(), execution={})
    for text in ("see /home/ann/x.py", "/tmp/run-1/log", "File .venv/lib/site-packages/torch/x.py"):
        assert "place on one machine" in faults(stored(outputs=[new_output("stream", text=text)]))
    widget = stored()
    widget.cells[0].outputs[0].data[publish.WIDGET_VIEW] = {"model_id": "1"}
    assert "widget" in faults(widget)
    versioned = stored()
    versioned.metadata.language_info.version = "3.11.2"
    assert "3.11.2" in faults(versioned)


@pytest.mark.parametrize(
    "arguments, status, stream", [(["--help"], 0, "out"), ([], 2, "out"), (["nonsense"], 2, "err")]
)
def test_the_command_line_says_what_it_can(capsys, arguments, status, stream):
    assert main(arguments) == status
    assert "outputs " in getattr(capsys.readouterr(), stream)


def test_pictures_that_pages_show_are_saved_under_the_name_of_their_cell(tmp_path):
    shown = "from IPython.display import Image\nfrom matplotlib.figure import Figure\nimport io\n"
    shown += "data = io.BytesIO(); Figure().savefig(data, format='png'); Image(data.getvalue())"
    cells = [new_code_cell(shown, id="race", metadata={"tags": ["picture"]}), new_code_cell(shown, id="other")]
    path = write(tmp_path / "notebooks/01_a.ipynb", *cells)
    assert outputs(path.parent) == 0
    pictures = list((path.parent / "pictures").iterdir())
    assert [picture.name for picture in pictures] == ["race.png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
