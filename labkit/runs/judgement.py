"""`python -m labkit judge [--fit]`: the published runs against their predictions, by source, as a table in markdown."""

import argparse
import csv
import functools
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from labkit.runs import crossvalidation, fit, fitted, given, memory
from labkit.runs.constants import JUDGED
from labkit.runs.crossvalidation import Judged
from labkit.runs.tables import markdown

LEFT_OUT = Path(__file__).with_name("left_out.csv")
HEAD = ("source", "runs", "fitted", "row left out", "source left out", "software left out")


def main(arguments: list[str]) -> int:
    """The command line; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m labkit judge", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit and cross-validate again first (minutes), and store both")
    if parser.parse_args(arguments).fit:
        names, x, judged = crossvalidation.judge()
        store(judged)
        Path(fitted.__file__).write_text(as_module(names, x, crossvalidation.widths(judged)))
        print("stored; run `python -m labkit judge` to see the tables")
        return 0
    print(report(stored()))
    return 0


def report(judged: list[Judged]) -> str:
    """Returns the tables: errors of the step time by source, of the memory, and what the interval held for."""
    lines = [
        _line(source, [one for one in judged if one.source == source]) for source in dict.fromkeys(one.source for one in judged)
    ]
    total = ("all", len(judged), *(_both(errors) for errors in _columns(judged)))
    return "\n".join(
        [
            "Error of the step time in per cent: median / largest of a source; of all: median / 90th percentile.",
            "",
            markdown(HEAD, [*lines, total]),
            "",
            f"The interval holds for {covered(judged):.0%} of the rows left out.",
            _memory_line(),
        ]
    )


def covered(judged: list[Judged]) -> float:
    """Returns the share of rows within their interval when left out."""
    widths = [fitted.ONE_CARD if one.cards == 1 else fitted.SEVERAL_CARDS for one in judged]
    return float(np.mean([abs(one.row) <= width for one, width in zip(judged, widths)]))


@functools.cache  # every frame of a race shows it
def source_left_out() -> tuple[float, float]:
    """Returns the median and the 90th percentile of the errors of runs whose source was left out of the fit."""
    errors = np.abs(np.expm1([one.page for one in stored()]))
    return float(np.median(errors)), float(np.percentile(errors, 90))


def error_on_published_runs() -> str:
    """Returns how wrong the replay is, with fitted constants, about runs whose source took no part in the fit."""
    middle, nine_of_ten = source_left_out()
    return f"error on published runs: {middle:.1%} in the median, {nine_of_ten:.1%} in 9 of 10"


def memory_errors() -> dict[str, float]:
    """Returns {id: predicted peak ÷ measured - 1} of the rows that state a peak and are fitted or judged by their memory."""
    rows = [row for row in given.rows() if row.configuration and row.measured("peak_mem_gb")]
    return {row.id: memory.peak_gb(row.configuration) / row.measured("peak_mem_gb") - 1 for row in rows}


def _memory_line():
    errors = np.abs(list(memory_errors().values()))
    inside = int((errors <= 0.1).sum())
    return f"Peak memory is within 10 % in {inside} of {len(errors)} runs that state it, median {np.median(errors):.1%}."


def _columns(judged):
    return [np.array([getattr(one, kind) for one in judged]) for kind in ("fitted", "row", "page", "software")]


def _line(source, judged):
    return (source, len(judged), *(f"{_percent(errors, 50)} / {_percent(errors, 100)}" for errors in _columns(judged)))


def _both(errors):
    return f"{_percent(errors, 50)} / {_percent(errors, 90)}"


def _percent(errors, percentile):
    return f"{np.percentile(np.abs(np.expm1(errors)) * 100, percentile):.1f}"


def store(judged: list[Judged]):
    """Writes what cross-validation found beside the table of runs."""
    with open(LEFT_OUT, "w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Judged)], lineterminator="\n")
        writer.writeheader()
        for one in judged:
            writer.writerow({name: f"{value:.5f}" if isinstance(value, float) else value for name, value in asdict(one).items()})


def stored() -> list[Judged]:
    """Returns what cross-validation found when it was last run."""
    with open(LEFT_OUT, newline="") as file:
        return [Judged(**{one.name: _typed(one.type, row[one.name]) for one in fields(Judged)}) for row in csv.DictReader(file)]


def _typed(kind, text):
    return {str: str, int: int, float: float}[kind](text)


def as_module(names, x, widths) -> str:
    """Returns the text of fitted.py, each constant with its meaning."""
    chosen = fit.constants(names, x)
    lines = [f"    {name}={getattr(chosen, name):.4g},  # {meaning}" for name, (_, _, meaning) in JUDGED.items()]
    stacks = [f'        "{name}": {factor:.4g},' for name, factor in chosen.stacks.items()]
    return "\n".join(
        [
            '"""Fitted constants, written by `python -m labkit judge --fit`; where each of them started is in constants.py."""',
            "",
            "from labkit.runs.constants import Constants",
            "",
            "FITTED = Constants(",
            *lines,
            "    stacks={  # what is left of each software: its kernels' seconds ÷ those counted",
            *stacks,
            "    },",
            ")",
            "# Half-widths of the interval, of the logarithm of the step time.",
            *(f"{name} = {width:.3g}" for name, width in widths.items()),
            "",
        ]
    )
