"""Failures that a lesson is about: shown as text, and missed when they do not come."""

import pytest

import labkit
from labkit import RankError, expected_failure


def fails_on(rank, *, kind="raised"):
    return RankError(f"rank {rank} failed", rank=rank, kind=kind, traceback="rank 1:\n  cell In[1], line 2, in f\n")


def test_shows_the_report_and_keeps_the_error(capsys):
    with expected_failure("raised", rank=1) as failure:
        raise fails_on(1)
    assert failure.error.rank == 1
    assert capsys.readouterr().out == "rank 1:\n  cell In[1], line 2, in f\nRankError: rank 1 failed\n"


def test_a_failure_that_does_not_come_is_one():
    with pytest.raises(AssertionError, match="nothing failed, where kind 'hang' was expected"), expected_failure("hang"):
        pass


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (fails_on(0), "kind 'raised' on rank 0, where kind 'raised' on rank 1 was expected: rank 0 failed"),
        (fails_on(1, kind="killed"), "kind 'killed' on rank 1, where"),
        (fails_on(None, kind="hang"), "kind 'hang', where"),
    ],
)
def test_another_kind_or_rank_is_not_the_failure(error, cause):
    with pytest.raises(AssertionError, match=cause), expected_failure("raised", rank=1):
        raise error


def test_other_exceptions_pass():
    with pytest.raises(KeyboardInterrupt), expected_failure("raised", rank=1):
        raise KeyboardInterrupt


def test_a_real_report_names_the_line(capsys):
    def stumbles(rank):
        if rank.rank == 1:
            raise ValueError("here")

    with expected_failure("raised", rank=1):
        labkit.launch(stumbles, world_size=2, device="cpu", live=False)
    line = stumbles.__code__.co_firstlineno + 2
    assert f'test_expected.py, line {line}, in stumbles\n    raise ValueError("here")' in capsys.readouterr().out
