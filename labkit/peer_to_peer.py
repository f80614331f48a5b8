"""Whether NCCL may let this machine's GPUs exchange data directly (peer to peer): tried out, never guessed from a card's name.

On cards whose driver wrongly offers it, direct copies arrive as zeros or all_reduce hangs (NVIDIA/nccl-tests issue 117). What a
trial found is kept per user, for these GPUs with this driver.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.devices import machine
from labkit.errors import RankError
from labkit.exchange import copies_on_one_rank, wrong_sums
from labkit.nvml import read_driver

VARIABLE = "NCCL_P2P_DISABLE"
USERS_OWN = (VARIABLE, "NCCL_P2P_LEVEL")
TIMEOUT_S, LIMIT_S = 30, 60  # without progress; in all
NAMED = 6


@dataclass(frozen=True)
class Trial:
    """How one way of exchanging data went: "works", "fails", or "unclear" where the failure has other causes."""

    state: str
    found: str


@dataclass(frozen=True)
class Decision:
    """For GPUs (their uuids) with one driver: whether labkit's runs set NCCL_P2P_DISABLE=1, and why."""

    gpus: tuple[str, ...]
    driver: str
    disable: bool
    reason: str


class Trials:
    """The trials on the first `count` GPUs, each made when first asked for. `run` is launcher.run_ranks."""

    def __init__(self, run, count):
        self.run, self.count = run, count

    @functools.cached_property
    def copies(self):
        trial, results = self._try(copies_on_one_rank, self.count, world_size=1)
        if results is None:
            # An exception here says nothing about NCCL; a copy that never ends does.
            return trial if trial.found.startswith("hangs") else Trial("unclear", trial.found)
        changed, direct = results[0]
        pairs = self.count * (self.count - 1)
        if changed:
            named = ", ".join(f"{source} to {target}" for source, target in changed[:NAMED]) + ", …" * (len(changed) > NAMED)
            return Trial("fails", f"{len(changed)} of {pairs} copies between GPUs arrive changed: {named}")
        return Trial("works", f"{pairs} copies between GPUs arrive as sent, {direct} of them direct")

    @functools.cached_property
    def direct(self):
        return self._all_reduce("0")

    @functools.cached_property
    def over_host(self):
        return self._all_reduce("1")

    @property
    def verdict(self):
        """(Whether to disable P2P, why); None where the trials do not tell."""
        trouble = self.copies if self.copies.state == "fails" else self.direct
        if trouble.state == "fails":
            return (True, trouble.found) if self.over_host.state == "works" else None
        return (False, "") if self.copies.state == self.direct.state == "works" else None

    def _all_reduce(self, disable):
        with _environment(VARIABLE, disable):
            started = time.monotonic()
            trial, results = self._try(wrong_sums, world_size=self.count)
        if results is None:
            return Trial(trial.state, f"all_reduce {trial.found}")
        if any(results):
            return Trial("fails", f"all_reduce gives {max(results):,} wrong numbers")
        return Trial("works", f"all_reduce right in {time.monotonic() - started:.1f} s")

    def _try(self, function, *arguments, world_size):
        """(Trial, None) of a failure, (None, results) else."""
        options = {"world_size": world_size, "device": "cuda", "timeout": TIMEOUT_S, "live": False, "warn": False}
        started = time.monotonic()
        try:
            return None, self.run(function, (*arguments, LIMIT_S), {}, **options).results
        except RankError as error:
            seconds = time.monotonic() - started
            if error.kind == "hang" or (error.kind == "killed" and seconds >= LIMIT_S):
                return Trial("fails", f"hangs (ended after {seconds:.0f} s)"), None
            full = "out of memory" in str(error).lower()
            return Trial("unclear" if full else "fails", f"fails: {str(error).splitlines()[0]}"), None


def environment(placement, environ, run):
    """The variables that ranks on `placement` need besides the kernel's `environ`; says so once in a kernel.

    Tries P2P out before the first run of two or more GPUs that no trial has seen with this driver. A user's own setting is
    left alone, and then nothing is tried.
    """
    count = len(placement.devices)
    if placement.backend != "nccl" or count < 2 or any(name in environ for name in USERS_OWN):
        return {}
    gpus, driver = tuple(gpu.uuid for gpu in machine().gpus[:count]), read_driver()
    if not (driver and all(gpus)):
        return {}  # these GPUs can't be told from others
    decision = remembered(gpus, driver) or _tried_once(gpus, driver, run)
    if decision is None or not decision.disable:
        return {}
    _say_once(f"labkit sets {VARIABLE}=1 for its runs on these GPUs: {decision.reason}; {VARIABLE}=0 of your own prevents it")
    return {VARIABLE: "1"}


@functools.cache
def _tried_once(gpus, driver, run):
    _say_once(f"labkit tries once whether these {len(gpus)} GPUs can exchange data directly; where that hangs it takes 2 minutes")
    trials, cause = Trials(run, len(gpus)), ""
    try:
        verdict = trials.verdict
    except Exception as error:  # a failing trial must not keep the learner's own run from starting
        verdict, cause = None, f" ({error})"
    if verdict is None:
        _say_once(f"labkit could not find that out{cause}; `python -m labkit doctor` says more")
        return None
    return remember(Decision(gpus, driver, *verdict))


@functools.cache
def _say_once(sentence):
    print(sentence, file=sys.stderr)


def store():
    """The file that keeps decisions."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "p2p.json"


def remembered(gpus, driver):
    """The Decision for exactly these GPUs, or else for more that include them; None where there is none."""
    known = [one for one in _decisions() if one.driver == driver and set(gpus) <= set(one.gpus)]
    return min(known, key=lambda one: len(one.gpus), default=None)


def remember(decision):
    """Stores a decision in the place of an earlier one for the same GPUs, where the file can be written; returns it."""
    others = [one for one in _decisions() if set(one.gpus) != set(decision.gpus)]
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home directory
        store().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=store().parent, delete=False) as file:
            json.dump([asdict(one) for one in (*others, decision)], file, indent=1)
        os.replace(file.name, store())
    return decision


def _decisions():
    try:
        rows = json.loads(store().read_text())
        return [Decision(tuple(row["gpus"]), row["driver"], row["disable"] is True, row["reason"]) for row in rows]
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return []


@contextlib.contextmanager
def _environment(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
