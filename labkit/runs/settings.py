"""The configuration of a row: what a cell leaves open is assumed, and said so."""

import re

from labkit.runs import cells, hosts, layout, models, shapes, stacks
from labkit.runs.configuration import Configuration
from labkit.runs.row import Row, Unsupported

SEQ_LEN, ACCUMULATE, MICRO_BATCH, STREAMED_MICRO_BATCH, WINDOW = 2048, 8, 1, 16, 1024
MOST_LAYERS, MOST_CARDS = 1000, 100_000
NO_TRANSFORMER = r"resnet|inception|ssd300|\bvgg|gnmt|\bncf\b|tacotron|waveglow|densenet|efficientnet|diffusion"


def configuration(row: Row) -> Configuration:
    """Returns a row's configuration, filling `assumed` and `messages`; Unsupported where no estimate is possible."""
    model = _model(row)
    said = layout.parse(row.text("layout"))
    row.messages += said.messages
    ways = _ways(row, said)
    adapter = re.search(r"lora", _setup(row), re.IGNORECASE) is not None
    base = "nf4" if adapter and re.search(r"qlora|nf4|4.?bit|int4", _setup(row), re.IGNORECASE) else "bf16"
    stack = stacks.saving(stacks.of(row, _setup(row)), _setup(row), model.hidden)
    seq_len = _seq_len(row, model)
    return Configuration(
        model=model,
        seq_len=seq_len,
        dtype=_dtype(row),
        stack=stack,
        **_batches(row, ways["dp"], seq_len, said),
        **ways,
        zero=_zero(row, said, stack, ways["dp"]),
        shard_weights=said.shard_weights,
        chunks=said.chunks if ways["pp"] > 1 else 1,
        offload=said.offload,
        recompute=_recompute(row, said, stack),
        adapter_rank=stacks.ADAPTER_RANK if adapter else 0,
        base=base,
        window=_window(row),
        reduce_always=re.search(r"\bno no_sync", row.text("notes"), re.IGNORECASE) is not None,
        head_chunks=said.head_chunks,
        copy_engine_collectives=said.copy_engine_collectives,
        machine=hosts.of(row, said.nodes, ways["dp"] * ways["tp"] * ways["pp"]),
    )


def _setup(row):
    return " ".join(row.text(column) for column in ("model", "precision", "layout"))


def _model(row):
    name = row.text("model")
    if re.search(NO_TRANSFORMER, name, re.IGNORECASE):
        raise Unsupported(f"{name} is no transformer of equal blocks: its layers are not in the table and the row has no shape")
    known = models.find(name)
    shape = {column: int(min(cells.positive(row.text(column)) or 0, 1e7)) for column in ("layers", "hidden", "heads", "vocab")}
    if known:
        return _adjusted(row, known, shape)
    if shape["layers"] and shape["hidden"]:
        _check_layers(shape["layers"])
        row.assume(f"model {name!r} is not in the table: gated MLP of 8/3 hidden, as many kv heads as heads")
        if not shape["vocab"]:
            row.assume("vocab 32,000")
        return shapes.of_shape(name or "unnamed", **shape | {"vocab": shape["vocab"] or 32000})
    size = cells.positive(row.text("params")) or cells.positive(_size(name))
    if not size or not 1e6 <= size <= 1e14:
        raise Unsupported(f"model {name!r} is not in the table, and the row states neither layers and hidden nor params")
    row.assume(f"model {name!r} is not in the table: a Llama-like shape of {size:.3g} parameters")
    return shapes.of_size(name or "unnamed", size, vocab=shape["vocab"] or 32000)


def _check_layers(layers):
    if layers > MOST_LAYERS:
        raise Unsupported(f"layers is {layers:,}; at most {MOST_LAYERS:,} are replayed")


def _size(name):
    found = re.search(r"\d+(\.\d+)?\s*[bBmM]\b", name)
    return found.group() if found else ""


def _adjusted(row, model, shape):
    """The named model with what the row states otherwise, such as half of its layers."""
    _check_layers(shape["layers"])
    stated = {key: value for key, value in shape.items() if value and value != getattr(model, key)}
    if "hidden" in stated or "heads" in stated and stated["heads"] != model.heads and model.hidden % stated["heads"]:
        row.assume(f"{model.name} with the row's own shape {stated}")
        whole = {"layers": model.layers, "vocab": model.vocab, "hidden": model.hidden} | stated
        return shapes.of_shape(row.text("model"), **whole)
    if model.positions and re.search(r"\brope\b|rotary", row.text("model"), re.IGNORECASE):
        stated["positions"] = 0
    return shapes.changed(model, **stated)


def _ways(row, said):
    cards = cells.positive(row.text("n_gpus"))
    ways = {key: said.ways.get(key, 1) for key in ("dp", "tp", "pp")}
    product = ways["dp"] * ways["tp"] * ways["pp"]
    if cards is None:
        row.assume(f"n_gpus {product}, the product of the layout's ways")
    elif "dp" not in said.ways:
        ways["dp"] = max(1, int(cards) // (ways["tp"] * ways["pp"]))
        if cards > 1:
            row.assume(f"dp {ways['dp']}, what n_gpus leaves")
    elif product != int(cards):
        row.messages.append(f"n_gpus is {int(cards)}, the layout makes {product}; the layout was taken")
    if ways["dp"] * ways["tp"] * ways["pp"] > MOST_CARDS:
        raise Unsupported(f"{ways} are more than {MOST_CARDS:,} cards")
    return ways


def _seq_len(row, model):
    stated = cells.positive(row.text("seq_len"))
    if stated and stated <= 1e8:
        return max(1, int(stated))
    default = 384 if not model.causal else min(SEQ_LEN, model.positions or SEQ_LEN)
    row.assume(f"seq_len {default}")
    return default


def _batches(row, dp, seq_len, said):
    accumulate = said.micro_batches
    # Who streams the weights through the card uses large micro-batches: else it would only wait for them.
    default = STREAMED_MICRO_BATCH if said.offload & {"weights", "quantised_weights"} else MICRO_BATCH
    total, micro = (_batch(row, column, seq_len) for column in ("global_batch", "micro_batch"))
    if not micro:
        micro = _hint(row) or (max(1, total // (dp * accumulate)) if total and accumulate else default)
        row.assume(f"micro_batch {micro}")
    if not total:
        total = micro * dp * (accumulate or ACCUMULATE)
        row.assume(f"global_batch {total}")
    if dp <= total < micro * dp:
        row.messages.append(f"global_batch {total} is less than micro_batch {micro} x dp {dp}; a smaller micro-batch was taken")
    if total < dp:
        row.messages.append(f"global_batch {total} leaves some of {dp} data-parallel cards without a sequence; {dp} was taken")
        total = dp
    return {"global_batch": total, "micro_batch": min(micro, max(1, total // dp))}


def _hint(row):
    """The number in "not stated (12 default)"."""
    text = row.text("micro_batch")
    found = cells.number(text) if re.search(r"likely|default|assum|guess", text) else None
    return int(min(found, 1e9)) if found and found >= 1 else None


def _batch(row, column, seq_len):
    value = cells.positive(row.text(column))
    if value and "token" in row.text(column).lower():
        value /= seq_len
    return max(1, int(min(value, 1e12))) if value else 0


def _dtype(row):
    text = row.text("precision").lower()
    if not text:
        row.assume("precision bf16")
    if re.search(r"fp8|e4m3|float8", text) and not re.search(r"fp8 in parts", text):
        return "float8"
    if re.search(r"bf16|bfloat|nf4|int4|8.?bit", text) or not text:
        return "bfloat16"
    if re.search(r"fp16|float16|half|amp", text):
        return "float16_accumulate" if re.search(r"fp16 acc", text) else "float16"
    if re.search(r"tf32|tensorfloat", text):
        return "tfloat32"
    if re.search(r"fp32|float32|single", text):
        return "float32"
    row.assume(f"precision bf16, since {row.text('precision')!r} is not known")
    return "bfloat16"


def _zero(row, said, stack, dp):
    if said.zero is not None:
        return said.zero
    if dp > 1:
        row.assume("zero 0 (plain data parallelism)")
    return 0


def _recompute(row, said, stack):
    if said.recompute is None or re.search(r"recomp\w*\s*[=:]\s*(not|unknown)", row.text("layout")):
        row.assume("recompute none")
    return said.recompute or frozenset()


def _window(row):
    text = row.text("model") + " " + row.text("layout")
    found = re.search(r"window\D{0,3}(\d+)", text)
    if not found and re.search(r"flexattention|sliding window", text, re.IGNORECASE):
        row.assume(f"attention window {WINDOW}")
        return WINDOW
    return int(found.group(1)[:8]) if found else 0
