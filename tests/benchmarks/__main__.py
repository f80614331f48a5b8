"""`make bench`: what the project wants to be good at, measured here and now; nothing is asserted.

Each figure is a ratio of things that alternate in one run, so it holds on a noisy machine as well as any can.
"""

import importlib
import sys

PARTS = {
    "launch": "starting ranks",
    "overhead": "what watching costs",
    "data_parallel": "notebook 03",
    "sharded_data_parallel": "notebook 04",
    "pipeline": "notebooks 05 and 06",
    "tensor_parallel": "notebook 07",
    "memory": "what the kernel keeps",
    "replay": "predicting large steps",
    "prediction": "this machine, predicted and measured",
}


def main(names):
    for name in names or PARTS:
        if name not in PARTS:
            sys.exit(f"no benchmark {name!r}; there are {', '.join(PARTS)}")
        print(f"\n{name}: {PARTS[name]}", flush=True)
        importlib.import_module(name).main()


if __name__ == "__main__":
    main(sys.argv[1:])
