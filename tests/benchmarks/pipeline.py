"""Notebooks 05 and 06 on two stages: how much of the machine's limit pipelines reach, and what of the bubble was foreseen."""

import statistics
from functools import partial

from report import report

import labkit
from labkit.schedule import gpipe, interleaved, one_f_one_b

MICRO_BATCHES, STEPS = 8, 12


def main():
    pipelines, split = labkit.notebook.load("06_pipeline_parallel"), labkit.notebook.load("05_model_parallel")
    job = labkit.job(device="cpu", micro_batches=MICRO_BATCHES)
    strategies = {
        "model_parallel": split.model_parallel,
        "pipeline_parallel": pipelines.pipeline_parallel,
        "GPipe": partial(pipelines.pipeline_parallel, schedule=gpipe),
        "interleaved": partial(pipelines.pipeline_parallel, schedule=partial(interleaved, chunks=2)),
        "zero bubble": pipelines.zero_bubble_parallel,
        "torch_pipeline": pipelines.torch_pipeline,
    }
    race = labkit.scaling(strategies, world_sizes=(2,), repeats=15, job=job, device="cpu", live=False)
    goals = {"model_parallel": "goal speed-up 1.0 ± 0.1"}
    goals["pipeline_parallel"] = "goal share ≥ 0.80, and not below torch_pipeline"
    for name in race.names:
        print(f"  {name:<20} speed-up {race.speedup(name, 2)}, limit {race.limit(2)}, share {race.share(name, 2)}", end="")
        print(f"   {goals.get(name, '')}")
    rounds = race.rounds(2)
    report(
        "torch_pipeline ÷ pipeline_parallel", [one["torch_pipeline"] / one["pipeline_parallel"] for one in rounds], "≥ 1", " x"
    )
    report("measured bubble − simulated with the measured times", _unforeseen(pipelines, job), "within 0.05 of 0")


def _unforeseen(pipelines, job):
    """Per step but the first, the measured bubble less that of the same schedule with the step's own times."""
    run = labkit.train(
        partial(_together, pipelines.pipeline_parallel), world_size=2, steps=STEPS, job=job, device="cpu", live=False
    )
    plan, differences = one_f_one_b(2, MICRO_BATCHES), []
    for step in range(1, STEPS):
        timeline = run.timeline.only(step=step)
        times = [[_mean_s(timeline.only(rank=rank, kind=kind)) for rank in (0, 1)] for kind in ("forward", "backward")]
        differences.append(timeline.bubble - plan.simulate(*times).bubble)
    return differences


def _together(strategy, rank, job):
    step = strategy(rank, job)
    return lambda *batch: rank.barrier() or step(*batch)


def _mean_s(timeline):
    return statistics.mean(span.duration_s for span in timeline.spans)
