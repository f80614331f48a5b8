"""The layout cell of a row: how a run is spread over cards, what is offloaded and what is recomputed."""

import re
from dataclasses import dataclass, field

from labkit.runs import cells

_WAYS = {"dp": "dp", "ddp": "dp", "data": "dp", "tp": "tp", "tensor": "tp", "pp": "pp", "pipeline": "pp"}
_FLAGS = (
    r"memcpy.all.gather|copy.engine|ddp|fsdp|no.?shard|overlap|round.robin|per.layer|^weights$|in host memory|nodes?|servers?"
    r"|no.?sync|schedule|att\w*chunks?|1f1b|gpipe|sp$|sequence.parallel"
)
# (pattern in the cell, what it puts into the host's memory)
_OFFLOADS = (
    (r"master", ("master",)),
    (r"adam_?m|momentum", ("adam_m",)),
    (r"adam_?v|variance", ("adam_v",)),
    (r"optimi[sz]er|\bopt\b|\bos\b", ("master", "adam_m", "adam_v")),
    (r"grad", ("gradients",)),
    (r"quant\w*.{0,2}weights", ("quantised_weights",)),
    (r"param|(?<!quantised )(?<!quantized )(?<!quant )\bweights(?! streamed)", ("weights",)),
    (r"residual|activation", ("activations",)),
    (r"^(all|cpu|yes|full|everything)\b", ("master", "adam_m", "adam_v", "weights")),
)
# (pattern in the cell, what backward makes again)
_RECOMPUTES = (
    (r"full|block|whole|layer|stage|\b(yes|true|on)\b|uniform", ("block",)),
    (r"selective|\bcore\b|sac\b", ("attention_core",)),
    (r"\bffn|\bmlp", ("ffn",)),
    (r"\batt", ("attention",)),
    (r"qkv", ("qkv",)),
    (r"norm|\bln", ("norm",)),
    (r"swiglu|\bact(ivation)?\b", ("swiglu",)),
)
_NONE = r"(none|no\b|off\b|false|0|not |unknown|-|n/a)"


@dataclass
class Layout:
    """What a layout cell says; None where it says nothing. `messages` name what was not understood."""

    ways: dict = field(default_factory=dict)
    zero: int | None = None
    shard_weights: bool = False
    offload: frozenset = frozenset()
    recompute: frozenset | None = None
    chunks: int = 1
    head_chunks: int = 0
    micro_batches: int | None = None
    nodes: int | None = None
    copy_engine_collectives: str = ""
    messages: list = field(default_factory=list)


def parse(text: str) -> Layout:
    """Returns what the cell says, whatever it holds: keys and values in any order, words beside them."""
    layout = Layout()
    for key, value in cells.settings(text).items():
        if key in _WAYS:
            layout.ways[_WAYS[key]] = _whole(value)
            if "fsdp" in value.lower() and not re.search(r"no.?shard", value.lower()) and layout.zero is None:
                layout.zero = 3
        elif not _known(layout, key, value.lower()):
            layout.messages.append(f"layout: {key + ('=' + value if value else '')!r} is not known here and was left out")
    if re.search(r"copy.engine.collectives|memcpy", str(text or ""), re.IGNORECASE):
        layout.copy_engine_collectives = "gathers" if re.search(r"memcpy.all.gather", str(text), re.IGNORECASE) else "all"
    spread = re.search(r"(?:over|on)\s+(\d+)\s+gpu", str(text or ""), re.IGNORECASE)
    if spread and not layout.ways:
        layout.ways["dp"] = max(1, int(spread.group(1)))
    if re.search(r"optimizer and activations in host memory", str(text or "")):
        layout.offload |= {"master", "adam_m", "adam_v", "weights", "activations"}
    return layout


def _known(layout, key, value):
    """Puts one setting into the layout; False where the key is none of ours."""
    if re.match(r"zero|fsdp$|stage|sharding", key):
        _shard(layout, key, value)
    elif key.startswith("offload"):
        layout.offload |= _matched(_OFFLOADS, value)
        _complain(layout, key, value, layout.offload)
    elif re.match(r"recomp|checkpoint|grad.*checkpoint|activation.*checkpoint|ac$", key):
        layout.recompute = _matched(_RECOMPUTES, value or "full")
        _complain(layout, key, value, layout.recompute)
    elif re.match(r"l?m?_?head.?chunks?", key):
        layout.head_chunks = _whole(value)
    elif re.match(r"chunks|vpp|v$|virtual|interleav", key):
        layout.chunks = _whole(value)
    elif re.match(r"(num_?)?micro.?batches|gas$|grad\w*accum\w*|accum\w*", key):
        layout.micro_batches = _whole(value)
    elif re.match(r"nodes?|servers?|hosts?", key):
        layout.nodes = _whole(value)
    else:
        return re.search(_FLAGS, key) is not None
    return True


def _shard(layout, key, value):
    stage = cells.number(value) if value else cells.number(key.replace("-", " ").replace("zero", "zero "))
    layout.zero = int(min(3, max(0, stage if stage is not None else 3 if key in ("fsdp", "sharding") else 0)))
    layout.shard_weights = "weight" in value or "param" in value


def _matched(patterns, value):
    if not value or re.match(_NONE, value):
        return frozenset()
    return frozenset(one for pattern, what in patterns if re.search(pattern, value) for one in what)


def _complain(layout, key, value, found):
    if value and not found and not re.match(_NONE, value):
        layout.messages.append(f"layout: {key}={value!r} is not known here and was taken as none")


def _whole(value):
    found = cells.number(value)
    return max(1, int(min(found, 1e6))) if found else 1
