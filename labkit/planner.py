"""plan: which layouts of a training fit these cards, ranked by predicted tokens per second, and why the others do not."""

from dataclasses import dataclass, field
from functools import lru_cache

from labkit.hardware import RTX4090_SERVER
from labkit.layouts import MICRO_BATCHES, Layout, Refusal, configuration, layouts, refusal
from labkit.machine_model import Machine
from labkit.operations import whole
from labkit.plan_bound import least_step_s
from labkit.plans import Plan, Plans
from labkit.runs import memory
from labkit.runs.estimate import predict_configuration
from labkit.runs.models import MODELS, find
from labkit.runs.shapes import Model
from labkit.runs.stacks import MEGATRON

GIB = memory.GIB


def plan(model, *, on=RTX4090_SERVER, cards=None, batch=64, seq_len=2048, micro_batches=MICRO_BATCHES, software=MEGATRON, most=6):
    """Returns the Plans of training a model on `cards` cards of a machine, the `most` fastest of them predicted.

    model     a name such as "Llama-2-7B", or a labkit.runs.shapes.Model
    on        a Server or Cluster of labkit.hardware; cards: all of its cards by default
    batch     sequences of seq_len tokens in one step, of all cards; micro_batches: those to try, in sequences
    software  whose memory traffic and states are counted: a labkit.runs.stacks.Stack
    Raises ValueError for an unknown model, for more cards than there are, and for a batch below 1.
    """
    model, on = _model(model), _machine(on)
    cards = on.world_size if cards is None else whole("cards", cards, 1)
    if cards > on.world_size:
        raise ValueError(f"{on.name} has {on.world_size} cards, {cards} are asked for; use hardware.cluster(servers=…)")
    whole("seq_len", seq_len, 1)
    given = {"on": on, "batch": whole("batch", batch, 1), "seq_len": seq_len, "software": software}
    found = _Search(model, given, whole("most", most, 1))
    for layout in layouts(cards, batch=batch, micro_batches=tuple(micro_batches)):
        found.consider(layout)
    title = f"{model.name}, {batch} × {seq_len:,} tokens a step, {software.name}: predicted for {cards} of {on.name}"
    return Plans(title, *found.ranking(), tuple(found.failed))


def examine(model, layout, *, on=RTX4090_SERVER, batch=64, seq_len=2048, software=MEGATRON):
    """Returns the Plan of one Layout, predicted also where it does not fit into memory; arguments as for `plan`."""
    model, on = _model(model), _machine(on)
    if layout.cards > on.world_size:
        raise ValueError(f"{layout} takes {layout.cards} cards, {on.name} has {on.world_size}; use hardware.cluster(servers=…)")
    if no := refusal(layout, model, whole("batch", batch, 1)):
        return Plan(layout, refusal=no)
    run = configuration(layout, model, on=on, batch=batch, seq_len=whole("seq_len", seq_len, 1), software=software)
    return Plan(layout, run, predicted(run), too_large(run))


@dataclass
class _Search:
    """Sorts layouts: refused at once, or replayed in the order of what they can reach at best."""

    model: Model
    given: dict
    most: int
    fitting: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    slower: list = field(default_factory=list)

    def consider(self, layout):
        if no := refusal(layout, self.model, self.given["batch"]):
            self.failed.append(Plan(layout, refusal=no))
            return
        run = configuration(layout, self.model, **self.given)
        if no := too_large(run):
            self.failed.append(Plan(layout, run, refusal=no))
        elif layout.recompute and self.fitting and self.fitting[-1].layout == _without(layout):
            self.slower.append(Plan(layout, run, note="fits without recompute, which is faster"))
        else:
            self.fitting.append(Plan(layout, run))

    def ranking(self):
        """(ranked, slower): replays stop where no further layout can come among the best."""
        bounds = sorted(((_least_s(one.run), at, one) for at, one in enumerate(self.fitting)), key=lambda row: row[:2])
        ranked = []
        for at, (least_s, _, one) in enumerate(bounds):
            if len(ranked) >= self.most and least_s > ranked[self.most - 1].estimate.step_time_s:
                self.slower += [_at_most(least, left) for least, _, left in bounds[at:]]
                break
            ranked.append(Plan(one.layout, one.run, predicted(one.run)))
            ranked.sort(key=lambda plan: plan.estimate.step_time_s)
        return tuple(ranked[: self.most]), tuple(ranked[self.most :] + self.slower)


def too_large(run):
    """The Refusal where the fullest card lacks memory, with what it holds most of; else None."""
    held, card = memory.peak_bytes(run), run.machine.card
    total = sum(held.values())
    if total <= card.usable_bytes:
        return None
    kind, size = max(held.items(), key=lambda item: item[1])
    over = total - card.usable_bytes
    text = (
        f"{total / GIB:.1f} GiB, {over / GIB:.1f} GiB over the {card.usable_bytes / GIB:.1f} GiB of an {card.name}; "
        f"most is {kind}, {size / GIB:.1f} GiB"
    )
    return Refusal("memory", text, over)


@lru_cache(maxsize=4096)
def predicted(run):
    """The Estimate of a run, made once."""
    return predict_configuration(run)


@lru_cache(maxsize=4096)
def _least_s(run):
    return least_step_s(run)


def _at_most(least_s, one):
    return Plan(one.layout, one.run, note=f"at most {one.run.tokens_per_step / least_s:,.0f} tokens/s")


def _without(layout):
    return Layout(layout.dp, layout.tp, layout.pp, layout.zero, False, layout.micro_batch)


def _model(model):
    if isinstance(model, Model):
        return model
    found = find(model) if isinstance(model, str) else None
    if found is None:
        raise ValueError(f"model {model!r} is unknown; use one of {', '.join(MODELS)}, or a labkit.runs.shapes.Model")
    return found


def _machine(on):
    if not isinstance(on, Machine):
        raise ValueError(f"on={on!r} is no machine; pass hardware.RTX4090_SERVER, or hardware.cluster(servers=2)")
    return on
