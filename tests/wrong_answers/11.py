"""Wrong answers to the exercises of notebook 11, each with the cause that its check must name."""

from math import exp, log

from labkit.checks import nb11
from labkit.layouts import Layout
from labkit.planner import examine


def errors(*, own=False, invert=False, mean="geometric", of=lambda p, factor, m: p * factor / m - 1):
    """What `held_out_errors` may look like, with one thing wrong or another."""

    def held_out_errors(predicted, measured):
        ratios = [m / p for p, m in zip(predicted, measured)]
        found = []
        for at, (p, m) in enumerate(zip(predicted, measured)):
            some = ratios if own else ratios[:at] + ratios[at + 1 :]
            factor = sum(some) / len(some) if mean == "arithmetic" else exp(sum(map(log, some)) / len(some))
            found.append(of(p, 1 / factor if invert else factor, m))
        return found

    return held_out_errors


def forecast_of(change=tuple, *, zero=3, exchanged=False, batch_per_card=False):
    """What `forecast` may look like: `change` of each row, ZeRO of another stage, exchanged ways, a growing batch."""

    def forecast(cards):
        batch = nb11.BATCH * cards if batch_per_card else nb11.BATCH
        pipeline, tensor = Layout(pp=cards), Layout(tp=cards)
        layouts = {"ZeRO-3": Layout(dp=cards, zero=zero), "pipeline": pipeline, "tensor": tensor}
        if exchanged:
            layouts |= {"pipeline": tensor, "tensor": pipeline}
        rows = {}
        for name, layout in layouts.items():
            plan = examine(nb11.MODEL, layout, batch=batch, seq_len=nb11.SEQ_LEN)
            rows[name] = change((plan.interval[0], plan.tokens_per_s, plan.interval[1]))
        return rows

    return forecast


def forecast_seconds(cards):
    layouts = {"ZeRO-3": Layout(dp=cards, zero=3), "pipeline": Layout(pp=cards), "tensor": Layout(tp=cards)}
    found = {name: examine(nb11.MODEL, one, batch=nb11.BATCH, seq_len=nb11.SEQ_LEN).estimate for name, one in layouts.items()}
    return {name: (one.interval[0], one.step_time_s, one.interval[1]) for name, one in found.items()}


def buyer(*, known=True, affordable=True, fits=True, clear=True, by=lambda offer, rates: rates[1], least=False):
    """What `best_purchase` may look like, one condition or another left out."""

    def best_purchase(offers, budget_usd, rate, now):
        left = []
        for offer in offers:
            rates = rate(offer.machine)
            price = offer.price_usd if offer.price_usd is not None else (budget_usd + 1 if known else 0.0)
            if affordable and price > budget_usd or fits and rates is None:
                continue
            if clear and now is not None and rates is not None and rates[0] <= now[2]:
                continue
            left.append((by(offer, rates or (1e9, 1e9, 1e9)), offer.name))
        return (min if least else max)(left)[1] if left else None

    return best_purchase


def whole_offer(offers, budget_usd, rate, now):
    return offers[3]


def never(offers, budget_usd, rate, now):
    return None if now is None else buyer()(offers, budget_usd, rate, now)


def invented(offers, budget_usd, rate, now):
    return "a mainframe"


WRONG_ANSWERS = {
    "11.1": [
        (errors(own=True), "every run took part in its own calibration"),
        (errors(of=lambda p, factor, m: p / m - 1), "the error without a calibration"),
        (errors(of=lambda p, factor, m: abs(p * factor / m - 1)), "the signs are lost"),
        (errors(of=lambda p, factor, m: m / (p * factor) - 1), "relative to what was measured"),
        (errors(of=lambda p, factor, m: 100 * (p * factor / m - 1)), "percent where a fraction belongs"),
        (errors(mean="arithmetic"), "arithmetic mean of the ratios"),
        (errors(invert=True), "upside down: it is measured ÷ predicted"),
        (lambda predicted, measured: errors()(predicted, measured)[0], "a list of 3 entries is expected"),
    ],
    "11.2": [
        (forecast_of(lambda row: row[::-1]), "on 4 cards: the interval is upside down"),
        (forecast_seconds, "these are seconds of a step"),
        (forecast_of(lambda row: (row[1],) * 3), "where is the interval"),
        (forecast_of(zero=1), "`ZeRO-3` is predicted with stage 1"),
        (forecast_of(exchanged=True), "pipeline and tensor are exchanged"),
        (forecast_of(batch_per_card=True), "256 sequences where all share 64"),
        (lambda cards: {"pipeline": (1.0, 2.0, 3.0)}, "there is no entry 'ZeRO-3', 'tensor'"),
    ],
    "11.3": [
        (buyer(affordable=False), "it buys 'a host', whose price is not known|which costs 13,000"),
        (buyer(known=False), "whose price is not known"),
        (buyer(fits=False), "on which nothing fits"),
        (buyer(clear=False), "may be no more than now's 1,080"),
        (buyer(by=lambda offer, rates: offer.price_usd, least=True), "the most wins, not the cheapest"),
        (whole_offer, "the name is asked for"),
        (never, "nothing fits now, so all that fits helps"),
        (invented, "was not offered"),
    ],
}
