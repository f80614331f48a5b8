"""What a planned training costs: hours, energy of the cards, rent, and the price of the cards, as far as it is known.

Only cards are counted: hosts, cooling and the price of a kilowatt-hour differ from place to place and are in no data sheet.
"""

from dataclasses import dataclass

from labkit.constants import READ, Source

# {card: (USD per card and hour, where that was read)}
RENTS = {"RTX 4090": (0.31, Source(READ, "an example, not a market price: vast.ai on 26 September 2025 (LLM.Q README)"))}
NOT_KNOWN = "not known"


@dataclass(frozen=True, repr=False)
class Cost:
    """What so many tokens cost on `cards` cards; None where no source is at hand. Energy is an upper bound.

    energy_kwh  board power of the data sheet, all the time, cards alone
    rent_usd    by the example of RENTS; price_usd: of the cards, at their launch
    """

    tokens: float
    cards: int
    card: str
    hours: float
    energy_kwh: float | None
    rent_usd: float | None
    price_usd: float | None
    sources: dict

    def __repr__(self):
        lines = [f"{self.tokens:.3g} tokens on {self.cards} {self.card}: {self.hours:,.1f} hours"]
        named = {
            "energy": (self.energy_kwh, "at most {:,.0f} kWh", "tdp_w"),
            "rent": (self.rent_usd, "{:,.0f} USD", "rent"),
            "cards": (self.price_usd, "{:,.0f} USD", "price_usd"),
        }
        for name, (value, text, key) in named.items():
            told = NOT_KNOWN if value is None else f"{text.format(value)} ({self.sources[key]})"
            lines.append(f"   {name:7}{told}")
        return "\n".join(lines)


def cost(plan, tokens):
    """Returns the Cost of training on so many tokens as a `labkit.planner.Plan` predicts it.

    Raises ValueError for a number of tokens that is not above 0, and for a plan that was refused or not predicted.
    """
    if not isinstance(tokens, int | float) or not 0 < tokens < float("inf"):
        raise ValueError(f"tokens is {tokens!r}; pass how many are trained on, such as 1e9")
    if plan is None or plan.estimate is None:
        raise ValueError(f"there is no prediction to cost: {plan!r}; pass one of `.ranked`")
    card, cards, hours = plan.run.machine.card, plan.run.cards, tokens / plan.tokens_per_s / 3600
    rent, source = RENTS.get(card.name, (None, None))
    return Cost(
        tokens=tokens,
        cards=cards,
        card=card.name,
        hours=hours,
        energy_kwh=None if card.tdp_w is None else cards * card.tdp_w * hours / 1000,
        rent_usd=None if rent is None else cards * hours * rent,
        price_usd=None if card.price_usd is None else cards * card.price_usd,
        sources={name: _told(card, name) for name in ("tdp_w", "price_usd")} | ({"rent": _rent(rent, source)} if rent else {}),
    )


def _told(card, name):
    value, source, unit = getattr(card, name), card.origins.get(name), {"tdp_w": "W", "price_usd": "USD"}[name]
    return f"{value:,.0f} {unit} a card" + (f", {source.origin}: {source.text}" if source else "") if value is not None else ""


def _rent(rent, source):
    return f"{rent} USD a card and hour, {source.origin}: {source.text}"
