"""labkit: run a parallel training strategy on every device at hand, check it, race it, and see it.

The contract is small: `launch` runs a function on N ranks; `train`, `parity`, `scaling` and `predict` look at a *strategy* — a
plain function from a notebook cell — through four lenses; `machine` says what there is to run on; `check` judges exercises.
"""

from labkit import live, server_link

if live.in_notebook():
    server_link.start_early()  # it imports torch at the same time as this kernel does

from labkit import hardware, notebook, schedule
from labkit.devices import machine
from labkit.errors import RankError, Stopped
from labkit.exercises import check
from labkit.expected import expected_failure
from labkit.guesses import guess
from labkit.hardware import RTX4090_SERVER
from labkit.holdings import holdings
from labkit.jobs import Job, job, small_job
from labkit.launcher import Run, launch
from labkit.oracle import parity
from labkit.prediction import predict
from labkit.race import scaling
from labkit.rank import Rank
from labkit.timeline import Span, Timeline
from labkit.training import train

__all__ = [
    "RTX4090_SERVER",
    "Job",
    "Rank",
    "RankError",
    "Run",
    "Span",
    "Stopped",
    "Timeline",
    "check",
    "expected_failure",
    "guess",
    "hardware",
    "holdings",
    "job",
    "launch",
    "machine",
    "notebook",
    "parity",
    "predict",
    "scaling",
    "schedule",
    "small_job",
    "train",
]
