"""Why numbers are not the expected ones: what wrong results of a program for several ranks usually look like.

`ours` and `theirs` are float64 tensors of one shape (0-dim for a single number); `allowed` is the error that passes, a
tensor where each value has its own; it is exceeded somewhere. Each cause returns a sentence, or None where it does not fit.
"""

import math

import torch

GIB = 2**30 / 10**9
UNITS = {
    100: "100: percent where a fraction belongs?",
    1 / 100: "1/100: a fraction where percent belong?",
    8: "8: bits instead of bytes?",
    1 / 8: "1/8: bytes instead of bits?",
    1000: "1000: a prefix (k, M, G) missed?",
    1 / 1000: "1/1000: a prefix (k, M, G) too many?",
    1024: "1024: a prefix (Ki, Mi, Gi) missed?",
    1 / 1024: "1/1024: a prefix (Ki, Mi, Gi) too many?",
    GIB: "1.074: GB (10⁹ bytes) and GiB (2³⁰ bytes) exchanged?",
    1 / GIB: "0.931: GB (10⁹ bytes) and GiB (2³⁰ bytes) exchanged?",
}
SAME_FACTOR = 1e-4


def cause_of(ours, theirs, allowed, *, world_size=None):
    """The first cause that fits, from the most telling to the one that always does."""
    scale = theirs.abs() if isinstance(allowed, torch.Tensor) else theirs.abs().max()
    ways = (zeros(ours, theirs), scaled(ours, theirs, scale, world_size), moved(ours, theirs, allowed))
    return next(filter(None, ways), None) or reordered(ours, theirs, allowed) or partly_wrong(ours, theirs, allowed)


def factor(ours, theirs, *, scale=None):
    """The r in ours = r · theirs, or None where no single factor makes them equal (to 1e-4 of `scale`, the largest value)."""
    size = theirs.square().sum().item()
    if not size or not ours.count_nonzero():
        return None
    r = (ours * theirs).sum().item() / size
    scale = theirs.abs().max() if scale is None else scale
    return r if ((ours - r * theirs).abs() <= SAME_FACTOR * abs(r) * scale).all() else None


def zeros(ours, theirs):
    if ours.count_nonzero() or not theirs.count_nonzero():
        return None
    return "it is 0" if ours.ndim == 0 else "all values are 0: was the result written, or received?"


def scaled(ours, theirs, scale, world_size):
    """One factor for all values; of a single number only a factor that means something."""
    r = factor(ours, theirs, scale=scale)
    if r is None:
        return None
    if math.isclose(r, -1, rel_tol=SAME_FACTOR):
        return "the sign is flipped"
    for known, meaning in (factors_of(world_size) | UNITS).items():
        if math.isclose(r, known, rel_tol=SAME_FACTOR):
            return f"off by the factor {meaning}"
    for size, text in ((abs(r), "{}"), (1 / abs(r), "1/{}")):
        if 2 <= round(size) <= 64 and math.isclose(size, round(size), rel_tol=SAME_FACTOR):
            return f"off by the factor {'−' if r < 0 else ''}{text.format(round(size))}"
    return f"off by the factor {r:.4g}" if theirs.count_nonzero() > 1 else None


def factors_of(n):
    """The factors that `n` ranks bring in, each with its usual reason."""
    if not n or n < 2:
        return {}
    return {
        (n - 1) / n: f"{n - 1}/{n} = (N−1)/N: the rank's own part left out?",
        n / (n - 1): f"{n}/{n - 1} = N/(N−1): the rank's own part counted too?",
        n**2: f"{n**2} = N²: a sum where a mean belongs, twice?",
        1 / n**2: f"1/{n**2} = 1/N²: divided by N twice?",
        # Last, so that they win for N = 2, where (N−1)/N is 1/N.
        n: f"{n} = N: a sum where a mean belongs?",
        1 / n: f"1/{n} = 1/N: a mean where a sum belongs, or divided by N twice?",
    }


def moved(ours, theirs, allowed):
    """One constant added to all values; of a single number only 1, a miscount."""
    by = (ours - theirs).mean().item()
    more = "large" if by > 0 else "small"
    if ((ours - theirs - by).abs() > allowed + 1e-9 * abs(by)).any():
        return None
    if ours.numel() > 1:
        return f"every value is {abs(by):.4g} too {more}"
    return f"it is 1 too {more}: off by one?" if abs(by) == 1 and theirs == theirs.round() else None


def reordered(ours, theirs, allowed):
    """The right values in other places."""

    def same(one):
        return one.shape == theirs.shape and bool(((one - theirs).abs() <= allowed).all())

    if ours.numel() < 2:
        return None
    if ours.ndim == 2 and same(ours.T):
        return "transposed?"
    if same(ours.flip(0)):
        return "the right values along dim 0, in reversed order"
    for by in range(1, min(len(ours), 65)):
        if same(ours.roll(-by, 0)):
            back = len(ours) - by
            steps = f"{by} further on" if by <= back else f"{back} further back"
            return f"the right values along dim 0, {steps} than they belong: another rank's part?"
    if same(ours.flatten().sort().values[theirs.flatten().argsort().argsort()].view_as(theirs)):
        return "the right values, in another order"
    return None


def partly_wrong(ours, theirs, allowed):
    """How many values are wrong, and where: which chunk, or the largest error."""
    wrong = ((ours - theirs).abs() > allowed).reshape(len(ours) if ours.ndim else 1, -1)
    rows = wrong.any(1).nonzero().flatten().tolist()
    total = len(wrong)
    if ours.ndim == 0 or ours.numel() == 1:
        return one_number(ours.item(), theirs.item())
    if len(rows) < total and rows[-1] - rows[0] + 1 == len(rows):
        if rows[-1] == total - 1:
            return f"only the last {len(rows)} of {total} along dim 0 are wrong: an uneven last chunk?"
        if rows[0] == 0:
            return f"only the first {len(rows)} of {total} along dim 0 are wrong"
    error = (ours - theirs).abs()
    place = [int(one) for one in torch.unravel_index(error.argmax(), ours.shape)]
    return f"{int(wrong.sum())} of {ours.numel()} values are wrong; the largest error is {error.max():.2g}, at {place}"


def one_number(ours, theirs):
    more = "large" if ours > theirs else "small"
    if not theirs:
        return f"it is too {more}"
    if not 0.5 <= ours / theirs <= 2:
        return f"it is {ours / theirs:.2g} times the right value"
    return f"it is {100 * abs(ours / theirs - 1):.2g} % too {more}"
