"""train: a strategy on all ranks, seen live."""

import time
from functools import partial

import torch

from labkit import jobs
from labkit.devices import default_world_size, place
from labkit.launcher import run_ranks
from labkit.live import in_notebook, write
from labkit.module_spans import timed
from labkit.payload import never_runs
from labkit.views import View

LINE_EVERY_S = 2.0


def train(strategy, *, world_size=None, steps=50, job=None, device=None, live=True):
    """Trains `job` with a strategy for `steps` updates and returns the Run, whose records hold loss and tokens.

    `strategy(rank, job)` returns `step(tokens, targets) -> loss`, see `build`. Loss and tokens/s are drawn while the ranks
    train; what a strategy sends and times while it is built is not part of the run's traffic and timeline. Errors: as
    `launch`.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps={steps!r} must be a whole number of at least 1")
    refuse_wrong_request(strategy, job)
    if world_size is None:
        world_size = min(default_world_size(device), (job or jobs.job(device=device)).batch_size)
    placement = place(world_size, device)
    job = job or jobs.job(device=placement.device_type)
    name = strategy_name(strategy)
    view = TrainingView(name, placement, job, steps) if live else None
    run = run_ranks(train_rank, (strategy, job, steps), {}, world_size=world_size, device=device, live=live, view=view)
    run._take_account = partial(_account, strategy, world_size=world_size, job=job, device=device)
    return run


def _account(strategy, **request):
    from labkit.memory_run import account

    return account(strategy, **request)


def refuse_wrong_request(strategy, job):
    """Raises TypeError for what no rank can call or train, before anything starts."""
    if not callable(strategy):
        raise TypeError(f"a strategy is a function strategy(rank, job), not {type(strategy).__name__}")
    if what := never_runs(strategy):
        raise TypeError(f"{strategy_name(strategy)} is {what}; a strategy is a plain def that returns its function step")
    if job is not None and not isinstance(job, jobs.Job):
        raise TypeError(f"job={job!r} is no job; make one with labkit.job() or labkit.small_job()")


def strategy_name(strategy):
    """Returns the function's name; of a functools.partial, with the options that it sets."""
    if hasattr(strategy, "func"):
        options = ", ".join(f"{name}={value}" for name, value in strategy.keywords.items())
        return f"{strategy_name(strategy.func)}({options})"
    return getattr(strategy, "__name__", type(strategy).__name__)


def train_rank(rank, strategy, job, steps):
    """What each rank of `train` does."""
    with timed(job, rank._recorder) as timed_job:
        step = build(strategy, rank, timed_job)
        rank._recorder.clear()
        for _, (tokens, targets) in zip(rank.steps(steps), job.batches(steps), strict=True):
            loss = step(tokens.to(rank.device), targets.to(rank.device))
            rank.log(tokens=job.tokens_per_step)
            if loss is not None:
                rank.log(loss=loss)


def build(strategy, rank, job):
    """Returns the strategy's step, under the job's autocast and with its loss checked.

    Each step takes the *global* batch, [B, T] on rank.device and the same on every rank, does one update and returns
    the global mean loss as a detached tensor of no dimension, or None on a rank that does not know it.
    """
    step = strategy(rank, job)
    if not callable(step):
        raise TypeError(
            f"{strategy_name(strategy)} returned {type(step).__name__}; a strategy returns its function step(tokens, targets)"
        )

    def checked_step(tokens, targets):
        with job.autocast(rank.device.type):
            loss = step(tokens, targets)
        if loss is not None and not (isinstance(loss, torch.Tensor) and loss.dim() == 0):
            shape = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise TypeError(f"step returned {shape}; it returns the mean loss as a tensor of no dimension, or None")
        return None if loss is None else loss.detach()

    return checked_step


def one_device(rank, job):
    """The strategy of one device: what every other one is compared with."""
    model = job.model().to(rank.device)
    optimizer = job.optimizer(model.parameters())

    def step(tokens, targets):
        with rank.span("forward"):
            loss = job.loss(model(tokens), targets)
        with rank.span("backward"):
            loss.backward()
        with rank.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


class TrainingView(View):
    """Loss and tokens/s, as a picture in a notebook and as lines in a terminal."""

    def __init__(self, name, placement, job, steps):
        super().__init__()
        self.text = f"figure: loss and tokens/s of {name}"
        self.name, self.steps, self.job, self.badge = name, steps, job, placement.badge
        self._drawing, self._next_line = None, time.monotonic() + LINE_EVERY_S

    def figure(self, session, failed=None):
        from labkit.draw import TrainingPicture

        self._drawing = self._drawing or TrainingPicture(
            title=self.name, badge=f"measured on {self.badge}", note=str(self.job), steps=self.steps
        )
        return self._drawing.update(tuple(session.records), failed=failed or "")

    def tick(self, session):
        if not in_notebook() and session.records and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            self._say(session)
        return super().tick(session)

    def close(self, session, failure):
        super().close(session, failure)
        if not in_notebook() and session.records:
            self._say(session)

    def _say(self, session):
        last = max(session.records, key=lambda record: record["step"])
        losses = [record["loss"] for record in session.records if record["step"] == last["step"] and "loss" in record]
        loss = f"  loss {losses[0]:.4f}" if losses else ""
        rate = (last["step"] + 1) * self.job.tokens_per_step / last["time_s"]
        write("stdout", f"{self.name}: step {last['step'] + 1} of {self.steps}{loss}  {rate:,.0f} tokens/s on {self.badge}\n")
