"""Checks of the exercises, one module per notebook, and `compare`, which says why an answer is not the expected one.

A check `exercise_3_2(answer)` in nb03.py returns None where the answer is right, otherwise the cause in one sentence.
"""

import numbers

import numpy
import torch

from labkit.checks.causes import cause_of, factor

__all__ = ["compare", "factor"]
PRECISION = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def compare(answer, expected, *, world_size=None, tolerance=1e-6):
    """None where the answer is as expected, else the likely cause in one sentence.

    answer, expected  tensors, arrays, numbers, strings, or lists, tuples and dicts of them
    tolerance         largest error, relative to the largest expected value of a tensor, or to each number of a list;
                      whole numbers (int, or a tensor of them) must be exact
    world_size        N, so that factors of N are recognised
    """
    if answer is None:
        return "it is None: does the function end with `return`?"
    if isinstance(expected, dict):
        return compare_dicts(answer, expected, world_size=world_size, tolerance=tolerance)
    if isinstance(expected, (list, tuple)):
        return compare_rows(answer, expected, world_size=world_size, tolerance=tolerance)
    if isinstance(expected, bool) or not is_numeric(expected):
        return compare_objects(answer, expected)
    if not is_numeric(answer):
        return f"{described(answer)} where {described(expected)} is expected"
    ours, theirs = tensor_of(answer), tensor_of(expected)
    whole = not (theirs.is_floating_point() or theirs.is_complex())
    allowed = 0.0 if whole else tolerance * largest(theirs)
    return compare_shapes(ours, theirs, world_size) or compare_values(ours, theirs, allowed, world_size)


def compare_dicts(answer, expected, **options):
    """The names, then entry by entry."""
    if not isinstance(answer, dict):
        return f"{described(answer)} where {described(expected)} is expected"
    if missing := [key for key in expected if key not in answer]:
        return f"there is no entry {', '.join(map(repr, missing))}"
    if unknown := [key for key in answer if key not in expected]:
        return f"entry {', '.join(map(repr, unknown))} is not asked for"
    return first_cause({key: compare(answer[key], expected[key], **options) for key in expected})


def compare_rows(answer, expected, *, world_size, tolerance):
    """Lists and tuples: as one row of numbers where all entries are single numbers, else entry by entry."""
    if isinstance(answer, (torch.Tensor, numpy.ndarray)) and answer.ndim:
        answer = list(answer)
    if not isinstance(answer, (list, tuple)):
        return f"{described(answer)} where {described(expected)} is expected"
    if len(answer) != len(expected):
        return f"it has {len(answer)} entries where {len(expected)} are expected"
    if not all(map(is_single, [*answer, *expected])):
        options = {"world_size": world_size, "tolerance": tolerance}
        return first_cause({place: compare(*pair, **options) for place, pair in enumerate(zip(answer, expected))})
    ours, theirs = (torch.tensor([float(one) for one in row], dtype=torch.float64) for row in (answer, expected))
    allowed = [0.0 if isinstance(one, numbers.Integral) else tolerance * (abs(float(one)) or 1.0) for one in expected]
    return compare_values(ours, theirs, torch.tensor(allowed, dtype=torch.float64), world_size)


def first_cause(causes):
    """The first entry's cause with the entry's name, or the one that all entries share."""
    found = {place: cause for place, cause in causes.items() if cause}
    if not found:
        return None
    if len(found) == len(causes) > 1 and len(set(found.values())) == 1:
        return f"every entry: {next(iter(found.values()))}"
    place, cause = next(iter(found.items()))
    return f"entry {place!r}: {cause}"


def compare_objects(answer, expected):
    """What has no numbers in it, such as text: equal or not."""
    if isinstance(expected, bool) and is_single(answer):
        answer = bool(answer) if answer in (0, 1) else answer
    if isinstance(answer, type(expected)) and answer == expected:
        return None
    if type(answer) is not type(expected):
        return f"{described(answer)} where {described(expected)} is expected"
    if isinstance(expected, str) and answer.strip().lower() == expected.strip().lower():
        return f"{answer!r} differs in blanks or capitals only"
    return f"it is not {answer!r}"


def compare_shapes(ours, theirs, world_size):
    """None for equal shapes, else both, and what usually makes them differ."""
    one, other = list(ours.shape), list(theirs.shape)
    if one == other:
        return None
    shapes = f"shape {one} where {other or 'a single number'} is expected"
    if one == other[::-1]:
        return f"{shapes}: transposed?"
    if [size for size in one if size != 1] == [size for size in other if size != 1]:
        return f"{shapes}: a dim of size 1 too {'many' if len(one) > len(other) else 'few'}"
    dims = [dim for dim, sizes in enumerate(zip(one, other)) if sizes[0] != sizes[1]]
    if world_size and len(one) == len(other) and len(dims) == 1:
        if one[dims[0]] * world_size == other[dims[0]]:
            return f"{shapes}: one rank's shard along dim {dims[0]}, not gathered?"
        if one[dims[0]] == other[dims[0]] * world_size:
            return f"{shapes}: the shards of all {world_size} ranks along dim {dims[0]} where one belongs?"
    return shapes


def compare_values(ours, theirs, allowed, world_size):
    """None where no value is off by more than `allowed`; for equal shapes."""
    dtype, ours, theirs = ours.dtype, ours.double(), theirs.double()
    if not ours.isfinite().all() and theirs.isfinite().all():
        name = "NaN" if ours.isnan().any() else "inf"
        return f"{int((~ours.isfinite()).sum())} of {ours.numel()} values are {name}" if ours.numel() > 1 else f"it is {name}"
    error = torch.where(ours == theirs, 0.0, (ours - theirs).abs())
    if not (error > allowed).any():
        return None
    if error.max() <= PRECISION.get(dtype, 0.0) * largest(theirs):
        return f"right to the precision of {dtype}, which is not enough here: computed in a smaller dtype than asked for?"
    return cause_of(ours, theirs, allowed, world_size=world_size)


def is_numeric(value):
    return isinstance(value, (numbers.Real, torch.Tensor, numpy.ndarray, numpy.generic)) or is_grid(value)


def is_grid(value):
    """Whether nested lists hold numbers only, in rows of equal length."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    if all(isinstance(one, numbers.Real) for one in value):
        return True
    return all(is_grid(one) for one in value) and len({len(one) for one in value}) == 1


def is_single(value):
    """Whether it is one real number, also as a 0-dim tensor."""
    return isinstance(value, numbers.Real) or (isinstance(value, (torch.Tensor, numpy.generic)) and value.ndim == 0)


def tensor_of(value):
    """The numbers as a tensor on the CPU, with the dtype that they came in (Python's floats are float64)."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.as_tensor(numpy.asarray(value))


def largest(values):
    """The largest absolute value, or 1 where all are 0: what errors are relative to."""
    return (values.abs().max().item() if values.numel() else 0.0) or 1.0


def described(value):
    """What a value is, in words: "a tensor of shape [2, 3]", "a list of 4 entries", "text"."""
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)} entries"
    if isinstance(value, numbers.Real):
        return "a number"
    return "text" if isinstance(value, str) else f"a {type(value).__name__}"
