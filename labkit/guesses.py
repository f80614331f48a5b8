"""Predict, then reveal: `guess(name, question)` asks the learner for a number, or a choice, before a figure answers.

A notebook goes on without an answer. What was committed to is kept beside the notebook, for the next kernel too.
"""

import contextlib
import json
import math
import re
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from labkit import states
from labkit.exercises import current_cell
from labkit.guess_card import Card
from labkit.live import in_notebook

FILE = ".labkit-guesses.json"
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")

_committed = {}  # (folder, name, question) -> value: what this kernel knows, also where nothing can be stored


def guess(name, question, *, choices=None, unit=""):
    """Asks for a prediction, shows the question and returns a Guess; never waits for the answer.

    name     what the prediction is kept under, one per question and folder, such as "03 speed-up"
    choices  what to choose from, at least two; None: a number, in `unit`
    In a notebook the answer is typed or clicked; `.commit(value)` does the same anywhere.
    """
    if choices is not None:
        choices = tuple(choices)
        if len(choices) < 2 or len(set(map(str, choices))) < len(choices):
            raise ValueError(f"choices={choices!r}: give at least two that differ, or None to ask for a number")
    made = Guess(name, question, choices, unit, Path.cwd().resolve())
    made._recall()
    made._show()
    return made


@dataclass(frozen=True, eq=False, repr=False)
class Guess:
    """A question and, once the learner has committed to it, the prediction.

    .value is None until then; .text and .note say it in words, for people and for a figure.
    """

    name: str
    question: str
    choices: tuple | None
    unit: str
    folder: Path
    _card: Card = field(default_factory=Card)

    @property
    def _key(self):
        return self.folder, self.name, self.question

    @property
    def value(self):
        return _committed.get(self._key)

    @property
    def text(self):
        """The prediction with its unit, such as "1.8 ×"; "" before there is one."""
        if self.value is None:
            return ""
        value = str(self.value) if self.choices else f"{self.value:,.10g}"
        return f"{value} {self.unit}".rstrip()

    @property
    def note(self):
        """What a figure says of it, such as "your prediction: 1.8 ×"; "" before there is one."""
        return f"your prediction: {self.text}" if self.text else ""

    @property
    def how(self):
        """How to answer where nothing can be typed or clicked."""
        wanted = map(repr, self.choices) if self.choices else ["number"]
        return "commit to it with " + " or ".join(f".commit({answer})" for answer in wanted)

    def commit(self, value):
        """Fixes the prediction and returns this Guess; ValueError for what is no answer, and for a second, other one."""
        value = self._answer(value)
        if self.value not in (None, value):
            raise ValueError(f"you have committed to {self.text}; .change() opens the question again")
        _committed[self._key] = value
        self._keep({"question": self.question, "value": value if self.choices is None else str(value)})
        self._card.show_again(self)
        return self

    def change(self):
        """Takes the commitment back, so that another one can be made; returns this Guess."""
        _committed.pop(self._key, None)
        self._keep(None)
        self._card.show_again(self)
        return self

    def commit_text(self, text):
        """Commits to a number as a learner types it: "1.8", "1,8", "12,000" or "1.8 ×"."""
        text = text.strip().removesuffix(self.unit).strip()
        plain = text.replace(",", "" if THOUSANDS.fullmatch(text) else ".")
        try:
            number = float(plain)
        except ValueError:
            raise ValueError(f"{text!r} is not a number" if text else "type a number first") from None
        return self.commit(number)

    def __str__(self):
        return f"{self.note or 'your prediction?'}  {self.question}\n{'.change() opens it again' if self.note else self.how}"

    __repr__ = __str__

    def _ipython_display_(self):
        """Shows it as the value of a cell, unless it has been shown in that very cell."""
        if not self._card.shown_in(current_cell()):
            self._show()

    def _show(self):
        if in_notebook():
            self._card.show(self, current_cell())
        else:
            print(self)

    def _answer(self, value):
        if self.choices is not None:
            match = [choice for choice in self.choices if choice == value]
            if not match:
                raise ValueError(f"{value!r} is none of the choices; choose {' or '.join(map(repr, self.choices))}")
            return match[0]
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"{value!r} is not a number that can be drawn; commit to one such as 2 or 0.5")
        return float(value)

    def _recall(self):
        """Takes over what was committed to in an earlier kernel, if that was an answer to this very question."""
        entry = stored_in(self.folder).get(self.name)
        if self.value is None and isinstance(entry, dict) and entry.get("question") == self.question:
            kept = entry.get("value")
            by_text = {str(choice): choice for choice in self.choices or ()}
            with contextlib.suppress(ValueError):
                _committed[self._key] = self._answer(by_text.get(str(kept), kept))

    def _keep(self, entry):
        """Stores the entry in a notebook's folder, or takes it out; what can't be stored stays in this kernel."""
        if in_notebook() and states.are_kept():
            with contextlib.suppress(OSError), states.locked(self.folder):
                entries = {name: kept for name, kept in stored_in(self.folder).items() if name != self.name}
                states.replace(self.folder / FILE, entries | ({self.name: entry} if entry else {}))


def stored_in(folder):
    """Name -> entry from the file in `folder`; nothing from a file that is not as `Guess` writes it."""
    if not states.are_kept():
        return {}
    try:
        entries = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
