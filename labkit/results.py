"""Scaling: the rounds of a race, and the ratios that they give."""

import statistics
from dataclasses import dataclass

from labkit import jobs

BASELINE, LIMIT = "one device", "limit"


@dataclass(frozen=True)
class Ratio:
    """A measured ratio: the median over rounds, and the 10th and 90th percentile as its spread."""

    median: float
    low: float
    high: float

    def __str__(self):
        return f"{self.median:.2f} [{self.low:.2f} … {self.high:.2f}]"


class Scaling:
    """What a race measured.

    .speedup(name, n)       one device's step ÷ the strategy's (weak scaling: the ratio of tokens/s)
    .limit(n)               the same for n ranks that each do their share of the batch at once and never communicate
    .share(name, n)         the limit's step ÷ the strategy's: how much of what this machine allows is reached
    .tokens_per_s(name, n)  tokens of the global batch per second
    .table() .figure        all of it as text and as a picture, which shows what `guess` has been committed to by then
    Each is a Ratio with .median .low .high over paired rounds. Where the job does not fit one device there is no
    baseline: speedup and limit raise ValueError, tokens/s and share remain.
    """

    def __init__(self, *, job, badge, batch, names, world_sizes, guess=None, strategies=None):
        self.job, self.badge, self.batch, self.names, self.world_sizes = job, badge, batch, names, world_sizes
        self.guess = guess if isinstance(guess, dict) else {max(world_sizes): guess}
        self.strategies, self.forecast = strategies or {}, None
        self.one_gpu_tokens_per_s = None
        self._rounds = {n: [] for n in world_sizes}

    def __repr__(self):
        return f"Scaling of {', '.join(self.names)} over {', '.join(map(str, self.world_sizes))} ranks"

    @property
    def has_baseline(self):
        """Whether one device could do the job; taken for granted until the first round."""
        return not any(self._rounds.values()) or any(BASELINE in times for rounds in self._rounds.values() for times in rounds)

    def rounds(self, world_size):
        """Returns {contender: seconds of its slowest rank} for every timed round at this number of ranks."""
        if world_size not in self._rounds:
            raise ValueError(f"{world_size} ranks were not raced; there are {', '.join(map(str, self.world_sizes))}")
        return tuple(self._rounds[world_size])

    def add_round(self, world_size, times):
        self._rounds[world_size].append(times)

    def speedup(self, name, n):
        self._check(name, n)
        return self._paired(n, BASELINE, name, self._work(n))

    def limit(self, n):
        return self._paired(n, BASELINE, LIMIT, self._work(n))

    def share(self, name, n):
        self._check(name, n)
        return self._paired(n, LIMIT, name, 1)

    def tokens_per_s(self, name, n):
        work = 1 if name == BASELINE else self._work(n)
        rates = [work * self.job.tokens_per_step / times[name] for times in self.rounds(n) if name in times]
        return _ratio(rates, f"{name} was not timed on {n} ranks")

    def table(self):
        """Returns the race as text, one line per strategy and number of ranks."""
        lines = [f"{self.job}, {'strong' if self.batch == 'global' else 'weak'} scaling, measured on {self.badge}"]
        lines.append(f"{'strategy':<28} {'ranks':>5} {'tokens/s':>9} {'speed-up':>20} {'limit':>20} {'share':>20}")
        for n in self.world_sizes:
            for name in self.names:
                if not self._rounds[n]:
                    continue
                rate = f"{self.tokens_per_s(name, n).median:,.0f}"
                known = [self.speedup(name, n), self.limit(n)] if self.has_baseline else ["does not fit one device", "-"]
                cells = [str(cell) for cell in [*known, self.share(name, n)]]
                lines.append(f"{name:<28} {n:>5} {rate:>9} " + " ".join(f"{cell:>20}" for cell in cells))
        return "\n".join(lines)

    @property
    def figure(self):
        self.foresee()
        return self.draw()

    def foresee(self):
        """Predicts, once, what the raced strategies would do on 1 to 8 RTX 4090s."""
        if self.strategies and self.forecast is None:
            from labkit.forecast import forecast

            self.forecast = forecast(self.strategies, batch=self.batch)

    def draw(self, *, failed=""):
        """Returns the picture of all rounds so far, marked if the race failed, and of the prediction if there is one."""
        from labkit.draw_scaling import ScalingData, ScalingLine, draw_scaling
        from labkit.runs.judgement import error_on_published_runs

        raced = [n for n in self.world_sizes if self._rounds[n]]
        value = self.speedup if self.has_baseline else self.tokens_per_s
        lines = [
            ScalingLine(
                name,
                points={n: value(name, n) for n in raced},
                share={n: self.share(name, n) for n in raced},
                job=str(self.job),
            )
            for name in self.names
        ]
        limit = {n: self.limit(n) for n in raced} if self.has_baseline else {}
        guess = self.predictions if self.has_baseline else {}
        weak = self.batch == "per_rank" and self.has_baseline
        data = ScalingData(
            self.world_sizes,
            tuple(lines),
            limit=limit,
            guess=guess,
            has_baseline=self.has_baseline,
            ylabel="tokens/s over one device" if weak else "",
            predicted=self._predicted_lines(ScalingLine),
            predicted_error=error_on_published_runs() if self.strategies else "",
            predicted_badge=self.forecast.badge if self.forecast else "",
        )
        return draw_scaling(data, title=self.title, badge=f"measured on {self.badge}", note=self.note, failed=failed)

    @property
    def title(self):
        return "strong scaling: one batch shared out" if self.batch == "global" else "weak scaling: one more batch per rank"

    @property
    def predictions(self):
        """{number of ranks: speed-up} as the learner has predicted it so far."""
        values = {n: getattr(guess, "value", guess) for n, guess in self.guess.items() if n in self.world_sizes}
        return {n: value for n, value in values.items() if isinstance(value, int | float)}

    @property
    def note(self):
        """What else the reader must know: a choice that was predicted, a learner's one GPU, that there is no baseline."""
        notes = [guess.note for guess in self.guess.values() if isinstance(getattr(guess, "value", None), str)]
        if self.one_gpu_tokens_per_s is not None:
            notes.append(f"one step on this machine's one GPU: {self.one_gpu_tokens_per_s.median:,.0f} tokens/s")
        if not self.has_baseline:
            notes.append("this job does not fit one device: tokens/s only")
        return " · ".join(notes)

    def _predicted_lines(self, make_line):
        """One line per strategy for the picture; empty ones until the race is over."""
        if self.forecast is None:
            job = str(jobs.job(device="cuda"))
            return tuple(make_line(name, {}, job=job, is_predicted=True) for name in self.strategies)
        values = self.forecast.speedups if self.has_baseline else self.forecast.tokens_per_s
        return tuple(
            make_line(
                name,
                points={n: Ratio(value, value, value) for n, value in values.get(name, {}).items()},
                job=str(self.forecast.job),
                is_predicted=True,
                reason=self.forecast.reasons.get(name, ""),
                is_unvalidated=name in self.forecast.unvalidated,
            )
            for name in self.strategies
        )

    def _work(self, n):
        return n if self.batch == "per_rank" else 1

    def _check(self, name, n):
        if name not in self.names:
            raise ValueError(f"{name!r} was not raced; there are {', '.join(self.names)}")
        self.rounds(n)

    def _paired(self, n, over, under, factor):
        ratios = [factor * times[over] / times[under] for times in self.rounds(n) if over in times and under in times]
        return _ratio(ratios, "this job does not fit one device, so there is no baseline; read tokens_per_s instead")


def _ratio(values, complaint):
    if not values:
        raise ValueError(complaint)
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Ratio(statistics.median(values), tenths[0], tenths[-1])
