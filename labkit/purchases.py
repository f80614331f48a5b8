"""What to buy next: the same training planned on machines that differ in one thing, and which of them helps most."""

from dataclasses import dataclass
from functools import partial

from labkit import hardware
from labkit.constants import ESTIMATED, READ, Source
from labkit.machine_model import Machine
from labkit.planner import plan
from labkit.plans import Plan
from labkit.runs.tables import markdown

GIB = 2**30
CARDS_OF_48 = Source(READ, "modified cards of 48 GB exist and are used in published runs; all else taken as before")


@dataclass(frozen=True)
class Offer:
    """A machine that one could have; `price_usd` of what has to be bought for it, None where no source is at hand."""

    name: str
    machine: Machine
    price_usd: float | None = None


@dataclass(frozen=True, repr=False)
class Purchases:
    """Each offer's best plan beside the present machine's, best first; an offer on which nothing fits has None."""

    now: Plan | None
    rows: tuple

    def __repr__(self):
        head = ("offer", "cards, USD", "best layout", "tokens/s", "times now", "beyond doubt")
        present = ("as it is", "", "none fits", "", "", "")
        if self.now:
            present = ("as it is", "", self.now.layout, f"{self.now.tokens_per_s:,.0f}", "1.00", "")
        return markdown(head, [present, *map(self._row, self.rows)])

    def draw(self, *, note=""):
        """Predicted tokens per second of each offer with its interval, and a line where the machine is now."""
        from labkit.draw_purchases import draw_purchases

        return draw_purchases(self, note=note)

    def gain(self, best):
        """Tokens per second ÷ those of now; infinite where nothing fits now, 0 where nothing fits then."""
        if best is None:
            return 0.0
        return best.tokens_per_s / self.now.tokens_per_s if self.now else float("inf")

    def is_clear(self, best):
        """Whether even the lower end of the interval is above the upper end of now's."""
        if best is None:
            return False
        return self.now is None or best.interval[0] > self.now.interval[1]

    def _row(self, row):
        offer, best = row
        price = "not known" if offer.price_usd is None else f"{offer.price_usd:,.0f}"
        if best is None:
            return offer.name, price, "none fits", "", "", ""
        doubts = best.doubts or (self.now and self.now.doubts)
        clear = ("yes, but unvalidated" if doubts else "yes") if self.is_clear(best) else "no"
        return offer.name, price, best.layout, f"{best.tokens_per_s:,.0f}", f"{self.gain(best):.2f}", clear


def offers(server=hardware.RTX4090_SERVER):
    """The usual Offers to the owner of a server of 4090s: link, host, memory, another card, a second server.

    A second server costs its cards here, without host and network, of which no price is at hand.
    """
    card, network = server.card, "100G InfiniBand"
    lacking = card.memory_bytes - card.usable_bytes
    doubled = server.with_(source=CARDS_OF_48, memory_bytes=48 * GIB, usable_bytes=48 * GIB - lacking)
    newer = hardware.RTX5090_SERVER.with_(cards=server.cards)
    wider = Source(ESTIMATED, "all else as in the server at hand")
    return (
        Offer("link: driver with peer-to-peer", server.with_(source=wider, peer_to_peer=True), 0.0),
        Offer("host: good instead of ordinary", hardware.RTX4090_GOOD_HOST.with_(cards=server.cards)),
        Offer("memory: cards of 48 GB", doubled),
        Offer(f"card: {server.cards} RTX 5090", newer, server.cards * hardware.RTX5090.price_usd),
        Offer("a second server, " + network, hardware.cluster(2, network, server=server), server.cards * card.price_usd),
    )


def compare(model, offered, *, on=hardware.RTX4090_SERVER, **training):
    """Returns Purchases: the best plan on each offered machine, and on the present one; `training` as for `plan`."""
    best = partial(_best, model, training)
    rows = [(offer, best(offer.machine)) for offer in offered]
    now = best(on)
    return Purchases(now, tuple(sorted(rows, key=lambda row: -(row[1].tokens_per_s if row[1] else 0.0))))


def _best(model, training, machine):
    return plan(model, on=machine, most=1, **training).best
