"""What a guess looks like in a notebook: a card with the question, and below it a row to answer in.

The row's widgets live only as long as the kernel, and JupyterLab says "model not found" where they were. So the card,
with the question and how to answer, is an output of its own, and once the learner has committed the row is replaced by
nothing: a notebook opened later shows question and prediction. The text forms never change, whatever was committed to:
nbval compares them, and neither HTML nor the widgets' ids.
"""

import html
import importlib.util

from labkit.live import Display

COLOUR = "#0072B2"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Card:
    """The places where a Guess is shown, kept up to date together; its widgets are made when first needed."""

    def __init__(self):
        self._places, self._cell, self._row = [], None, None

    def show(self, guess, cell):
        """Shows it below what the current cell shows already."""
        self._cell = cell
        self._places.append((Display(), Display()))
        self._publish(guess, *self._places[-1])

    def shown_in(self, cell):
        """Whether `cell` (None outside a kernel) was the last one that it was shown in."""
        return cell is not None and cell == self._cell

    def show_again(self, guess):
        """Brings every place up to date."""
        if self._row:
            self._row.refresh()
        for place in self._places:
            self._publish(guess, *place)

    def _publish(self, guess, question, row):
        question.publish({"text/plain": f"your prediction? {guess.question}", "text/html": card_html(guess)})
        row.publish({"text/plain": guess.how, "text/html": ""} | ({} if guess.note else self._widgets(guess)))

    def _widgets(self, guess):
        if importlib.util.find_spec("ipywidgets") is None:
            return {}
        self._row = self._row or Row(guess)
        return {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self._row.box.model_id}}


class Row:
    """A field or buttons for the answer, and a button that commits to it."""

    def __init__(self, guess):
        import ipywidgets

        self._guess = guess
        if guess.choices is None:
            self._field = ipywidgets.Text(placeholder="a number", layout={"width": "9em"})
        else:
            options = [(str(choice), choice) for choice in guess.choices]
            self._field = ipywidgets.ToggleButtons(options=options, value=None, style={"button_width": "auto"})
        self._button = ipywidgets.Button(description="commit", button_style="primary", layout={"width": "6em"})
        self._button.on_click(self._commit)
        self._said = ipywidgets.Label()
        parts = [self._field, ipywidgets.Label(guess.unit), self._button] if guess.unit else [self._field, self._button]
        self._parts = [*parts, self._said]
        self.box = ipywidgets.HBox(layout={"margin": "4px 0 4px 14px", "align_items": "center", "flex_flow": "row wrap"})
        self.refresh()

    def refresh(self):
        """Asks, or says what was committed to: a page that was loaded anew gets no other news of it."""
        self._said.value = self._guess.note
        self.box.children = [self._said] if self._guess.note else self._parts

    def _commit(self, _):
        try:
            if self._guess.choices is None:
                self._guess.commit_text(self._field.value)
            elif self._field.value is None:
                raise ValueError("choose one first")
            else:
                self._guess.commit(self._field.value)
        except ValueError as error:
            self._said.value = str(error)


def card_html(guess):
    note = html.escape(guess.note or "your prediction?")
    how = ".change() opens it again" if guess.note else f"answer below once this cell has run, or {guess.how}"
    hint = f'<div style="opacity:.6;font-size:90%">{html.escape(how)}</div>'
    card = f"<b>{note}</b> &nbsp;{html.escape(guess.question)}{hint}"
    return f'<div style="border-left:4px solid {COLOUR};padding:2px 10px">{card}</div>'
