"""What the doctor found: one finding a question, each question with a time limit."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

FINE, LOOK, BROKEN = "fine", "look", "broken"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report: `state` is "fine", "look" (works, but) or "broken"; `remedy` says what to do."""

    state: str
    found: str
    remedy: str = ""
    name: str = ""

    def line(self, width: int) -> str:
        """The finding as one line, its name padded to `width`."""
        text = f"{self.state:<6}  {self.name:<{width}}  {self.found}" + (f"  ->  {self.remedy}" if self.remedy else "")
        return " ".join(text.splitlines())


def fine(found: str) -> Finding:
    return Finding(FINE, found)


def look(found: str, remedy: str) -> Finding:
    return Finding(LOOK, found, remedy)


def broken(found: str, remedy: str) -> Finding:
    return Finding(BROKEN, found, remedy)


class Question:
    """Asks `ask() -> Finding` in a thread of its own from now on: one that never returns holds nobody up."""

    def __init__(self, name: str, ask: Callable[[], Finding], limit_s: float):
        self.name, self.limit_s, self._ask = name, limit_s, ask
        self._deadline, self._finding = time.monotonic() + limit_s, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finding(self) -> Finding:
        """The answer, waited for until the limit is over; an exception or no answer in time is "broken"."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        late = broken(f"no answer within {self.limit_s:g} s", "try again when the machine is less busy")
        return replace(self._finding or late, name=self.name)

    def _run(self):
        try:
            self._finding = self._ask()
        except Exception as error:
            self._finding = broken(f"{type(error).__name__}: {error}", "the check itself failed; please report it")
