"""Layouts of a training over cards: which there are, what each one is called, and why a model or batch refuses one."""

from dataclasses import dataclass

from labkit.operations import whole
from labkit.runs.configuration import Configuration

MICRO_BATCHES = (1, 2, 4, 8, 16)
ALL_LAYERS = frozenset({"block"})


@dataclass(frozen=True, order=True)
class Layout:
    """How a step is shared out: ways of each axis, ZeRO stage, recompute of whole blocks, sequences of a micro-batch."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    recompute: bool = False
    micro_batch: int = 1

    def __str__(self):
        ways = " · ".join(f"{axis} {getattr(self, axis)}" for axis in ("dp", "tp", "pp") if getattr(self, axis) > 1)
        zero, again = f", ZeRO-{self.zero}" if self.zero else "", ", recompute" if self.recompute else ""
        return f"{ways or 'one card'}{zero}{again}, micro-batch {self.micro_batch}"

    @property
    def cards(self):
        return self.dp * self.tp * self.pp


@dataclass(frozen=True)
class Refusal:
    """Why a layout cannot be used: `kind` in a word or two, `text` with the numbers; `over_bytes` where memory lacks."""

    kind: str
    text: str
    over_bytes: float = 0.0


def layouts(cards, *, batch, micro_batches=MICRO_BATCHES):
    """All Layouts that use every one of the cards, in a fixed order; ZeRO only where there are replicas to share it."""
    cards, batch = whole("cards", cards, 1), whole("batch", batch, 1)
    sizes = [size for size in micro_batches if whole("a micro-batch", size, 1) <= batch]
    found = []
    for tp in divisors(cards):
        for pp in divisors(cards // tp):
            dp = cards // tp // pp
            for zero in range(4 if dp > 1 else 1):
                found += [Layout(dp, tp, pp, zero, again, size) for size in sizes for again in (False, True)]
    return found


def divisors(n):
    return [one for one in range(1, n + 1) if n % one == 0]


def refusal(layout, model, batch):
    """The Refusal where the layout does not divide the model or the batch, else None; memory is another question."""
    for what, count in (("heads", model.heads), ("key/value heads", model.kv_heads)):
        if count % layout.tp:
            ways = ", ".join(map(str, divisors(count)))
            return Refusal("heads", f"{count} {what} do not divide into tp {layout.tp}; use {ways}")
    if layout.pp > model.layers:
        return Refusal("layers", f"{model.layers} layers do not fill {layout.pp} stages; use at most {model.layers}")
    if layout.zero and layout.dp == 1:
        text = f"ZeRO-{layout.zero} deals states out to replicas, and dp is 1; use 0, or tp · pp below {layout.cards}"
        return Refusal("ZeRO without replicas", text)
    if layout.zero > 1 and layout.pp > 1:
        text = f"ZeRO-{layout.zero} reduces gradients after every micro-batch, of which a pipeline has many; use 0 or 1"
        return Refusal("ZeRO and pipeline", text)
    each = layout.dp * layout.micro_batch
    if batch % each:
        text = f"a batch of {batch} does not divide into dp {layout.dp} × micro-batch {layout.micro_batch} = {each}"
        return Refusal("batch", text)
    return None


def configuration(layout, model, *, on, batch, seq_len, software, dtype="bfloat16"):
    """The Configuration of `labkit.runs` that predicts the layout."""
    return Configuration(
        model=model,
        seq_len=seq_len,
        global_batch=batch,
        micro_batch=layout.micro_batch,
        machine=on,
        dtype=dtype,
        stack=software,
        dp=layout.dp,
        tp=layout.tp,
        pp=layout.pp,
        zero=layout.zero,
        recompute=ALL_LAYERS if layout.recompute else frozenset(),
    )
