"""Numbers and settings out of cells that people wrote: "about 28", "128 (memory)", "dp=2(DDP);offload=master,adam_m"."""

import math
import re

_NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_UNIT = re.compile(r"\s*([kKMmBbGT])(?![a-zA-Z])")
_UNITS = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "b": 1e9, "B": 1e9, "G": 1e9, "T": 1e12}
_MISSING = re.compile(r"\b(not|none|unknown|n/?a|missing|tbd|see)\b|^[\s?-]*$", re.IGNORECASE)


def number(text) -> float | None:
    """The leading number of a cell, thousands and units (k, M, B) understood; None where there is none or it isn't finite."""
    found = _NUMBER.search(str(text or "")[:300])
    if not found:
        return None
    unit = _UNIT.match(str(text)[:300], found.end())
    value = float(found.group().replace(",", "")) * (_UNITS[unit.group(1)] if unit else 1)
    return value if math.isfinite(value) else None


def stated(text) -> float | None:
    """The cell's number where it is stated: "not stated (12 default)" and "see paper, 3" have none."""
    return None if _MISSING.search(str(text or "")) else number(text)


def positive(text) -> float | None:
    """A stated number above 0; None otherwise."""
    value = stated(text)
    return value if value and value > 0 else None


def settings(text) -> dict:
    """{key: value} of a layout cell: "tp=1; zero=3(FSDP), overlap" is {"tp": "1", "zero": "3(FSDP)", "overlap": ""}.

    A comma or blank ends a value only where a new key or nothing follows: "offload=master,adam_m" is one value.
    """
    found = {}
    for part in re.split(r"[;|\n]", str(text or "")[:2000]):
        pieces = re.split(r"(?:^|[,\s])\s*([A-Za-z_][\w-]*)\s*[=:]\s*", part)
        for flag in filter(None, (piece.strip() for piece in re.split(r",", pieces[0]))):
            found.setdefault(flag.lower(), "")
        for key, value in zip(pieces[1::2], pieces[2::2]):
            found[key.lower()] = value.strip(" ,")
    return found


def words(text) -> tuple:
    """The words of a list in a cell, in lower case, brackets' contents last: "optimizer+params(cpu)" has three."""
    return tuple(re.findall(r"[a-z][a-z0-9_]*(?: weights)?", str(text or "").lower()))
