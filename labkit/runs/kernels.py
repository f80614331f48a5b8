"""The kernels of one block, of head and loss, and of the optimizer, for a configuration: what a trace is made of.

Letters: M tokens of a micro-batch, h hidden, q and k widths of queries and of keys, f of the MLP, V vocabulary.
"""

from math import ceil, log2

from labkit.runs.configuration import Configuration
from labkit.trace_records import Kernel

EVERYTHING = {"norm1", "norm2", "qkv", "rotary", "core", "out", "ffn", "swiglu", "block"}
MOST_LOGITS = 2.5 * 2**30  # bytes at once, where a run does not say in how many chunks it makes them
TAGS = {  # what a recompute setting repeats of the forward
    "block": EVERYTHING,
    "attention": {"norm1", "qkv", "rotary", "core"},
    "attention_core": {"core"},
    "qkv": {"qkv", "rotary"},
    "ffn": {"norm2", "ffn", "swiglu"},
    "norm": {"norm1", "norm2"},
    "swiglu": {"swiglu"},
}


def forward(run: Configuration) -> list[Kernel]:
    """Returns the kernels of one block's forward pass on one card."""
    return [kernel for _, kernel in _forward(run, "forward")]


def again(run: Configuration) -> list[Kernel]:
    """Returns what backward computes a second time in one block; the down projection's output is nobody's need."""
    wanted = set().union(*(TAGS[one] for one in run.recompute)) if run.recompute else set()
    return [kernel for tag, kernel in _forward(run, "backward") if tag in wanted]


def _forward(run, phase):
    """(part, kernel) of one block: attention, MLP, then the elementwise work."""
    kernels = [("qkv", one) for one in _qkv(run, phase)]
    kernels += [("core", _attention(run, phase)), ("out", _out(run, phase))]
    kernels += [("ffn", one) for one in _up(run, phase)]
    # Checkpointing repeats the whole forward; software that recomputes by hand leaves out what nobody needs.
    kernels.append(("down" if run.stack.fused else "block", _down(run, phase)))
    pieces = run.stack.forward + (run.stack.quantise[0] if run.dtype == "float8" else ())
    kernels += _pieces(run, pieces, phase)
    return kernels + [("block", one) for one in _base(run, phase) + _adapters(run, phase, 0)]


def backward(run: Configuration) -> list[Kernel]:
    """Returns the kernels of one block's backward pass on one card, recompute left out."""
    products = [*_qkv(run, "backward"), _out(run, "backward"), *_up(run, "backward"), _down(run, "backward")]
    kernels = [one for product in products for one in _gradients(run, product)]
    kernels.append(_attention(run, "backward", backward=True))
    pieces = run.stack.backward + (run.stack.quantise[1] if run.dtype == "float8" else ())
    kernels += [one for _, one in _pieces(run, pieces, "backward")]
    return kernels + _base(run, "backward") + _adapters(run, "backward", 1) + _per_weight(run)


def _matmul(run, name, n, k, phase, *, batch=1, rows=None, dtype=None):
    """[M, k] times [k, n], of each of `batch` experts."""
    dtype = dtype or run.dtype
    m = max(1, round(rows if rows is not None else run.tokens))
    size = 1 if dtype == "float8" else 4 if "32" in dtype else 2
    moved = batch * (size * (m * k + k * n) + max(2, size) * m * n)
    return Kernel(name, 2 * batch * m * n * k, moved, dtype, (batch, m, n, k), phase)


def _gradients(run, forward):
    """The products that give the input's and the weight's gradient; a frozen weight has none."""
    batch, m, n, k = forward.shape
    inputs = _matmul(run, f"{forward.name} input", k, n, "backward", batch=batch, rows=m)
    if run.adapter_rank:
        return [inputs]
    size = 1 if run.dtype == "float8" else 2
    summed = 2 if run.stack.accumulate_bytes else 4  # fused: the sum of gradients is read and written by the product
    if run.stack.accumulate_bytes and run.stack.fused and run.stack.gradient_bytes == 4 and not run.stack.cast_bytes:
        summed = 8
    moved = batch * (size * m * (n + k) + summed * n * k)
    return [inputs, Kernel(f"{forward.name} weight", forward.flops, moved, forward.dtype, (batch, n, k, m), "backward")]


def _qkv(run, phase):
    model = run.model
    widths = (model.qkv_width,) if run.stack.fused else (model.q_width, model.kv_width, model.kv_width)
    return [_matmul(run, "qkv", max(1, width // run.tp), model.hidden, phase) for width in widths]


def _out(run, phase):
    return _matmul(run, "out", run.model.hidden, max(1, run.model.q_width // run.tp), phase)


def _up(run, phase):
    model = run.model
    width, rows = model.ffn // run.tp, run.tokens * model.experts_used / model.experts
    parts = (2 if model.gated else 1, 1) if run.stack.fused else (1, 2 if model.gated else 1)
    return [
        _matmul(run, "up", max(1, parts[0] * width), model.hidden, phase, batch=model.experts, rows=rows) for _ in range(parts[1])
    ]


def _down(run, phase):
    model = run.model
    rows = run.tokens * model.experts_used / model.experts
    return _matmul(run, "down", model.hidden, max(1, model.ffn // run.tp), phase, batch=model.experts, rows=rows)


def _attention(run, phase, *, backward=False):
    model, heads = run.model, max(1, run.model.heads // run.tp)
    flops = run.tokens * model.attention_flops_per_token(run.seq_len, window=run.window) / run.tp
    moved = run.tokens * 4 * (model.q_width + model.kv_width) / run.tp * (2 if backward else 1)
    shape = (max(1, round(run.sequences)), heads, run.seq_len, run.window or run.seq_len, model.width)
    dtype = "float32" if run.dtype == "float32" else "bfloat16"
    return Kernel("attention", round(flops * (2 if backward else 1)), round(moved), dtype, shape, phase)


def _pieces(run, pieces, phase):
    """(part, kernel) of elementwise pieces; MLP and heads are cut by tensor parallelism, the rest is not."""
    widths, size = symbol_widths(run), run.tokens * (2 if "32" in run.dtype else 1)
    used = [piece for piece in pieces if piece[0] != "rotary" or not run.model.positions]
    return [(part, _move("elementwise", size * widths[symbol] * nbytes, phase)) for part, symbol, nbytes in used]


def symbol_widths(run: Configuration) -> dict:
    """Returns the widths on one card that the symbols of a Stack's pieces name; a plain MLP has 2 of 3 gated passes."""
    model = run.model
    return {
        "h": model.hidden,
        "q": model.q_width / run.tp,
        "k": model.kv_width / run.tp,
        "f": model.ffn / run.tp * model.experts_used * (1 if model.gated else 2 / 3),
    }


def _move(name, nbytes, phase):
    return Kernel(name, 0, max(1, round(nbytes)), "bfloat16", (), phase)


def _base(run, phase):
    """A 4-bit base is made bfloat16 before each use: read half a byte, write two."""
    return [_move("dequantise", 2.5 * run.model.block_parameters / run.tp, phase)] if run.base == "nf4" else []


def _adapters(run, phase, side):
    """LoRA on all matrices but the attention's output: two thin products and the elementwise work round them."""
    if not run.adapter_rank:
        return []
    model, rank = run.model, run.adapter_rank
    pairs = [(model.hidden, model.q_width), (model.hidden, model.kv_width), (model.hidden, model.kv_width)]
    pairs += [(model.hidden, model.ffn)] * (2 if model.gated else 1) + [(model.ffn, model.hidden)]
    kernels = []
    for inputs, outputs in pairs:
        for n, k in ((rank, inputs), (outputs, rank)):
            kernels += [_matmul(run, "adapter", n, k, phase, dtype="bfloat16")] * (1 if side == 0 else 2)
        before, after = run.stack.adapters[side]
        kernels.append(_move("adapter", run.tokens * (before * inputs + after * outputs), phase))
    return kernels


def _per_weight(run):
    """What a micro-batch costs per weight of a block: the computing copy made, gradients added, float8 weights turned."""
    if run.adapter_rank:
        return []
    nbytes = run.stack.cast_bytes + run.stack.accumulate_bytes + (2 if run.dtype == "float8" else 0)
    if run.zero >= 2 and run.copy_engine_collectives == "all":  # copied pieces are added by a kernel
        nbytes += 2 + 4 / run.dp
    return [_move("weights", nbytes * run.model.block_parameters / run.tp, "backward")] if nbytes else []


def head(run: Configuration) -> list[Kernel]:
    """Returns the kernels of last norm, logits, loss and their backward on one card."""
    rows, chunks = head_rows(run)
    vocab, hidden = max(1, run.model.vocab // run.tp), run.model.hidden
    dtype = "bfloat16" if run.dtype == "float8" else run.dtype
    one = _matmul(run, "head", vocab, hidden, "backward", rows=rows, dtype=dtype)
    kernels = [one, _matmul(run, "head input", hidden, vocab, "backward", rows=rows, dtype=dtype)]
    if not run.adapter_rank:
        moved = 2 * rows * (vocab + hidden) + 4 * vocab * hidden
        kernels.append(Kernel("head weight", one.flops, round(moved), dtype, (1, vocab, hidden, rows), "backward"))
    kernels.append(_move("loss", rows * vocab * run.stack.head, "backward"))
    return [Kernel(k.name, k.flops, k.moved_bytes, k.dtype, k.shape, k.phase, chunks) for k in kernels]


def head_rows(run: Configuration) -> tuple[int, int]:
    """Returns how many tokens' logits are made at once, and in how many chunks."""
    tokens = max(1, round(run.tokens))
    if run.head_chunks:
        return ceil(tokens / run.head_chunks), run.head_chunks
    if run.stack.head_rows == -1:  # Liger: chunks as large as the input's own width, rounded up to a power of two
        rows = min(tokens, 2 ** ceil(log2(max(1, tokens * run.model.hidden / run.model.vocab))))
        return rows, ceil(tokens / rows)
    if run.stack.head_rows == -2:
        chunks = max(1, ceil(tokens * run.model.vocab / run.tp * run.stack.logits_bytes / MOST_LOGITS))
        return ceil(tokens / chunks), chunks
    return tokens, 1


def embedding(run: Configuration) -> Kernel:
    """Returns the look-up of the tokens' rows and the addition of their gradients."""
    return _move("embedding", 10 * run.tokens * run.model.hidden, "forward")


def optimizer(run: Configuration, parameters: float) -> Kernel:
    """Returns the update of so many parameters on this card, clipping's norm included."""
    return _move("update", parameters * run.stack.update_bytes, "optimizer")
