"""Memory of the fullest card: model states, activations kept for backward, logits and their copies, the allocator's reserve."""

from labkit.runs import kernels
from labkit.runs.configuration import Configuration
from labkit.runs.shares import BYTES, layers_of, stage_parameters, trained

GIB = 2**30
ADAPTER_BYTES = 14  # weight, gradient and both moments, the update's copies


def peak_bytes(run: Configuration) -> dict:
    """Returns {kind: bytes} of the fullest card: weights, gradients, optimizer state, activations, logits, other."""
    return max(stages_bytes(run), key=lambda kinds: sum(kinds.values()))


def stages_bytes(run: Configuration) -> list[dict]:
    """Returns {kind: bytes} of a card of each pipeline stage; the cards of one stage hold equally much."""
    return [_stage(run, stage) for stage in range(run.pp)]


def peak_gb(run: Configuration) -> float:
    """Returns the peak in GiB, which is what published rows call GB."""
    return sum(peak_bytes(run).values()) / GIB


def _stage(run, stage):
    """The peak is reached at the logits or in a block's backward, whichever needs more beside what is kept."""
    kinds = _states(run, stage)
    kinds["activations"] = _kept(run, stage)
    pieces = run.stack.live if run.stack.live_stays else run.stack.kept + run.stack.live
    live, logits = run.tokens * _width(run, pieces), 0.0
    if stage == run.pp - 1:
        logits = kernels.head_rows(run)[0] * run.model.vocab / run.tp * run.stack.logits_bytes
    together = run.stack.live_stays
    kinds["activations"] += live if together or live > logits else 0.0
    kinds["logits"] = logits if together or logits >= live else 0.0
    buckets = run.dp > 1 and not run.zero and not run.adapter_rank and not run.stack.direct
    if buckets and "weights" not in run.offload:
        kinds["gradients"] *= 2  # the buckets in which they are reduced
    kinds["other"] = run.stack.other_bytes + run.stack.reserve * run.tokens * run.model.hidden * 2
    return kinds


def _states(run, stage):
    stack, parameters = run.stack, stage_parameters(run, stage)
    blocks = run.model.block_parameters / run.tp
    count = sum(layers_of(run, stage, chunk) for chunk in range(run.chunks))
    outer = parameters - blocks * count
    per_weight = (
        0.53 if run.base == "nf4" else BYTES["float8"] if run.dtype == "float8" else 2 if run.adapter_rank else stack.weight_bytes
    )
    shards = run.dp if run.zero == 3 or run.shard_weights else 1
    held = count * blocks * per_weight / shards
    if run.streamed or "weights" in run.offload:
        held = 0.0
    if held == 0.0 or shards > 1:
        held += 2 * blocks * min(per_weight, 2)  # the layer at work and the next one
    outside = outer * max(2, per_weight) / (1 if stack.direct else shards)
    if "weights" in run.offload:
        outside = min(outside, run.model.embedding_parameters / run.tp * 2)
    mine = trained(run, stage)
    if run.adapter_rank:
        split = run.dp if run.zero == 3 else 1
        there = 0.3 if "weights" in run.offload else 1.0
        return {"weights": held + outside, "gradients": 0.0, "optimizer state": ADAPTER_BYTES * mine / split * there}
    gradients = mine * stack.gradient_bytes / (run.dp if run.zero >= 2 else 1)
    follow = not stack.direct and ("weights" in run.offload or "master" in run.offload and run.zero >= 2)
    if "gradients" in run.offload or follow:
        gradients = 2 * blocks * stack.gradient_bytes + outer * stack.gradient_bytes
    state = {"master": stack.master_bytes, "adam_m": stack.moment_bytes, "adam_v": stack.moment_bytes}
    if stack.master_is_weight and run.dtype != "float8":
        state["master"] = 0
    per_state = sum(size for name, size in state.items() if name not in run.offload)
    states = mine * per_state
    if run.dtype == "float8" and "master" not in run.offload:  # the tables outside the blocks are their own masters
        states -= outer * stack.master_bytes
    return {"weights": held + outside, "gradients": gradients, "optimizer state": states / (run.dp if run.zero else 1)}


def kept_bytes(run: Configuration) -> float:
    """Returns the bytes per token that one block keeps for its backward, its recomputed parts left out."""
    again = set().union(*(kernels.TAGS[one] for one in run.recompute)) if run.recompute else set()
    return _width(run, [piece for piece in run.stack.kept if piece[0] not in again])


def _width(run, pieces):
    widths = kernels.symbol_widths(run)
    return sum(widths[symbol] * nbytes for _, symbol, nbytes in pieces)


def _kept(run, stage):
    """What the micro-batches in flight keep: 1F1B holds min(m, p - stage), times what interleaving adds."""
    flight = min(run.micro_batches, run.pp - stage)
    if run.chunks > 1:
        flight *= 1 + (run.pp - 1) / (run.pp * run.chunks)
    count = sum(layers_of(run, stage, chunk) for chunk in range(run.chunks))
    checkpoint = run.stack.checkpoint_bytes * run.model.hidden if "block" in run.recompute else 0
    kept = kept_bytes(run) + checkpoint
    if "activations" in run.offload:
        kept = max(0, kept - 2 * run.model.hidden)
    return run.tokens * flight * count * kept


def room_bytes(run: Configuration) -> float:
    """Returns what the card has for what peak_bytes counts: all of its memory where context and libraries are counted."""
    card = run.machine.card
    return card.memory_bytes if run.stack.other_bytes else card.usable_bytes


def fits(run: Configuration) -> bool:
    """Whether the peak is within what the card has."""
    return sum(peak_bytes(run).values()) <= room_bytes(run)
