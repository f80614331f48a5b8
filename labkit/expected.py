"""A failure that a lesson is about: it must happen, and its report is shown as plain text."""

from labkit.errors import RankError


class expected_failure:
    """`with expected_failure("raised", rank=1) as failure:` shows the report of the run that fails inside.

    kind   "raised", "exited", "killed" or "hang"
    rank   the rank at fault; None for a hang, which has no single one
    Afterwards `failure.error` is the RankError. AssertionError where nothing fails, or a failure of another kind or rank
    comes; any other exception passes.
    """

    def __init__(self, kind, *, rank=None):
        self.kind, self.rank, self.error = kind, rank, None

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        if error is None:
            raise AssertionError(f"nothing failed, where {_named(self.kind, self.rank)} was expected")
        if not isinstance(error, RankError):
            return False
        if (error.kind, error.rank) != (self.kind, self.rank):
            expected = _named(self.kind, self.rank)
            raise AssertionError(f"{_named(error.kind, error.rank)}, where {expected} was expected: {error}") from error
        self.error = error
        print("\n".join(error._render_traceback_()))
        return True


def _named(kind, rank):
    return f"kind {kind!r}" + ("" if rank is None else f" on rank {rank}")
