"""The published runs that come with labkit: which of them are fitted, why others are not, and what a source is.

Table: published_runs.csv, runs on RTX 4090s as their authors published them; each row names its page in `source_url`.
"""

import re
from pathlib import Path

from labkit.runs import reader
from labkit.runs.fit import NOISY, USUAL, Point
from labkit.runs.row import Row

TABLE = Path(__file__).with_name("published_runs.csv")
NOT_FITTED = {  # {begin of the ids: why}
    "TYL-2.1": "the data loader was the limit",
    "TYL-2.2": "the data loader was the limit",
    "LF-4x-14B": "host state and DeepSpeed settings are not given",
    "LLMQ-README-4x": "its time is rounded",
    "RP-": "neither batch nor sequence is given",
    "LAM-": "sequence lengths are not given",
    "SG-": "no transformers",
    "DEV-": "the architecture is the author's own",
    "GALORE": "no time is given",
}


def rows() -> list[Row]:
    """Returns all rows of the table."""
    return reader.read_file(TABLE)


def why_not_fitted(row: Row) -> str | None:
    """Returns why a row is not fitted, None for one that is."""
    if row.configuration is None:
        return row.unsupported
    reasons = (reason for begin, reason in NOT_FITTED.items() if row.id.startswith(begin))
    return next(reasons, None if row.measured_step_s else "no time is given")


def points() -> list[Point]:
    """Returns the rows to fit; one that calls itself noisy or approximate counts less."""
    return [
        Point(row.id, row.configuration, row.measured_step_s, NOISY if re.search(r"noise|approx", row.text("notes")) else USUAL)
        for row in rows()
        if why_not_fitted(row) is None
    ]


def sources() -> dict[str, str]:
    """Returns {id: source}: the page that published a row, and the software where a page compares several."""
    return {row.id: _source(row) for row in rows() if row.configuration is not None}


def _source(row):
    address = re.sub(r" \"NVIDIA.*|^https?://(www\.)?(github\.com/)?|/blob/\w+|/logs/.*| \(.*|\.md$", "", row.text("source_url"))
    return f"{address.strip()[:44]}, {row.configuration.stack.name}"
