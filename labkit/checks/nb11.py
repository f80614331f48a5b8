"""Checks of notebook 11, plan a cluster: held-out errors, predictions with an interval, and a purchase within a budget."""

from dataclasses import dataclass
from math import exp, log

from labkit.checks import compare
from labkit.layouts import Layout
from labkit.planner import examine
from labkit.purchases import Offer

PRECISION = 1e-6
RUNS = (  # predicted and measured seconds of exercise 11.1
    ((1.0, 2.0, 4.0), (1.3, 2.2, 6.0)),
    ((0.010, 0.200, 0.050, 0.120), (0.013, 0.190, 0.071, 0.118)),
)
MODEL, BATCH, SEQ_LEN, CARDS = "Llama-3.2-3B", 64, 2048, (4, 8)
TECHNIQUES = ("ZeRO-3", "pipeline", "tensor")
OFFERS = (  # name, price, (low, middle, high) tokens/s or None where nothing fits
    ("a network card", 900.0, (980.0, 1060.0, 1150.0)),
    ("a driver", 0.0, (1190.0, 1300.0, 1400.0)),
    ("four cards", 7000.0, (1500.0, 1620.0, 1750.0)),
    ("eight cards", 13000.0, (2100.0, 2300.0, 2500.0)),
    ("a host", None, (2600.0, 2800.0, 3000.0)),
    ("small cards", 500.0, None),
)
NOW = (930.0, 1000.0, 1080.0)


def exercise_11_1(held_out_errors):
    """Two tables of runs: each run's signed error when only the others calibrate."""
    for predicted, measured in RUNS:
        if cause := _errors_cause(held_out_errors(list(predicted), list(measured)), predicted, measured):
            return cause
    return None


def _errors_cause(ours, predicted, measured):
    right = errors_without_self(predicted, measured)
    if not (cause := compare(ours, right, tolerance=PRECISION)):
        return None
    every = geometric_mean([m / p for p, m in zip(predicted, measured)])
    others = [[m / p for at, (p, m) in enumerate(zip(predicted, measured)) if at != out] for out in range(len(predicted))]
    known = {
        "every run took part in its own calibration: leave it out, or the error is too small": [
            p * every / m - 1 for p, m in zip(predicted, measured)
        ],
        "that is the error without a calibration: multiply the prediction by the others' factor first": [
            p / m - 1 for p, m in zip(predicted, measured)
        ],
        "the signs are lost: too slow and too fast are different faults": [abs(one) for one in right],
        "that is (measured − predicted) ÷ predicted; an error is relative to what was measured": [
            1 / (1 + one) - 1 for one in right
        ],
        "that is the arithmetic mean of the ratios; of factors take the geometric one, the exponential of the mean logarithm": [
            p * sum(some) / len(some) / m - 1 for p, m, some in zip(predicted, measured, others)
        ],
        "the factor is upside down: it is measured ÷ predicted, by which predictions are multiplied": [
            p / geometric_mean(some) / m - 1 for p, m, some in zip(predicted, measured, others)
        ],
    }
    return next((text for text, wrong in known.items() if not compare(ours, wrong, tolerance=PRECISION)), cause)


def errors_without_self(predicted, measured):
    """Calibrated prediction ÷ measurement − 1 of each run, by the geometric mean of measured ÷ predicted of all others."""
    ratios = [m / p for p, m in zip(predicted, measured)]
    factors = [geometric_mean(ratios[:out] + ratios[out + 1 :]) for out in range(len(ratios))]
    return [p * factor / m - 1 for p, m, factor in zip(predicted, measured, factors)]


def geometric_mean(numbers):
    return exp(sum(map(log, numbers)) / len(numbers))


def exercise_11_2(forecast):
    """Three techniques on 4 and 8 cards: low, middle and high tokens per second, as labkit's predictor has them."""
    for cards in CARDS:
        ours = forecast(cards)
        right = {name: rates(_layout(name, cards)) for name in TECHNIQUES}
        if compare(ours, right, tolerance=1e-4):
            return f"on {cards} cards: {_forecast_cause(ours, right, cards)}"
    return None


def _layout(name, cards, zero=3):
    if name == "ZeRO-3":
        return Layout(dp=cards, zero=zero)
    return Layout(pp=cards) if name == "pipeline" else Layout(tp=cards)


def rates(layout, *, batch=BATCH):
    """(low, middle, high) tokens per second of a layout of exercise 11.2; the longest step is the lowest rate."""
    estimate = examine(MODEL, layout, batch=batch, seq_len=SEQ_LEN).estimate
    fast_s, slow_s = estimate.interval
    return tuple(batch * SEQ_LEN / seconds for seconds in (slow_s, estimate.step_time_s, fast_s))


def _forecast_cause(ours, right, cards):
    plain = compare(ours, right, tolerance=1e-4)
    if not isinstance(ours, dict) or set(ours) != set(right):
        return plain
    known = {
        "the interval is upside down: the longer step is the lower rate": _mapped(right, lambda row: row[::-1]),
        "these are seconds of a step; tokens per second are asked for": _mapped(right, _seconds),
        "these are tokens per second of one card; all cards' are asked for": _mapped(right, lambda row: [x / cards for x in row]),
        "every entry is the middle: where is the interval?": _mapped(right, lambda row: [row[1]] * 3),
    }
    for text, wrong in known.items():
        if not compare(ours, wrong, tolerance=1e-4):
            return text
    for zero in (0, 1, 2):
        if not compare(ours, right | {"ZeRO-3": rates(_layout("ZeRO-3", cards, zero))}, tolerance=1e-4):
            return f"`ZeRO-3` is predicted with stage {zero}"
    if not compare(ours, right | {"pipeline": right["tensor"], "tensor": right["pipeline"]}, tolerance=1e-4):
        return "pipeline and tensor are exchanged"
    wider = {name: rates(_layout(name, cards), batch=cards * BATCH) for name in TECHNIQUES}
    if not compare(ours, wider, tolerance=1e-4):
        return f"the batch grew with the cards: {cards * BATCH} sequences where all share {BATCH}"
    return plain


def _mapped(right, change):
    return {name: tuple(change(row)) for name, row in right.items()}


def _seconds(row):
    return [BATCH * SEQ_LEN / one for one in row[::-1]]


@dataclass(frozen=True)
class Case:
    """A budget, what there is now, which offers there are, and which one is right."""

    budget_usd: float
    now: tuple | None
    names: tuple
    right: str | None


EVERY = tuple(name for name, _, _ in OFFERS)
CASES = (
    Case(15000.0, NOW, EVERY, "eight cards"),
    Case(8000.0, NOW, EVERY, "four cards"),
    Case(1000.0, NOW, EVERY, "a driver"),
    Case(1000.0, NOW, ("a network card", "small cards"), None),
    Case(1000.0, None, ("a network card", "small cards"), "a network card"),
    Case(7000.0, NOW, EVERY[::-1], "four cards"),
)


def exercise_11_3(best_purchase):
    """Six budgets: the affordable offer with the most tokens per second, if it helps beyond the interval."""
    rows = {name: Offer(name, name, price) for name, price, _ in OFFERS}
    for case in CASES:
        rate = {name: rate for name, _, rate in OFFERS}.__getitem__
        ours = best_purchase([rows[name] for name in case.names], case.budget_usd, rate, case.now)
        if ours != case.right:
            return _purchase_cause(ours, case, rows, rate)
    return None


def _purchase_cause(ours, case, rows, rate):
    told = f"with {case.budget_usd:,.0f} USD"
    if isinstance(ours, Offer):
        return "the name is asked for, not the offer"
    if ours is None:
        return f"{told} it says nothing is worth buying, but {case.right!r} is" + (
            ": nothing fits now, so all that fits helps" if case.now is None else ""
        )
    if ours not in case.names:
        return f"{ours!r} was not offered"
    price, found = rows[ours].price_usd, rate(ours)
    if price is None:
        return f"{told} it buys {ours!r}, whose price is not known"
    if price > case.budget_usd:
        return f"{told} it buys {ours!r}, which costs {price:,.0f}"
    if found is None:
        return f"{told} it buys {ours!r}, on which nothing fits"
    if case.now and found[0] <= case.now[2]:
        least, most = found[0], found[2]
        return f"{told} it buys {ours!r}: {least:,.0f} … {most:,.0f} tokens/s, which may be no more than now's {case.now[2]:,.0f}"
    better = f"{case.right!r} brings {rate(case.right)[1]:,.0f}"
    return f"{told} it buys {ours!r}, {found[1]:,.0f} tokens/s, though {better}: the most wins, not the cheapest"
