"""Reads tables of published runs, as people wrote them, into rows with a configuration each."""

import csv
import io
import re

from labkit.runs import settings
from labkit.runs.row import Row

COLUMNS = """id source_url verified model params layers hidden heads vocab seq_len global_batch micro_batch precision layout
    n_gpus gpu interconnect tokens_per_s step_time_s mfu peak_mem_gb notes""".split()


def read_file(path) -> list[Row]:
    """Returns the rows of a file; a ValueError in one sentence where it is no such table."""
    with open(path, "rb") as file:
        data = file.read()
    if not data.strip():
        raise ValueError(f"{path} is empty; it needs a header line with columns such as {', '.join(COLUMNS[3:12])}")
    if b"\0" in data[:4096]:
        raise ValueError(f"{path} is not a CSV file: it holds binary data")
    return read_text(data.decode("utf-8-sig", errors="replace"), name=str(path))


def read_text(text: str, *, name: str = "the text") -> list[Row]:
    """Returns the rows of a table; a ValueError where its first line names none of the columns."""
    csv.field_size_limit(10**7)
    first = text.lstrip().split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    lines = list(csv.reader(io.StringIO(text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")), delimiter=delimiter))
    lines = [line for line in lines if any(cell.strip() for cell in line)]
    header = [_column(cell) for cell in lines[0]] if lines else []
    if not {"model", "params", "layers", "id"} & set(header):
        raise ValueError(f"{name} is no table of runs: its first line names none of model, params, layers, id")
    if len(lines) == 1:
        raise ValueError(f"{name} has a header and no runs under it")
    return [_row(header, line, number) for number, line in enumerate(lines[1:], start=1)]


def _column(cell):
    return re.sub(r"\W+", "_", cell.strip().lower()).strip("_")


def _row(header, line, number):
    values = dict(zip(header, line))
    row = Row(id=(values.get("id") or "").strip() or f"row {number}", cells=values)
    unknown = [name or "(no name)" for name in header if name not in COLUMNS]
    if unknown:
        row.messages.append(f"unknown columns were left out: {', '.join(unknown)}")
    if len(line) != len(header):
        row.messages.append(f"{len(line)} cells under {len(header)} columns; cells were taken from the left")
    try:
        row.configuration = settings.configuration(row)
    except ValueError as error:
        row.unsupported = str(error)
    return row
