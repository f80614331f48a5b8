"""The predicted lines of a race: what its strategies would do on 1 to 8 RTX 4090s, each as a speed-up or as tokens/s."""

from dataclasses import dataclass, field

from labkit import jobs
from labkit.hardware import RTX4090_SERVER
from labkit.prediction import splits_activations
from labkit.replay import Deadlock, replay
from labkit.trace import NotTraceable
from labkit.traced import traced_several
from labkit.training import one_device

MACHINE = RTX4090_SERVER
WORLD_SIZES = (1, 2, 4, 8)
SECONDS = 8  # of processor time, after which no trace is begun: a race must not wait long for its prediction


@dataclass(frozen=True)
class Forecast:
    """What strategies would do on MACHINE; where the strategy refuses a number of ranks there is no value.

    job           what is trained there, the one on one card
    speedups      {name: {number of ranks: one card's step ÷ this one's; for weak scaling times that number}}
    tokens_per_s  {name: {number of ranks: tokens of the global batch per second}}
    reasons       {name: why there is no line}
    unvalidated   names of those of whose kind nobody has published a run on this card
    """

    job: jobs.Job
    speedups: dict = field(default_factory=dict, hash=False)
    tokens_per_s: dict = field(default_factory=dict, hash=False)
    reasons: dict = field(default_factory=dict, hash=False)
    unvalidated: set = field(default_factory=set, hash=False)

    @property
    def badge(self):
        return f"predicted for {max(WORLD_SIZES)} {MACHINE.card.name}"


def forecast(strategies, *, batch="global"):
    """Returns the Forecast of {name: strategy}; `batch` as in `scaling`. Whatever goes wrong becomes a reason."""
    job = jobs.job(device="cuda")
    made = Forecast(job)
    try:
        _fill(made, strategies, batch)
    except Exception as error:  # a race must not fail for its prediction
        made.reasons.update({name: f"no prediction: {error}" for name in strategies if name not in made.speedups})
    return made


def _fill(made, strategies, batch):
    wide = batch == "per_rank"
    alone, found = _traced(made.job, strategies, wide)
    if isinstance(alone, Exception):
        raise alone
    alone_s = replay(alone, MACHINE, record=False).step_s
    for name, traces in found.items():
        steps_s = {n: _step_s(traces[n]) for n in sorted(traces)}
        times = {n: step_s for n, step_s in steps_s.items() if isinstance(step_s, float)}
        if not times:
            made.reasons[name] = _reason(list(steps_s.values()))
            continue
        made.speedups[name] = {1: 1.0} | {n: (n if wide else 1) * alone_s / step_s for n, step_s in times.items()}
        if any(splits_activations(trace, made.job) for n in times for trace in traces[n]):
            made.unvalidated.add(name)
        rates = {n: made.job.tokens_per_step * speedup / alone_s for n, speedup in made.speedups[name].items()}
        made.tokens_per_s[name] = rates


def _traced(job, strategies, wide):
    """(traces of one device, {name: {world size: traces or exception}}).

    Where all ranks of the largest size do the same, those of a smaller one that divides the batch do so too.
    """
    *smaller, largest = WORLD_SIZES[1:]

    def request(name, n):
        return strategies[name], n, job.replace(batch_size=n * job.batch_size) if wide else job

    alone, *found = traced_several([(one_device, 1, job), *(request(name, largest) for name in strategies)], seconds=SECONDS)
    traces = {name: {largest: one} for name, one in zip(strategies, found, strict=True)}
    for symmetric in (True, False):
        mine = [(name, n) for name in strategies for n in smaller if _is_symmetric(traces[name][largest]) == symmetric]
        found = traced_several([request(*one) for one in mine], seconds=SECONDS, symmetric=symmetric)
        for (name, n), one in zip(mine, found, strict=True):
            traces[name][n] = one
    return alone, traces


def _is_symmetric(traces):
    return not isinstance(traces, Exception) and all(one.entries is traces[0].entries for one in traces)


def _step_s(traces):
    """Seconds of a step, or the exception that says why there are none."""
    if isinstance(traces, Exception):
        return traces
    try:
        return replay(traces, MACHINE, record=False).step_s
    except Deadlock as error:
        return error


def _reason(errors):
    """Why a strategy has no line, in few words."""
    for error in errors:
        if isinstance(error, NotTraceable):
            return f"not traceable: {error.reason}"
        if isinstance(error, Deadlock):
            return f"deadlock: {error}"
    return f"no prediction: {errors[0]}"
