"""Notebooks to hand out: as the repository has them, without outputs and without solutions."""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What `make lab` needs in a folder of its own; the rest (solutions, tests, the teacher's page) stays with the teacher.
NEEDED = ("Makefile", "pyproject.toml", "constraints.txt", "environment.yml", "LICENSE", ".ci/setup.sh", "labkit")

ANSWER_TAGS = {"answer", "solution"}
KEPT_METADATA = {"tags", "jupyter"}
ANSWERED = re.compile(r"exercise (\d+\.\d+): (?:passed|not yet)")


def student(source_dir, target_dir):
    """Copies the notebooks NN_*.ipynb of one folder to another for students; returns the new paths.

    Outputs, execution counts and cells tagged `solution` or `answer` are left out; the folder of solutions and every other
    file stay behind. ValueError, with nothing written, where an exercise was worked on in the source.
    """
    source, target = Path(source_dir), Path(target_dir)
    if target.resolve() == source.resolve():
        raise ValueError("the students' notebooks need a folder of their own")
    paths = sorted(source.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise ValueError(f"{source.name} holds no notebooks")
    notebooks = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    for name, notebook in notebooks.items():
        refuse_answers(name, notebook)
    target.mkdir(parents=True, exist_ok=True)
    for name, notebook in notebooks.items():
        text = json.dumps(emptied(notebook), indent=1, ensure_ascii=False) + "\n"
        (target / name).write_text(text, encoding="utf-8")
    return [target / name for name in notebooks]


def refuse_answers(name, notebook):
    """ValueError where a stored verdict says that somebody answered an exercise in this file."""
    answered = sorted(set(ANSWERED.findall(json.dumps([cell.get("outputs", []) for cell in notebook["cells"]]))))
    if answered:
        numbers = ", ".join(answered)
        raise ValueError(
            f"exercise {numbers} is answered in {name}; restore it with `git checkout notebooks/{name}` before handing it out"
        )


def emptied(notebook):
    """The notebook as before its first run."""
    cells = [cell for cell in notebook["cells"] if not ANSWER_TAGS & set(cell["metadata"].get("tags", []))]
    return notebook | {"cells": [emptied_cell(cell) for cell in cells]}


def emptied_cell(cell):
    cell = cell | {"metadata": {key: value for key, value in cell["metadata"].items() if key in KEPT_METADATA}}
    return cell | {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else cell


def hand_out(target_dir, root=ROOT):
    """Fills a new folder with the students' notebooks and what they need to run; returns the notebooks' paths.

    ValueError where the folder exists already: what a teacher changed in it is not overwritten.
    """
    target = Path(target_dir)
    if target.exists():
        raise ValueError(f"{target} exists already; remove it, or name another folder: make student TO=other")
    paths = student(root / "notebooks", target / "notebooks")
    for name in NEEDED:
        source, copy = root / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, copy)
    return paths


def main(arguments):
    """The command line: `python -m labkit student [FOLDER]`."""
    parser = argparse.ArgumentParser(prog="python -m labkit student", description=__doc__)
    parser.add_argument("folder", nargs="?", default="student", help="a folder that does not exist yet (default: student)")
    folder = parser.parse_args(arguments).folder
    try:
        paths = hand_out(folder)
    except ValueError as error:
        print(f"student: {error}", file=sys.stderr)
        return 1
    print(f"{len(paths)} notebooks are in {folder}/notebooks; hand out the folder {folder}: `make lab` in it opens them")
    return 0
