"""`python -m labkit predict FILE.csv [--json]`: every run of a table, predicted from its configuration alone."""

import argparse
import json
import sys

from labkit.runs import reader
from labkit.runs.estimate import predict_configuration
from labkit.runs.row import Row
from labkit.runs.tables import table

DIGITS = 5


def main(arguments: list[str]) -> int:
    """The command line; returns 0, or 2 after one sentence where the file is no table of runs."""
    parser = argparse.ArgumentParser(prog="python -m labkit predict", description=__doc__)
    parser.add_argument("file", help="a CSV file with columns such as model, seq_len, global_batch, layout, n_gpus, gpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    options = parser.parse_args(arguments)
    try:
        rows = reader.read_file(options.file)
    except OSError as error:
        return _refuse(f"{options.file} cannot be read: {error.strerror or error}")
    except ValueError as error:
        return _refuse(str(error))
    answers = map(answer, rows)
    if options.json:
        for one in answers:
            print(json.dumps(one, allow_nan=False), flush=True)
    else:
        print(table(list(answers)))
    return 0


def _refuse(sentence):
    print(f"predict: {sentence}", file=sys.stderr)
    return 2


def answer(row: Row) -> dict:
    """Returns what the command says of one row, ready for JSON; `interval` is that of step_time_s, for 80 % of runs."""
    said = {"id": row.id}
    estimate = None
    if row.configuration is not None:
        try:
            estimate = predict_configuration(row.configuration, assumptions=len(row.assumed))
        except (ValueError, ArithmeticError) as error:
            row.unsupported = str(error)
    if estimate is None:
        return said | {"unsupported": row.unsupported, "assumed": row.assumed, "messages": row.messages}
    low, high = estimate.interval
    said |= {name: _rounded(getattr(estimate, name)) for name in ("step_time_s", "tokens_per_s", "mfu")}
    said |= {"mfu_peak": estimate.mfu_peak, "peak_mem_gb": _rounded(estimate.peak_mem_gb), "assumed": row.assumed}
    said |= {"interval": [_rounded(low), _rounded(high)]}
    said |= {"warning": "; ".join(estimate.warnings) or None, "messages": row.messages, "stack": row.configuration.stack.name}
    said |= {"parts": {name: _rounded(value) for name, value in estimate.parts.items()}}
    return said | _compared(row, estimate)


def _compared(row, estimate):
    """Measured values of the row, and by which share of them the prediction is above."""
    measured = {
        "step_time_s": row.measured_step_s,
        "tokens_per_s": row.measured("tokens_per_s"),
        "peak_mem_gb": row.measured("peak_mem_gb"),
    }
    measured = {name: value for name, value in measured.items() if value}
    if not measured:
        return {}
    error = {name: _rounded(getattr(estimate, name) / value - 1) for name, value in measured.items()}
    return {"measured": {name: _rounded(value) for name, value in measured.items()}, "error": error}


def _rounded(value):
    return float(f"{value:.{DIGITS}g}")
