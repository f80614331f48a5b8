"""The command's table for people: one line a run, in markdown."""

HEAD = ("run", "step s", "80 % interval", "tokens/s", "MFU", "GiB", "measured s", "error", "GiB error")


def table(answers: list[dict]) -> str:
    """Returns a markdown table of the answers, and the notes of each row under it."""
    rows = [_cells(one) for one in answers]
    notes = [f"- {one['id']}: {note}" for one in answers for note in _notes(one)]
    return "\n".join([markdown(HEAD, rows), *(["", "Assumed and left out:", *notes] if notes else [])])


def markdown(head, rows) -> str:
    """Returns a markdown table, its columns padded so that it reads as text as well."""
    lines = [tuple(map(str, head)), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])


def _cells(one):
    if "unsupported" in one:
        return (one["id"], "unsupported", *[""] * (len(HEAD) - 2))
    low, high = one["interval"]
    measured, error = one.get("measured", {}), one.get("error", {})
    return (
        one["id"], f"{one['step_time_s']:.4g}", f"{low:.4g} … {high:.4g}", f"{one['tokens_per_s']:,.0f}", f"{one['mfu']:.1%}",
        f"{one['peak_mem_gb']:.1f}", f"{measured['step_time_s']:.4g}" if "step_time_s" in measured else "",
        _percent(error.get("step_time_s")), _percent(error.get("peak_mem_gb")),
    )  # fmt: skip


def _notes(one):
    if one.get("unsupported"):
        yield f"unsupported: {one['unsupported']}"
    if one["assumed"]:
        yield "assumed " + "; ".join(one["assumed"])
    if one.get("warning"):
        yield one["warning"]
    yield from one["messages"]


def _percent(value):
    return "" if value is None else f"{100 * value:+.1f} %"
