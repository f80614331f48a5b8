"""The virtual machine held against the real one: this machine fitted on one job, other jobs and strategies predicted."""

import statistics

import labkit
from labkit import hardware
from labkit.prediction import predict
from labkit.results import BASELINE, LIMIT
from labkit.training import one_device

FITTED = {"device": "cpu", "seq_len": 128}
JOBS = {
    "the fitted job": {},
    "T 64": {"seq_len": 64},
    "T 256": {"seq_len": 256},
    "d_model 128": {"d_model": 128},
    "d_model 512, T 64": {"d_model": 512, "seq_len": 64},
}
STRATEGIES = {
    "03": ("data_parallel", "flat", "torch_ddp"),
    "04": ("zero1", "zero2", "zero3", "torch_fsdp"),
    "05": ("model_parallel",),
    "06": ("pipeline_parallel", "zero_bubble_parallel"),
    "07": ("tensor_parallel",),
}
REPEATS = 5


def main():
    strategies = {}
    for number, names in STRATEGIES.items():
        notebook = labkit.notebook.load(number)
        strategies |= {name: getattr(notebook, name) for name in names}
    machines, errors = None, {name: [] for name in (BASELINE, *strategies)}
    for title, changes in JOBS.items():
        job = labkit.job(**FITTED | changes)
        print(f"  {title}: {job}", flush=True)
        race = labkit.scaling(strategies, world_sizes=2, repeats=REPEATS, job=job, device="cpu", live=False)
        measured = {name: statistics.median(one[name] for one in race.rounds(2)) for name in errors}
        machines = machines or _fitted(job, measured[BASELINE], statistics.median(one[LIMIT] for one in race.rounds(2)))
        for name, seconds in measured.items():
            strategy, ranks = (one_device, 1) if name == BASELINE else (strategies[name], 2)
            error = _compare(name, strategy, ranks, job, machines[ranks], seconds)
            if changes or name != BASELINE:
                errors[name].append(abs(error))
    _conclude(errors)


def _compare(name, strategy, ranks, job, machine, seconds):
    foreseen = predict(strategy, world_size=ranks, on=machine, job=job).step_s
    error = foreseen / seconds - 1
    print(f"    {name:<22} measured {1e3 * seconds:7.1f} ms, predicted {1e3 * foreseen:7.1f} ms, error {error:+.0%}", flush=True)
    return error


def _fitted(job, alone_s, both_s):
    """{1: this machine where one core computes, 2: where two compute at once}, each by a step of the fitted job."""
    return {1: _scaled(job, alone_s, "one core"), 2: _scaled(job.replace(batch_size=job.batch_size // 2), both_s, "two cores")}


def _scaled(job, seconds, which):
    """This machine with rates as much higher or lower as this one-device step says."""
    machine = hardware.this_machine()
    card = machine.card
    factor = predict(one_device, world_size=1, on=machine, job=job).step_s / seconds
    print(f"  {which}: this_machine() alone predicts {factor:.2f} times the step on the fitted job; its rates are scaled by that")
    return machine.with_(
        peak_flops_per_s={dtype: peak * factor for dtype, peak in card.peak_flops_per_s.items()},
        bytes_per_s=card.bytes_per_s * factor,
        launch_s=card.launch_s / factor,
        source=hardware.Source("fitted", "one device's step on the fitted job"),
    )


def _conclude(errors):
    for name, values in errors.items():
        print(f"  {name:<22} median error {statistics.median(values):.0%}, largest {max(values):.0%}")
    every = [value for values in errors.values() for value in values]
    tenth = statistics.quantiles(every, n=10)[-1]
    print(f"  {len(every)} predictions: median error {statistics.median(every):.0%} (goal ≤ 15 %), 90th percentile {tenth:.0%}")
