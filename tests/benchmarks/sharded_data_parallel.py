"""Notebook 04 on two ranks: the sharded strategies against DDP in the same run, and against PyTorch's own."""

from report import report

import labkit

GOALS = {"zero1": "≥ 0.90", "zero3": "≥ 0.80"}


def main():
    lesson = labkit.notebook.load("04_sharded_data_parallel")
    strategies = [labkit.notebook.load("03_data_parallel").torch_ddp, lesson.zero1, lesson.zero2, lesson.zero3]
    strategies += [lesson.torch_fsdp, lesson.torch_zero1]
    race = labkit.scaling(strategies, world_sizes=(2,), repeats=15, job=labkit.job(device="cpu"), device="cpu", live=False)
    rounds = race.rounds(2)
    for name in race.names[1:]:
        report(f"torch_ddp ÷ {name}", [one["torch_ddp"] / one[name] for one in rounds], GOALS.get(name, "none"), " x")
    report("torch_fsdp ÷ zero3", [one["torch_fsdp"] / one["zero3"] for one in rounds], "≥ 1", " x")
