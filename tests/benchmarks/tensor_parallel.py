"""Notebook 07 on two ranks: how much of the machine's limit tensor parallelism reaches, by hand and with DTensor."""

from functools import partial

from report import report

import labkit


def main():
    notebook = labkit.notebook.load("07_tensor_parallel")
    strategies = {
        "tensor_parallel": notebook.tensor_parallel,
        "torch_tensor_parallel": notebook.torch_tensor_parallel,
        "torch, shared input": partial(notebook.torch_tensor_parallel, shared_input=True),
        "data_parallel": labkit.notebook.load("03_data_parallel").data_parallel,
    }
    race = labkit.scaling(strategies, world_sizes=(2,), repeats=15, job=labkit.job(device="cpu"), device="cpu", live=False)
    for name in race.names:
        print(f"  {name:<22} speed-up {race.speedup(name, 2)}, limit {race.limit(2)}, share {race.share(name, 2)}", end="")
        print("   goal share ≥ 0.75" if name == "tensor_parallel" else "")
    ratios = [one["torch_tensor_parallel"] / one["tensor_parallel"] for one in race.rounds(2)]
    report("torch_tensor_parallel ÷ tensor_parallel", ratios, "≥ 1", " x")
