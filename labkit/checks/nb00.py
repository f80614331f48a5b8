"""Checks of notebook 00, first steps with ranks: on CPU cores, so that they judge the same everywhere."""

from labkit.checks import compare
from labkit.errors import RankError
from labkit.launcher import run_ranks

PATIENCE_S = 4
TALK = ("send", "recv")


def exercise_0_1(square):
    """Every rank returns its number squared and the world size."""
    for world_size in (3, 2):
        results = on_ranks(square, world_size).results
        expected = [(rank**2, world_size) for rank in range(world_size)]
        for rank, (ours, right) in enumerate(zip(results, expected)):
            if ours is None:
                return f"rank {rank} returned None: does the function end with `return`?"
            if isinstance(ours, (tuple, list)) and tuple(ours) == right[::-1] != right:
                return "the right numbers in the wrong order: first the square, then the world size"
            if compare(ours, right):
                return f"of {world_size} ranks, rank {rank} returned {ours!r} where {right} is expected"
    return None


def exercise_0_2(pass_token):
    """The sum of all rank numbers on every rank, passed on by send and recv only."""
    for world_size in (3, 2, 4):
        try:
            run = on_ranks(pass_token, world_size)
        except RankError as error:
            if str(error).count("waits in recv") == world_size:
                return "every rank waits in recv and nobody sends: one of them has to start"
            if str(error).count("waits in send") == world_size:
                return "every rank waits in send and nobody receives: all but the one that starts must receive first"
            raise
        calls = [{name: use.calls for name, use in one.items()} for one in run.traffic]
        if others := sorted({name for one in calls for name in one} - set(TALK)):
            return f"{', '.join(others)} was called: only send and recv may be used"
        if cause := token_cause(run.results, world_size):
            return f"of {world_size} ranks, {cause}"
        if silent := [rank for rank, one in enumerate(calls) if not all(one.get(name) for name in TALK)]:
            missing = next(name for name in TALK if not calls[silent[0]].get(name))
            return f"the value is right, but rank {silent[0]} never calls {missing}: let the token carry it round"
    return None


def token_cause(results, world_size):
    """Why the ranks' values are not all N (N − 1) / 2, or None."""
    total = world_size * (world_size - 1) // 2
    values = [number(result) for result in results]
    if None in values:
        rank = values.index(None)
        return f"rank {rank} returned {results[rank]!r}, which is not one number"
    passing = [rank * (rank + 1) / 2 for rank in range(world_size)]
    if values in (passing, [total, *passing[1:]]) and world_size > 2:
        return "each rank returns the token as it was when it passed by; a second round must carry the total to all"
    if wrong := [rank for rank, value in enumerate(values) if value != total]:
        return f"rank {wrong[0]} returned {values[wrong[0]]:g} where 0 + … + {world_size - 1} = {total} is expected"
    return None


def exercise_0_3(repaired):
    """One all_reduce and one broadcast on every rank, and their results."""
    for world_size in (2, 3):
        run = on_ranks(repaired, world_size)
        for rank, use in enumerate(run.traffic):
            for name in ("all_reduce", "broadcast"):
                if (calls := use[name].calls if name in use else 0) != 1:
                    return f"rank {rank} calls {name} {calls} times; every rank makes this call once"
        right = (world_size * (world_size + 1) / 2, 42.0)
        for rank, result in enumerate(run.results):
            if compare(result, right):
                return f"of {world_size} ranks, rank {rank} returned {result!r} where {right} is expected"
    return None


def on_ranks(answer, world_size):
    """The Run of an answer; ranks that wait for each other end with a hang report soon."""
    return run_ranks(answer, (), {}, world_size=world_size, device="cpu", timeout=PATIENCE_S, live=False, warn=False)


def number(value):
    """One number, also out of a tensor of one element; None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
