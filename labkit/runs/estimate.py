"""What a configuration would take: replay of its traces, few micro-batches standing for many, and an interval round it."""

from dataclasses import dataclass, field
from math import exp, hypot, sqrt

from labkit.replay import Replay, replay
from labkit.runs import memory
from labkit.runs.configuration import Configuration
from labkit.runs.constants import Constants
from labkit.runs.fitted import FITTED, ONE_CARD, SEVERAL_CARDS, UNKNOWN_SOFTWARE
from labkit.runs.folding import Folded
from labkit.runs.traces import traces
from labkit.trace_records import Collective, Copy, HostWork, Message

ASSUMED = 0.05  # half-width of the interval that one assumed setting alone is worth
CLIFF = (0.7, 1.3)  # communication ÷ computation, where a little more of one or the other shows in full


@dataclass(frozen=True)
class Estimate:
    """A prediction. Memory is that of the fullest card, in GiB.

    mfu             model FLOPs per second ÷ the peak that `mfu_peak` names
    interval        (low, high) of step_time_s, made to hold for at least 80 % of the rows that were left out of a fit
    parts           seconds of the busiest stage's step: "compute", "communicate" (alone), "exposed" (the card waits)
    warnings        what makes this prediction less sure, or the run impossible
    """

    step_time_s: float
    tokens_per_s: float
    mfu: float
    mfu_peak: str
    peak_mem_gb: float
    interval: tuple
    parts: dict = field(hash=False)
    memory: dict = field(hash=False)
    warnings: tuple = ()


def predict_configuration(run: Configuration, constants: Constants = FITTED, *, assumptions: int = 0) -> Estimate:
    """Returns the Estimate of a run, its interval wider for settings that were assumed; `timeline` shows how it comes about."""
    seconds = step_s(run, constants)
    parts = _parts(run, constants, seconds)
    held = memory.peak_bytes(run)
    ratio = parts["communicate"] / parts["compute"]
    low, high = _interval(run, ratio, constants, assumptions)
    share, peak = model_flops_share(run, seconds)
    return Estimate(
        step_time_s=seconds,
        tokens_per_s=run.tokens_per_step / seconds,
        mfu=share,
        mfu_peak=peak,
        peak_mem_gb=sum(held.values()) / memory.GIB,
        interval=(seconds * low, seconds * high),
        parts=parts,
        memory={kind: nbytes / memory.GIB for kind, nbytes in held.items()},
        warnings=tuple(_warnings(run, ratio, sum(held.values()))),
    )


def step_s(run: Configuration, constants: Constants = FITTED) -> float:
    """Returns seconds of one step.

    Micro-batches repeat: once all stages are at work, each further round of them takes the same time, so two short
    replays that differ by one round give those of many. A round is one micro-batch, or p where stages have chunks.
    """
    machine, count = Folded(run, constants), run.micro_batches
    few, more = _few(run)
    if count <= more:
        return constants.whole_step_s(replay(traces(run), machine, record=False).step_s)
    first, second = (replay(traces(run, n), machine, record=False).step_s for n in (few, more))
    return constants.whole_step_s(first + (count - few) / (more - few) * (second - first))


def kernels_s(run: Configuration, constants: Constants = FITTED) -> float:
    """Returns seconds of the kernels of the longest stage, waits left out: what most constants act on, without a replay."""
    machine, layers = Folded(run, constants), -(-run.model.layers // run.pp)
    seconds = {name: machine.part_s(name) for name in ("embedding", "block forward", "block backward", "head")}
    beat = layers * (seconds["block forward"] + seconds["block backward"]) + seconds["head"] + seconds["embedding"]
    return (run.micro_batches + run.pp - 1) * beat


def timeline(run: Configuration, constants: Constants = FITTED, *, micro_batches: int | None = None) -> Replay:
    """Returns the whole replay, one rank per pipeline stage: each stands for the equal cards of its stage."""
    return replay(traces(run, micro_batches), Folded(run, constants))


def _few(run):
    if run.pp == 1:
        return 2, 3
    return (2 * run.pp, 2 * run.pp + 1) if run.chunks == 1 else (2 * run.pp, 3 * run.pp)


def _parts(run, constants, seconds):
    machine, count, (few, more) = Folded(run, constants), run.micro_batches, _few(run)
    sizes = (count,) if count <= more else (few, more)
    loads = [[_loads(trace, machine) for trace in traces(run, size)] for size in sizes]
    stages = loads[0]
    if len(sizes) == 2:
        rate = (count - few) / (more - few)
        stages = [tuple(a + rate * (b - a) for a, b in zip(first, second)) for first, second in zip(*loads)]
    compute, communicate = max(stages, key=max)
    return {"compute": compute, "communicate": communicate, "exposed": max(0.0, seconds - compute)}


def _loads(trace, machine):
    """Seconds of a stage's kernels, and of its busiest link if it had nothing to wait for."""
    compute, links, known = 0.0, {}, {}
    for entry in trace.entries:
        if isinstance(entry, (Collective, Message, Copy, HostWork)):
            asked = _transfer(machine, trace.rank, entry, known)
            for resource, busy_s in asked.items():
                links[resource] = links.get(resource, 0.0) + busy_s
        elif hasattr(entry, "flops"):
            if entry not in known:
                known[entry] = machine.kernel_s(entry)
            compute += known[entry]
    return compute, max(links.values(), default=0.0)


def _transfer(machine, rank, entry, known):
    key = (type(entry), getattr(entry, "operation", getattr(entry, "direction", "")), getattr(entry, "peer", 0), _bytes(entry))
    if key not in known:
        if isinstance(entry, Collective):
            known[key] = machine.collective(entry.operation, entry.group, entry.payload_bytes).uses
        elif isinstance(entry, Message):
            ends = (rank, entry.peer) if entry.operation == "send" else (entry.peer, rank)
            known[key] = machine.message(*ends, entry.payload_bytes).uses
        elif isinstance(entry, Copy):
            known[key] = machine.copy(rank, entry.direction, entry.payload_bytes).uses
        else:
            known[key] = machine.host_work(rank, entry.moved_bytes).uses
    return known[key]


def _bytes(entry):
    return entry.moved_bytes if isinstance(entry, HostWork) else entry.payload_bytes


def _interval(run, ratio, constants, assumptions):
    """Wider on several cards, for software that no row of the fit has, for what was assumed, and near the cliff."""
    width = ONE_CARD if run.cards == 1 else SEVERAL_CARDS
    if run.stack.name not in constants.stacks:
        width = max(width, UNKNOWN_SOFTWARE)
    width = hypot(width, ASSUMED * sqrt(assumptions))
    if CLIFF[0] <= ratio <= CLIFF[1]:
        width *= 1.5
    return exp(-width), exp(width)


def _warnings(run, ratio, held):
    if CLIFF[0] <= ratio <= CLIFF[1]:
        yield f"near the communication cliff: communication is {ratio:.2f} of computation"
    card = run.machine.card
    room = memory.room_bytes(run)
    if held > room:
        surely = "does" if held > 1.15 * room else "may"
        yield f"{surely} not fit: {held / memory.GIB:.1f} GiB, where {card.name} has {room / memory.GIB:.1f} GiB for tensors"
    if run.dtype == "float8" and "float8" not in card.peak_flops_per_s:
        yield f"a {card.name} has no float8 products; they were counted as bfloat16"


def model_flops_share(run: Configuration, seconds: float) -> tuple[float, str]:
    """Returns MFU and the peak that it is of: 6 FLOPs a matmul parameter and token, 4 with a frozen base, causal attention."""
    model, card = run.model, run.machine.card
    per_weight = 4 if run.adapter_rank else 6
    attention = 3 * model.layers * model.attention_flops_per_token(run.seq_len, window=run.window)
    outer = per_weight * model.embedding_parameters + attention
    blocks = per_weight * (model.matmul_parameters - model.embedding_parameters)
    rest = run.dtype if run.dtype in card.peak_flops_per_s else "bfloat16"
    plain = "bfloat16" if rest == "float8" else rest
    ideal = (blocks / card.peak(rest) + outer / card.peak(plain)) * run.tokens_per_step / run.cards
    named = f"{card.name}, {plain} {card.peak(plain) / 1e12:.1f} TFLOP/s"
    if rest == "float8":
        named += f" for head and attention, float8 {card.peak(rest) / 1e12:.1f} for block matmuls"
    return ideal / seconds, named
