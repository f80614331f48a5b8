"""One row of a table of runs: its cells, what was made of them, and what was assumed."""

from dataclasses import dataclass, field

from labkit.runs import cells
from labkit.runs.configuration import Configuration


class Unsupported(ValueError):
    """No estimate is possible for this row; the message says why."""


@dataclass
class Row:
    """One row: its configuration, or the reason why there is none; `assumed` and `messages` say what was not read."""

    id: str
    cells: dict
    configuration: Configuration | None = None
    unsupported: str | None = None
    assumed: list = field(default_factory=list)
    messages: list = field(default_factory=list)

    def text(self, column: str) -> str:
        return str(self.cells.get(column) or "").strip()

    def measured(self, column: str) -> float | None:
        """A measured value of the row, None where it has none."""
        return cells.positive(self.text(column))

    @property
    def measured_step_s(self) -> float | None:
        """The row's step time, from its tokens per second where it states only those."""
        if self.measured("step_time_s"):
            return self.measured("step_time_s")
        rate = self.measured("tokens_per_s")
        return self.configuration.tokens_per_step / rate if rate and self.configuration else None

    def assume(self, what: str):
        self.assumed.append(what)
