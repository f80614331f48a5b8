"""How far a learner is: the state of each exercise, kept in this kernel and beside the notebook."""

import contextlib
import fcntl
import html
import json
import os
import re
import time
from dataclasses import dataclass

FILE = ".labkit-progress.json"
OFF_VARIABLE = "LABKIT_STATES"
LOCK_WAIT_S = 1.0
HEADING = re.compile(r"^#{2,4} +Exercise +(\d+\.\d+)[^\w\n]*(.*)$", re.MULTILINE)
MARKS = {"passed": "✓", "not yet": "✗", "to do": "○", "blocked": "–"}
COLOURS = {"passed": "#009E73", "not yet": "#D55E00", "to do": "#7A869A", "blocked": "#CC79A7"}

_checked_here = {}  # folder -> exercise -> entry: what this kernel knows where nothing can be stored


@dataclass(frozen=True)
class Row:
    """One exercise of one notebook, its last state and, where it is not yet right, the cause."""

    notebook: str
    exercise: str
    title: str
    state: str
    message: str


@dataclass(frozen=True)
class Progress:
    """The states of all exercises; shows itself as a table."""

    rows: tuple[Row, ...]

    @property
    def states(self):
        return {row.exercise: row.state for row in self.rows}

    def __str__(self):
        if not self.rows:
            return "no exercises found"
        lines = [
            f"{row.notebook:24} {row.exercise:>5}  {MARKS[row.state]} {row.state:8} {row.title}".rstrip() for row in self.rows
        ]
        return "\n".join([*lines, self._total()])

    __repr__ = __str__

    def _repr_html_(self):
        if not self.rows:
            return f"<p>{self}</p>"
        cells = [[f'<td style="text-align:left">{cell}</td>' for cell in html_cells(row)] for row in self.rows]
        return "".join(["<table>", *(f"<tr>{''.join(row)}</tr>" for row in cells), f"</table><p>{self._total()}</p>"])

    def _total(self):
        passed = sum(row.state == "passed" for row in self.rows)
        return f"{passed} of {len(self.rows)} exercises passed"


def html_cells(row):
    """The cells of a row: notebook, exercise, title, state in its colour, cause."""
    state = f'<span style="color:{COLOURS[row.state]}">{MARKS[row.state]}</span> {row.state}'
    return [*map(html.escape, (row.notebook, row.exercise, row.title)), state, html.escape(row.message)]


def progress_in(folder):
    """The Progress of the notebooks in a folder; an exercise that was never checked is "to do"."""
    entries = entries_in(folder)
    rows = []
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        for exercise, title in headings(path):
            entry = entries.get(exercise, {"state": "to do", "message": ""})
            rows.append(Row(path.stem, exercise, title.strip(), entry["state"], entry["message"]))
    return Progress(tuple(rows))


def headings(path):
    """(number, title) of each exercise in a notebook, in order; none in a file that is no notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return HEADING.findall("\n".join(texts))


def record(exercise, state, message, *, folder, keep):
    """Remembers a state for this kernel and, with `keep`, beside the notebook; what can't be stored is not stored.

    "to do" says nothing about what was reached before, so it never replaces anything.
    """
    if state == "to do":
        return
    entry = {"state": state, "message": message, "time_s": time.time()}
    _checked_here.setdefault(folder.resolve(), {})[exercise] = entry
    if keep and are_kept():
        with contextlib.suppress(OSError), locked(folder):
            entries = stored_in(folder) | {exercise: entry}
            write(folder / FILE, entries)


def entries_in(folder):
    """Exercise -> entry, the later of what is stored and what this kernel has checked."""
    entries = stored_in(folder)
    for exercise, entry in _checked_here.get(folder.resolve(), {}).items():
        if exercise not in entries or entries[exercise]["time_s"] <= entry["time_s"]:
            entries[exercise] = entry
    return entries


def are_kept():
    """Whether anything is kept beside the notebook; LABKIT_STATES=off says that nobody works there, it is only run."""
    return os.environ.get(OFF_VARIABLE) != "off"


def stored_in(folder):
    """Exercise -> entry from the file in `folder`, without anything that is not as `record` writes it."""
    if not are_kept():
        return {}
    try:
        notebooks = json.loads((folder / FILE).read_text(encoding="utf-8"))
        entries = {exercise: entry for exercises in notebooks.values() for exercise, entry in exercises.items()}
        return {exercise: entry for exercise, entry in entries.items() if is_entry(entry)}
    except (OSError, ValueError, AttributeError):
        return {}


def is_entry(entry):
    kinds = {"state": str, "message": str, "time_s": (int, float)}
    return (
        isinstance(entry, dict) and entry.get("state") in MARKS and all(isinstance(entry.get(key), kinds[key]) for key in kinds)
    )


def write(path, entries):
    """Writes the file, grouped by notebook: {"03": {"3.2": {"state": ..., ...}}}."""
    notebooks = {}
    for exercise, entry in sorted(entries.items()):
        notebooks.setdefault(f"{int(exercise.partition('.')[0]):02}", {})[exercise] = entry
    replace(path, notebooks)


def replace(path, content):
    """Writes JSON, the whole file or nothing."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder):
    """Keeps other kernels from writing at the same moment; after a second, or where locks don't work, goes on without."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        stop = time.monotonic() + LOCK_WAIT_S
        while not lock(descriptor) and time.monotonic() < stop:
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor):
    """False where another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
