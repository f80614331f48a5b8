"""`check("3.2", answer)`: is an exercise solved, and if not, why not."""

import html
import importlib
import pkgutil
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from labkit import checks, states
from labkit.live import Display, in_notebook
from labkit.notebook import place
from labkit.stacks import is_library
from labkit.stubs import gap_in, is_stub

NUMBER = re.compile(r"(\d{1,2})\.(\d{1,2})")
CHECK_NAME = re.compile(r"exercise_(\d+)_(\d+)")
PLACE = re.compile(r"cell In\[\d+\], line \d+|[\w-]+\.ipynb, cell \d+, line \d+")
MESSAGE_CHARACTERS = 300


class Blocked(Exception):
    """Raised by a check that this machine cannot run; its text says what is needed ("needs 2 GPUs")."""


@dataclass(frozen=True)
class Verdict:
    """What a check found; true where the exercise is passed.

    .state is "to do", "not yet", "passed" or "blocked"; .message is the cause, empty where there is nothing to say.
    """

    exercise: str
    state: str
    message: str = ""
    _shown_in: object = field(default=None, repr=False, compare=False)

    def __bool__(self):
        return self.state == "passed"

    def __str__(self):
        return f"exercise {self.exercise}: {self.state}" + (f" — {self.message}" if self.message else "")

    __repr__ = __str__

    def _repr_html_(self):
        colour, message = states.COLOURS[self.state], re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self.message))
        title = f'<b style="color:{colour}">{states.MARKS[self.state]} {self.state}</b> &nbsp;exercise {self.exercise}'
        return f'<div style="border-left:4px solid {colour};padding:2px 10px">{title}{"<br>" + message if message else ""}</div>'

    def _ipython_display_(self):
        """Shows it as the value of a cell, unless check() has shown it in that very cell."""
        if self._shown_in is None or self._shown_in != current_cell():
            show(self)


def check(exercise, answer):
    """Judges an answer to exercise "3.2", shows the verdict and returns it; an answer never makes it raise.

    The verdict is remembered in this kernel and beside the notebook, for `labkit.notebook.progress()`.
    ValueError for a number that no exercise has.
    """
    exercise, judge = find_check(exercise)
    state, message = judged(judge, answer)
    verdict = Verdict(exercise, state, message, current_cell())
    states.record(exercise, state, message, folder=Path.cwd(), keep=in_notebook())
    show(verdict)
    return verdict


def show(verdict):
    """One small card in a notebook, one line elsewhere."""
    if in_notebook():
        Display().publish({"text/plain": str(verdict), "text/html": verdict._repr_html_()})
    else:
        print(verdict)


def judged(judge, answer):
    """(state, message) of an answer."""
    if is_stub(answer):
        return "to do", ""
    try:
        cause = judge(answer)
    except Blocked as reason:
        return "blocked", str(reason)
    except NotImplementedError:
        return "to do", ""
    except (Exception, SystemExit) as error:
        cause = told(error)
    if cause is None:
        return "passed", ""
    if gap := gap_in(answer):
        left = f"`{gap}` is still empty" if isinstance(gap, str) else f"a `...` is still there ({place(*gap)})"
        return "to do", f"{left}; so far: {cause}"
    return "not yet", cause


def told(error):
    """An error in one sentence, with the learner's line where it passed through one."""
    text = next(iter(str(error).splitlines()), "")[:MESSAGE_CHARACTERS]
    if getattr(error, "traceback", None):  # a RankError: its text says what happened, its traceback where
        places = PLACE.findall(error.traceback)
        return f"{text} ({places[-1]})" if places and places[-1] not in text else text
    name = "it called exit()" if isinstance(error, SystemExit) else f"it raised {type(error).__name__}"
    where = learners_place(error.__traceback__)
    return f"{name}{': ' + text if text else ''}{f' ({where})' if where else ''}"


def learners_place(traceback):
    """The place of the innermost call that is not library code, or None."""
    where = None
    while traceback:
        filename = traceback.tb_frame.f_code.co_filename
        where = where if is_library(filename) else place(filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return where


def find_check(exercise):
    """("3.2", the function exercise_3_2 of labkit.checks.nb03); ValueError naming the nearest number for an unknown one."""
    match = NUMBER.fullmatch(str(exercise))
    chapter, number = map(int, match.groups()) if match else (0, 0)
    name = f"labkit.checks.nb{chapter:02}"
    judge = None
    if match and importlib.util.find_spec(name):
        judge = getattr(importlib.import_module(name), f"exercise_{chapter}_{number}", None)
    if judge is None:
        known = sorted(known_exercises(), key=lambda other: (abs(other[0] - chapter), abs(other[1] - number), other))
        nearest = f"; the nearest one is {known[0][0]}.{known[0][1]}" if known else ""
        raise ValueError(f"there is no exercise {exercise!r}{nearest}")
    return f"{chapter}.{number}", judge


def known_exercises():
    """(chapter, number) of each check there is."""
    names = [module.name for module in pkgutil.iter_modules(checks.__path__) if re.fullmatch(r"nb\d\d", module.name)]
    functions = [function for name in names for function in vars(importlib.import_module(f"labkit.checks.{name}"))]
    return [tuple(map(int, match.groups())) for match in map(CHECK_NAME.fullmatch, functions) if match]


def current_cell():
    """What tells one execution of a cell from another; None outside a kernel."""
    if not in_notebook():
        return None
    return sys.modules["IPython"].get_ipython().get_parent().get("header", {}).get("msg_id")
