"""`python -m labkit outputs`: the one way in which outputs get into the notebooks that the repository stores."""

import argparse
import base64
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CELL_TIMEOUT_S = 120
# Neither a Python version nor the name of someone's own kernel: every machine has this one.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = {"tags", "jupyter"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PLACES = re.compile(r"(/home/|/root/|/Users/|/tmp/|site-packages)[^\s\"'\\]*")


class NotebookError(Exception):
    """A notebook did not run to its end; the message names the notebook, the code cell and the error."""


def main(arguments: list[str]) -> int:
    """Store, or with --check only judge, the chosen notebooks; 1 where one is not as it should be, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m labkit outputs", description="Run notebooks and store their outputs.")
    parser.add_argument("names", nargs="*", help="how a notebook's name begins, such as 03 (default: all, and solutions)")
    parser.add_argument("--check", action="store_true", help="run and write nothing: only say what is not as outputs are stored")
    parser.add_argument("--folder", type=Path, default=NOTEBOOKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        paths = select(options.names, folder=options.folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    treat = check if options.check else store
    try:
        results = [treat(path, options.folder) for path in paths]
    except KeyboardInterrupt:
        print("stopped; the notebook that ran is as it was", file=sys.stderr)
        return 130
    return 0 if all(results) else 1


def select(names: list[str], *, folder: Path) -> list[Path]:
    """The notebooks of `folder` and its solutions whose names begin so (all for no names); ValueError for an unknown name."""
    paths = sorted(folder.glob("*.ipynb")) + sorted(folder.glob("solutions/*.ipynb"))
    if not names:
        return paths
    known = {path: (path.name, path.relative_to(folder).as_posix()) for path in paths}
    for name in names:
        if not any(full.startswith(name) for full in sum(known.values(), ())):
            raise ValueError(f"no notebook's name begins with {name!r}; there are {', '.join(path.stem for path in paths)}")
    return [path for path, full in known.items() if any(part.startswith(tuple(names)) for part in full)]


def store(path: Path, folder: Path) -> bool:
    """Run the notebook, store it in neutral form and judge it; a failure is printed and leaves the file as it was."""
    import nbformat

    name, start = path.relative_to(folder).as_posix(), time.perf_counter()
    try:
        notebook = neutral(execute(nbformat.read(path, as_version=4), cwd=path.parent, name=name))
    except NotebookError as error:
        print(error, file=sys.stderr)
        return False
    replace(path, nbformat.writes(notebook) + "\n")
    keep_pictures(notebook, folder / "pictures")
    print(f"{name}: stored, {time.perf_counter() - start:.1f} s")
    return check(path, folder)


def keep_pictures(notebook, folder: Path):
    """Save the picture of each cell tagged `picture` as a file of the cell's name, for the pages that show it."""
    for cell in notebook.cells:
        images = [output.data["image/png"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        if images and "picture" in cell.metadata.get("tags", []):
            folder.mkdir(exist_ok=True)
            (folder / f"{cell.id}.png").write_bytes(base64.b64decode(images[-1]))


def check(path: Path, folder: Path) -> bool:
    """Print what distinguishes the stored notebook from what `store` writes."""
    import nbformat

    found = faults(nbformat.read(path, as_version=4))
    for fault in found:
        print(f"{path.relative_to(folder).as_posix()}: {fault}", file=sys.stderr)
    return not found


def execute(notebook, *, cwd: Path, name: str):
    """Run all cells in place in a fresh kernel of this very environment, without the user's IPython start-up files."""
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, CellTimeoutError

    begun = []
    options = {"timeout": CELL_TIMEOUT_S, "record_timing": False, "store_widget_state": False, "coalesce_streams": True}
    hooks = {"on_cell_execute": lambda cell, cell_index: begun.append(cell)}
    client = NotebookClient(notebook, kernel_name="python3", **options, **hooks)
    # With no folder to look in, `python3` can only mean the interpreter that runs this line.
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    with tempfile.TemporaryDirectory(prefix="labkit-") as private, open(f"{private}/log", "w+") as log:
        try:
            # What someone has answered or predicted beside the notebooks is theirs, and not for the stored outputs.
            environment = {**os.environ, "IPYTHONDIR": private, "LABKIT_STATES": "off"}
            return client.execute(cwd=str(cwd), env=environment, stderr=log)
        except CellTimeoutError:
            raise NotebookError(complaint(name, begun, f"still busy after {CELL_TIMEOUT_S} s")) from None
        except CellControlSignal as error:
            raise NotebookError(complaint(name, begun, f"{error.ename}: {error.evalue}")) from None
        except AssertionError:
            if client.km is not None:
                raise
            # Stopped by a signal, nbclient ends the kernel and then misses it.
            raise KeyboardInterrupt from None
        except RuntimeError:
            log.seek(0)
            last_words = [line for line in log.read().splitlines() if line and "WARNING" not in line][-5:]
            raise NotebookError(complaint(name, begun, "\n  ".join(["the kernel is gone", *last_words]))) from None


def complaint(name: str, begun: list, cause: str) -> str:
    """Which cell of which notebook, how it begins, and what went wrong, one line each."""
    if not begun:
        return f"{name}: no cell was run: {cause}"
    first_line = begun[-1].source.strip().splitlines()[0]
    return f"{name}: code cell {len(begun)} failed; the file is as it was\n  {first_line}\n  {cause}"


def neutral(notebook):
    """The notebook without what changes from run to run or machine to machine; outputs and cell ids stay."""
    import nbformat

    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in CELL_METADATA & set(cell.metadata)})
        for output in cell.get("outputs", []):
            # A widget's model dies with its kernel; its text is what a reader of the file can see.
            output.get("data", {}).pop(WIDGET_VIEW, None)
    return notebook


def faults(notebook) -> list[str]:
    """What is not as `store` leaves it, one sentence each; empty for a notebook that was stored by it."""
    found = [] if notebook.metadata == METADATA else [f"metadata of the notebook: {json.dumps(notebook.metadata)}"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("its cells were not run once each, in order, in a clean kernel")
    for number, cell in enumerate(notebook.cells):
        foreign = sorted(set(cell.metadata) - CELL_METADATA)
        found += [f"cell {number} has metadata {', '.join(foreign)}"] if foreign else []
        outputs = cell.get("outputs", [])
        if any(WIDGET_VIEW in output.get("data", {}) for output in outputs):
            found.append(f"cell {number} shows a widget that no kernel backs")
        place = PLACES.search(visible_text(outputs))
        found += [f"cell {number} shows a place on one machine: {place.group()}"] if place else []
    return found


def visible_text(outputs: list) -> str:
    """All texts of a cell's outputs as one string, pictures left out."""
    texts = [{key: text for key, text in output.get("data", {}).items() if not key.startswith("image/")} for output in outputs]
    streams = [(output.get("text", ""), output.get("traceback", "")) for output in outputs]
    return json.dumps([texts, streams])


def replace(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
