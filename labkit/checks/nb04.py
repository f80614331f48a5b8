"""Checks of notebook 04, sharded data parallel: shards against one device, and what is whole, held and sent meanwhile."""

import math
import numbers

import torch

from labkit.checks import compare
from labkit.checks.sharded_mlp import LAYERS, mean_gradients, mlp_gradients_of, mlp_rank
from labkit.checks.sharded_ranks import on_ranks

STAGES, SIZES = (0, 1, 2, 3), (1, 2, 8, 64)
PARAMETERS = 1_000_000
RANKS, NUMBERS, STEPS = 3, 100, 3
PRECISION = 1e-6


def exercise_4_1(bytes_per_parameter):
    """All four stages on 1 to 64 ranks, exactly."""
    mistakes = {
        "that is float32 (4, 4 and 8); in mixed precision it is 2, 2 and 12": lambda s, n: kept(s, n, 4, 4, 8),
        "the float32 master is missing: the optimizer has 12 bytes per parameter, not 8": lambda s, n: kept(s, n, 2, 2, 8),
        "only the master is counted: Adam's two means are 8 bytes more": lambda s, n: kept(s, n, 2, 2, 4),
        "weights and gradients are 2 bytes each in bf16, not 4": lambda s, n: kept(s, n, 4, 4, 12),
        "stages are off by one: stage 0 shards nothing, stage 1 the optimizer": lambda s, n: kept(min(s + 1, 3), n),
        "stages 1 and 2 shard the wrong kind: first the optimizer's state, then the gradients": lambda s, n: (
            2 / (n if s > 2 else 1) + 2 / (n if s > 0 else 1) + 12 / (n if s > 1 else 1)
        ),
        "every stage shards everything: that is stage 3 alone": lambda s, n: kept(3 if s else 0, n),
        "stages are off by one: stage 1 shards the optimizer's state already": lambda s, n: kept(max(s - 1, 0), n),
        "stage 2 shards the gradients, too": lambda s, n: kept(1 if s == 2 else s, n),
        "stage 3 shards all: the weights, too": lambda s, n: kept(min(s, 2), n),
        "the gradients are missing: 2 bytes per parameter": lambda s, n: kept(s, n, gradient=0),
        "that is what all ranks hold together, not one": lambda s, n: n * kept(s, n),
        "that is on 8 ranks: divide by `world_size`": lambda s, n: kept(s, 8),
        "rounded to whole bytes: `/`, not `//`": lambda s, n: (
            2 // (n if s > 2 else 1) + 2 // (n if s > 1 else 1) + 12 // (n if s > 0 else 1)
        ),
        "rounded to whole bytes: no `int`": lambda s, n: int(kept(s, n)),
    }
    cases = [(stage, n) for stage in STAGES for n in SIZES]
    return judged(bytes_per_parameter, cases, kept, mistakes, "stage {} on {} ranks")


def kept(stage, world_size, weight=2, gradient=2, optimizer=12):
    """Bytes per parameter that a rank holds of ZeRO's stage 0 to 3 (Rajbhandari et al., "ZeRO", 2020, figure 1)."""
    first_sharded = ((weight, 3), (gradient, 2), (optimizer, 1))
    return sum(size / (world_size if stage >= first else 1) for size, first in first_sharded)


def exercise_4_4(bytes_sent):
    """All four stages on 1 to 64 ranks, with elements of 2 and 4 bytes, exactly."""
    mistakes = {
        "stage 3 gathers the weights twice, in forward and again in backward": lambda *at: sent(*at, times=(2, 2, 2, 2)),
        "stages 1 and 2 gather new weights *instead of* finished gradients: 2 in all": lambda *at: sent(*at, times=(2, 3, 3, 3)),
        "stages 1 and 2 send the same, new weights *instead of* finished gradients: 2": lambda *at: sent(*at, times=(2, 2, 3, 3)),
        "an all_reduce is a reduce_scatter and an all_gather: it counts twice": lambda *at: sent(*at, times=(1, 2, 2, 3)),
        "stages 0 to 2 send twice: a reduce_scatter and an all_gather": lambda *at: sent(*at, times=(1, 1, 1, 3)),
        "every stage both reduces and gathers: 2, and 3 in stage 3": lambda *at: sent(*at, times=(1, 1, 1, 2)),
        "stage 3 has no new weights to send after the update: 3 in all": lambda *at: sent(*at, times=(2, 2, 2, 4)),
        "a rank keeps its own part: only (N−1)/N of the bytes are sent": lambda *at: sent(*at, own_too=True),
        "these are the bytes of all ranks together, not of one": lambda *at: at[1] * sent(*at),
        "a rank sends (N−1)/N of the bytes, not 1/N": lambda *at: sent(*at, own_too=True) / at[1],
        "`element_bytes` is not used": lambda *at: sent(*at[:3], 2),
        "these are numbers, not bytes: times the size of an element": lambda *at: sent(*at[:3], 1),
    }
    cases = [(stage, n, PARAMETERS, size) for stage in STAGES for n in SIZES for size in (2, 4)]
    return judged(bytes_sent, cases, sent, mistakes, "stage {} on {} ranks, {:,} parameters of {} bytes")


def sent(stage, world_size, parameters, element_bytes, times=(2, 2, 2, 3), own_too=False):
    """Bytes that a rank sends per update, by the ring convention of nccl-tests (PERFORMANCE.md)."""
    return times[stage] * parameters * element_bytes * (1 if own_too else (world_size - 1) / world_size)


def judged(answer, cases, right, mistakes, text):
    """None where `answer` equals `right` in all cases; else the mistake that explains all results, or the first cause."""
    results = {case: answer(*case) for case in cases}
    causes = {case: compare(result, float(right(*case)), tolerance=1e-9) for case, result in results.items()}
    if not any(causes.values()):
        return None
    if all(isinstance(result, numbers.Real) for result in results.values()):
        for mistake, formula in mistakes.items():
            if all(math.isclose(result, formula(*case), rel_tol=1e-9) for case, result in results.items()):
                return mistake
    case, cause = next((case, cause) for case, cause in causes.items() if cause)
    return f"{text.format(*case)}: {cause}"


def exercise_4_2(zero1_step):
    """Three steps of three ranks with 100 weights, against Adam on one device; what Adam is given, first."""
    ranks = on_ranks(update_rank, zero1_step, world_size=RANKS)
    gradients = [mean_gradient(step) for step in range(STEPS)]
    weights, adam, numbers_per_rank = initial_weights(), Adam(), -(-NUMBERS // RANKS)
    for number, rank in enumerate(ranks):
        if len(rank["given"]) != STEPS:
            return f"`adam` was called {len(rank['given'])} times on rank {number} in {STEPS} steps: once a step"
        size = len(rank["given"][0])
        if size >= NUMBERS:
            return f"`adam` updates all {NUMBERS} weights on rank {number}: its state is that of a shard only"
        if size != numbers_per_rank:
            return f"`adam` got {size} numbers on rank {number}, where {numbers_per_rank} are a shard: P/{RANKS}, rounded up"
    if any(torch.isin(rank["given"][0].double(), initial_weights()).any() for rank in ranks):
        return "`adam` was given weights where the gradient belongs: `adam(shard, gradient)`"
    if all(torch.equal(rank["given"][0][:32], own_gradient(0, r).chunk(RANKS)[r][:32]) for r, rank in enumerate(ranks)):
        return "`adam` was given the rank's own gradient, not the mean over the ranks: reduce_scatter it"
    length = torch.cat([rank["given"][0] for rank in ranks]).norm()  # of whatever order: shards may be cut in many ways
    if cause := compare(length, gradients[0].norm(), world_size=RANKS, tolerance=PRECISION):
        return f"the length of the gradient that `adam` was given on all ranks: {cause}"
    for number, rank in enumerate(ranks):
        if other_shard(rank["updated"], rank["given"][0], gradients[0]):
            return f"`adam` got one shard of weights and the gradient of another on rank {number}: both are chunk {number}"
    for step, gradient in enumerate(gradients):
        before = weights.clone()
        adam(weights, gradient)
        for number, rank in enumerate(ranks):
            if cause := weights_cause(rank["weights"][step], weights, before, number, gradient):
                return f"after step {step + 1} on rank {number}: {cause}"
    return None


def other_shard(updated, given, gradient):
    """Whether Adam's first update of these weights was by the gradient of others; padding is left out."""
    same = updated.flatten()[:, None] == initial_weights()
    known, places = same.any(1), same.int().argmax(1)
    return bool(((given.flatten() - gradient[places]).abs() > PRECISION)[known].any())


def weights_cause(ours, theirs, before, rank, gradient):
    """Why a rank's weights are not those of one device after a step, or None."""
    wrong = (ours - theirs).abs() > PRECISION
    if torch.allclose(ours, gradient):
        return "the weights are the mean gradients now: gather the weights that `adam` has updated"
    if wrong.any() and torch.equal(ours, before):
        return "the weights are the old ones: copy what was gathered back into `weights`"
    shard = torch.arange(NUMBERS) // -(-NUMBERS // RANKS) == rank
    if wrong.any() and torch.equal(ours[~shard], before[~shard]) and not wrong[shard].any():
        return "only the rank's own shard is new: all_gather the shards"
    padding = -NUMBERS % RANKS
    if wrong.any() and (torch.allclose(ours[padding:], theirs[:-padding]) or torch.allclose(ours[:-padding], theirs[padding:])):
        return f"the weights lie {padding} places away from where they belong: padding was taken for weights"
    return compare(ours, theirs, world_size=RANKS, tolerance=PRECISION)


def update_rank(rank, zero1_step):
    """What each rank does: three steps; returns the weights after each, and what Adam was given."""
    weights, adam, after = initial_weights(), Adam(), []
    for step in range(STEPS):
        zero1_step(rank, weights, own_gradient(step, rank.rank), adam)
        if (weights.shape, weights.dtype) != ((NUMBERS,), torch.float64):
            now = f"{list(weights.shape)}, {weights.dtype}"
            raise ValueError(f"`weights` is {now} after a step, not {[NUMBERS]}, torch.float64: copy into it without the padding")
        after.append(weights.clone())
    return {"weights": after, "given": adam.given, "updated": adam.updated}


class Adam:
    """Adam without bias correction, in place; notes the gradients that it was given, and the weights of the first update."""

    def __init__(self):
        self.given, self.updated, self.state = [], None, None

    def __call__(self, weights, gradient):
        if weights.shape != gradient.shape:
            raise ValueError(f"adam got weights {list(weights.shape)} and gradients {list(gradient.shape)}; give it equal shapes")
        self.given.append(gradient.detach().clone())
        self.updated = weights.detach().clone() if self.updated is None else self.updated
        mean, square = self.state or (torch.zeros_like(gradient), torch.zeros_like(gradient))
        self.state = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        with torch.no_grad():
            weights -= 0.1 * self.state[0] / (self.state[1].sqrt() + 1e-8)


def initial_weights():
    return torch.randn(NUMBERS, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def own_gradient(step, rank):
    return torch.randn(NUMBERS, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + rank))


def mean_gradient(step):
    return torch.stack([own_gradient(step, rank) for rank in range(RANKS)]).mean(0)


def exercise_4_3(mlp_gradients):
    """Five layers on two ranks: what the layers were given, the gradients, and how many layers were whole at once."""
    ranks, right = on_ranks(mlp_rank, mlp_gradients, world_size=2), mean_gradients(2)
    for rank in ranks:
        if rank["given"]:
            return rank["given"]
    for number, rank in enumerate(ranks):
        own = [gradient.chunk(2)[number] for gradient in right]
        alone = [gradient.chunk(2)[number] for gradient in mlp_gradients_of(number)]
        if compare(rank["gradients"], alone, tolerance=PRECISION) is None:
            return f"the gradients on rank {number} are those of its own rows: reduce_scatter them"
        if compare(rank["gradients"], own[::-1], tolerance=PRECISION) is None:
            return "the gradients are in the order of backward: the last layer's first"
        if cause := compare(rank["gradients"], own, world_size=2, tolerance=PRECISION):
            if isinstance(rank["gradients"], (list, tuple)) and only_the_last(rank["gradients"], own):
                return "only the last layer's gradient is right: does the input's gradient go on to the layer before?"
            return f"the gradients on rank {number}: {cause}"
    if (most := max(rank["most"] for rank in ranks)) > 2:
        when = next(rank["when"] for rank in ranks if rank["most"] == most)
        return f"{most} of {LAYERS} layers are whole at once, in {when}; at most 2 may be: who still holds the weights?"
    if left := ranks[0]["left"]:
        return f"at the end {left} of {LAYERS} layers are still whole"
    return None


def only_the_last(gradients, own):
    """Whether of all layers' gradients only the last one is right."""
    right = [compare(*pair, tolerance=PRECISION) is None for pair in zip(gradients, own)]
    return len(gradients) == len(own) and right[-1] and not any(right[:-1])
