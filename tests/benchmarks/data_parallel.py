"""How much of what two cores allow the data-parallel strategies of notebook 03 reach."""

import labkit


def main():
    notebook = labkit.notebook.load("03_data_parallel")
    strategies = [notebook.data_parallel, notebook.torch_ddp]
    race = labkit.scaling(strategies, world_sizes=(2,), repeats=15, job=labkit.job(device="cpu"), device="cpu", live=False)
    for name in race.names:
        print(f"  {name:<20} speed-up {race.speedup(name, 2)}, limit {race.limit(2)}, share {race.share(name, 2)}", end="")
        print("   goal share ≥ 0.90, or its high ≥ 0.95")
