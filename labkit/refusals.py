"""Wrong requests for a job, each refused with the numbers and the remedy."""

import difflib
import math
from numbers import Integral

import torch

from labkit.initial import build_without_values, is_within

COUNTS = ("blocks", "d_model", "heads", "vocab_size", "seq_len", "batch_size", "micro_batches")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def refuse_unknown_fields(changes: dict, known: list[str]) -> None:
    for name in changes.keys() - set(known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(known)}"
        raise ValueError(f'a job has no "{name}"; {hint}')


def refuse_wrong_numbers(job) -> None:
    for name in COUNTS:
        if not is_count(getattr(job, name)):
            raise ValueError(f"{name}={getattr(job, name)!r} is not a whole number of at least 1")
    if job.d_model % job.heads:
        fitting = nearest_divisors(job.d_model, job.heads)
        raise ValueError(f"d_model {job.d_model} does not divide into {job.heads} heads; use {either(fitting)}")
    if job.batch_size % job.micro_batches:
        fitting = nearest_divisors(job.batch_size, job.micro_batches)
        raise ValueError(
            f"{job.batch_size} sequences do not divide into {job.micro_batches} micro-batches; use {either(fitting)}"
        )
    if job.vocab_size < job.text.least_vocab_size:
        raise ValueError(
            f"vocab_size {job.vocab_size} is too small: {job.text} has {job.text.least_vocab_size} token ids; "
            f"use at least {job.text.least_vocab_size}"
        )


def refuse_wrong_precision(job) -> None:
    if job.dtype not in DTYPES:
        raise ValueError(f"dtype={job.dtype!r} is not trained here; use {either(DTYPES)}")
    if job.master_weights and job.dtype != torch.bfloat16:
        raise ValueError(f"{job.dtype} parameters are their own master weights; use master_weights with torch.bfloat16")


def refuse_unknown_frozen(job) -> None:
    if not job.frozen:
        return
    names = [name for name, _ in build_without_values(**job.sizes).named_parameters()]
    for part in job.frozen:
        if not any(is_within(name, (part,)) for name in names):
            near = difflib.get_close_matches(part, names, n=1, cutoff=0)
            raise ValueError(f'the model has no part "{part}" to freeze; a parameter near to it is "{near[0]}"')


def is_count(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1


def divisors(number: int) -> list[int]:
    lower = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return lower + [number // n for n in reversed(lower) if n * n != number]


def nearest_divisors(number: int, wanted: int, most: int = 6) -> list[int]:
    return sorted(sorted(divisors(number), key=lambda n: abs(n - wanted))[:most])


def either(choices) -> str:
    """Join choices as a sentence does: "1, 2 or 4"."""
    *others, last = map(str, choices)
    return f"{', '.join(others)} or {last}" if others else last
