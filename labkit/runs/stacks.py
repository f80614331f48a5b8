"""What each training software moves through the card's memory beside the matrix products, written from its documentation.

A piece such as "mlp f6" is one kernel that reads and writes 6 bytes per token and element of a width: h hidden, q and k
the query and key/value widths, f the MLP's. Two bytes are one pass over bfloat16. Before it stands its part of the block:
a recompute setting repeats, or need not keep, the pieces of some parts; "rotary" ones are of models with rotary positions.
"""

import re
from dataclasses import dataclass, replace

ADAPTER_RANK = 64  # fsdp_qlora's default


def pieces(text: str) -> tuple:
    """Returns ((part, symbol, bytes), …) of "part symbol-bytes, …"."""
    return tuple((part, width[0], float(width[1:])) for part, width in (one.split() for one in text.split(",")))


@dataclass(frozen=True)
class Stack:
    """One software; bytes of weights, gradients and states are per parameter.

    forward, backward  pieces of one block; quantise: what float8 adds to both
    head               bytes per token and vocabulary entry that loss and logits move, forward and backward together
    logits_bytes       of logits and their copies alive at once, per entry
    head_rows          tokens whose logits are made at once: 0 all, -1 as Liger's fused loss does it, -2 no more than 2.5 GiB
    cast_bytes         moved per micro-batch to make the computing copy of the weights
    accumulate_bytes   moved per micro-batch to add its gradients to the others
    master_bytes, moment_bytes   of the optimizer's own copy, and of each moment; update_bytes: what the optimizer moves
    master_is_weight   blocks compute with the master copy itself, in bfloat16
    direct             every card reads offloaded weights from the host's memory itself, rather than its shard
    fused              one product for queries, keys and values, one for gate and up
    adapters           bytes per element of an adapted matrix's input and output, (forward, backward)
    kept               pieces that stay for backward; live: what one block's backward needs beside them, once
    live_stays         that is there all the time, rather than only when logits are not
    reserve            what the allocator holds beyond what is used, in micro-batches of hidden states
    checkpoint_bytes   kept per hidden element of a recomputed block; other_bytes: context and libraries where counted
    """

    name: str
    forward: tuple
    backward: tuple
    quantise: tuple = ((), ())
    head: float = 12
    logits_bytes: float = 4
    head_rows: int = 0
    cast_bytes: float = 0
    accumulate_bytes: float = 6
    weight_bytes: float = 2
    gradient_bytes: float = 2
    master_bytes: float = 0
    moment_bytes: float = 4
    update_bytes: float = 28
    master_is_weight: bool = False
    direct: bool = False
    fused: bool = False
    adapters: tuple = ((5, 10), (7, 10))
    kept: tuple = ()
    live: tuple = pieces("live h8, live f4")
    live_stays: bool = False
    reserve: float = 1.0
    checkpoint_bytes: float = 2
    other_bytes: float = 0.0


LLMQ = Stack(
    "LLM.Q",
    forward=pieces("norm1 h8, rotary q4, rotary k4, norm2 h8, swiglu f6"),
    backward=pieces("mlp f10, norm h8, rotary q4, rotary k4, bias q2, bias k4, norm h8"),
    quantise=(
        pieces("norm1 h3, out q5, norm2 h3, swiglu f3"),
        pieces("down h3, down f2, down h2, up f6, up h2, up f4, out h3, out q3, out h2, qkv q6, qkv k12, qkv h2"),
    ),
    head=6,
    logits_bytes=2,
    accumulate_bytes=0,
    master_bytes=2,
    moment_bytes=2,
    update_bytes=18,
    master_is_weight=True,
    direct=True,
    fused=True,
    head_rows=-2,
    kept=pieces("block h4, norm1 h2, norm2 h2, qkv q2, qkv k4, block q2, ffn f4, swiglu f2"),
    live=pieces("live h8, live f6"),
    live_stays=True,
    other_bytes=1.85 * 2**30,
)
LIGER = Stack(
    "HF Trainer with Liger kernels",
    forward=pieces("block h4, rotary q8, rotary k8, block h6, block h4, block f6, block h6"),
    backward=pieces("mlp f10, add h6, norm h6, add h6, rotary q8, rotary k8, bias q2, bias k4, add h12, norm h6, add h6"),
    head=8,
    logits_bytes=2,
    head_rows=-1,
    moment_bytes=2,
    update_bytes=14,
    kept=pieces("block h12, block q6, block k8, block f6"),
)
EAGER = Stack(
    "PyTorch, eager",
    forward=pieces("block h36, rotary q19, rotary k19, block h6, block h36, block f10, block h6"),
    backward=pieces("mlp f18, add h6, norm h60, add h6, rotary q25, rotary k25, add h12, norm h60, add h6"),
    head=46,
    logits_bytes=15,
    checkpoint_bytes=4,
    weight_bytes=4,
    gradient_bytes=4,
    kept=pieces("block h32, block q8, block k8, block f8"),
)
COMPILED = Stack(
    "torch.compile, autocast",
    forward=pieces("block h12, block q4, block k8, rotary q8, rotary k8, block h12, block f6"),
    backward=pieces("mlp f10, norm h18, heads q4, heads k8, rotary q8, rotary k8, norm h18"),
    cast_bytes=6,
    accumulate_bytes=18,
    weight_bytes=6,
    gradient_bytes=4,
    kept=pieces("block h10, block q2, block k4, block f6"),
    reserve=4.0,
    fused=True,
)
MEGATRON = Stack(
    "Megatron-LM",
    forward=pieces("block h4, rotary q12, rotary k12, block h6, block h4, block f6, block h6"),
    backward=pieces("mlp f10, add h6, norm h6, rotary q12, rotary k12, add h6, norm h6"),
    head=40,
    logits_bytes=10,
    accumulate_bytes=4,
    gradient_bytes=4,
    master_bytes=4,
    update_bytes=30,
    kept=pieces("block h4, core q2, block k2, block f4"),
    fused=True,
)
PLAIN = EAGER

# What names a software in a row, the surest first.
_NAMES = (
    (r"llama.?factory|liger", LIGER),
    (r"llm\.?q\b|cuda/c\+\+", LLMQ),
    (r"megatron|nemo\b", MEGATRON),
    (r"roundpipe", LIGER),
    (r"fsdp_qlora|peft", EAGER),
    (r"torch\.?compile|nanogpt|flexattention|inductor", COMPILED),
    (r"hf trainer|deepspeed|transformers|axolotl|unsloth", LIGER),
)
_IDS = ((r"llmq|llm\.q", LLMQ), (r"lf\b", LIGER))
_SETTINGS = (
    (r"memcpy|copy.engine|lmhead.?chunks|quantised weights|adam_[mv]\b|e4m3", LLMQ),
    (r"pure bf16|\bds\b|round.robin", LIGER),
    (r"distributed optimizer", MEGATRON),
)


def of(row, setup: str) -> Stack:
    """Returns the software that a row names, else the one that its settings are typical of, else eager PyTorch: assumed.

    A row's notes come before its address: a page that measures one software may compare it with another.
    """
    ids = tuple((rf"^({pattern})", stack) for pattern, stack in _IDS)
    texts = ((row.text("notes"), _NAMES), (setup, _NAMES), (row.id, _NAMES), (row.id, ids), (setup, _SETTINGS))
    for text, table in (*texts, (row.text("source_url"), _NAMES)):
        for pattern, stack in table:
            if re.search(pattern, text, re.IGNORECASE):
                return stack
    row.assume(f"software {PLAIN.name}")
    return PLAIN


def saving(stack: Stack, text: str, hidden: int) -> Stack:
    """Returns the software with what a row says of a smaller optimizer: 8-bit moments, of low rank, layer by layer."""
    if not re.search(r"8.?bit (optim|adam|galore)|8.?bit.{0,12}(optim|adam)", text, re.IGNORECASE):
        return stack
    low = re.search(r"rank\D{0,3}(\d{1,6})", text) if re.search(r"galore|low.rank", text, re.IGNORECASE) else None
    # Each matrix of low rank keeps a projector in bfloat16 as well, 0.56 bytes a parameter at full rank and Llama's widths.
    share = 1.56 * min(1.0, int(low.group(1)) / hidden) if low else 1.0
    gradient = 0.1 if re.search(r"per.layer", text, re.IGNORECASE) else 2
    return replace(stack, weight_bytes=2, gradient_bytes=gradient, moment_bytes=share, master_bytes=0)
