"""Look at this machine the way labkit uses it: one line a finding, and what to do about it.

A line is "fine", "look" (works, but) or "broken". The exit status is 0 where all are fine, 1 where one is not, 2 for a
wrong call, 130 after Ctrl-C.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

from labkit import gpu_checks, host_checks, run_checks, version_checks
from labkit.devices import machine
from labkit.findings import BROKEN, FINE, LOOK, Finding, Question
from labkit.launcher import run_ranks
from labkit.peer_to_peer import LIMIT_S, Trials

QUICK_S, SERVER_S, RANKS_S = 3.0, 12.0, 5.0
GPU_S = 2 * LIMIT_S + 30  # the last resort: the trials end themselves
WIDTH = 14
OLD_RANKS = "leftovers"

QUICK: list[tuple[str, Callable[[], Finding]]] = [
    ("Python", version_checks.python_version),
    ("torch", version_checks.torch_version),
    ("packages", version_checks.packages),
    ("cores", host_checks.cores),
    ("threads", host_checks.threads),
    ("shared memory", lambda: host_checks.shared_memory(len(machine().gpus))),
    ("temp directory", host_checks.temp_directory),
    ("loopback", host_checks.loopback),
    ("host name", host_checks.host_name),
    ("GPUs", gpu_checks.gpus),
    ("GPU access", gpu_checks.compute_mode),
]


def main(arguments: list[str]) -> int:
    """The command line: `python -m labkit doctor [--json] [--end-leftovers]`."""
    parser = argparse.ArgumentParser(prog="python -m labkit doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of {name, state, found, remedy} instead of lines")
    parser.add_argument("--end-leftovers", action="store_true", help="end processes of kernels that are gone, without asking")
    options = parser.parse_args(arguments)
    ask = None if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()) else _ask
    findings = []
    try:
        for finding in examine(end_leftovers=options.end_leftovers, ask=ask):
            findings.append(finding)
            if not options.json:
                print(finding.line(WIDTH), flush=True)
    except KeyboardInterrupt:
        print("doctor: stopped", file=sys.stderr)
        return 130
    print(json.dumps([asdict(finding) for finding in findings], indent=1) if options.json else _summary(findings))
    return int(any(finding.state != FINE for finding in findings))


def examine(*, end_leftovers: bool = False, ask: Callable[[str], bool] | None = None, run=run_ranks) -> Iterator[Finding]:
    """Yields the findings one by one, each within its time limit; nothing is printed.

    `ask` is asked whether leftovers should be ended, where `end_leftovers` does not say so already.
    """
    busy = _busy()
    server = Question("fork server", run_checks.fork_server, busy * SERVER_S)
    old = Question(OLD_RANKS, run_checks.old_ranks, QUICK_S)
    for question in [Question(name, check, QUICK_S) for name, check in QUICK]:
        yield question.finding()
    yield _ended(old.finding(), end_leftovers, ask)
    yield server.finding()
    if server.finding().state == BROKEN:
        return
    yield Question("ranks", lambda: run_checks.two_ranks(run), busy * RANKS_S).finding()
    yield from _gpu_findings(run)


def _busy():
    """How many times longer than on an idle machine things take: processes that want to run, per CPU; at most 5."""
    return min(5.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _ended(finding, end_leftovers, ask):
    if finding.state != LOOK or not (end_leftovers or (ask is not None and ask(finding.found))):
        return finding
    return Question(OLD_RANKS, run_checks.end_leftovers, 2 * QUICK_S).finding()


def _gpu_findings(run):
    here = machine()
    trials = Trials(run, len(here.gpus))
    for name, check in gpu_checks.questions(here, trials):
        yield Question(name, check, GPU_S).finding()


def _ask(found):
    return input(f"{found}. End them and remove their directories? [y/N] ").strip().lower() in ("y", "yes")


def _summary(findings):
    states = [finding.state for finding in findings]
    return ", ".join(f"{states.count(state)} {state}" for state in (FINE, LOOK, BROKEN) if state in states)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
