"""The shape of a transformer, and what follows from it: parameters, bytes, FLOPs. Letters: L layers, h hidden, V vocabulary."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """A decoder (or encoder) of equal blocks.

    ffn  width of the MLP, of one expert where `experts` > 1; gated: three matrices (SwiGLU, GEGLU) rather than two
    tied  one table for embedding and head; positions  length of a learned position table, 0 for rotary
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    head_width: int = 0
    tied: bool = False
    gated: bool = True
    bias: str = "none"
    positions: int = 0
    experts: int = 1
    experts_used: int = 1
    causal: bool = True

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}; it must be at least 1")
        if not self.width:
            raise ValueError(f"{self.name}: {self.heads:,} heads do not fit a hidden width of {self.hidden:,}")

    @property
    def width(self) -> int:
        """Width of one head."""
        return self.head_width or self.hidden // self.heads

    @property
    def q_width(self) -> int:
        return self.heads * self.width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.width

    @property
    def qkv_width(self) -> int:
        return self.q_width + 2 * self.kv_width

    @property
    def attention_parameters(self) -> int:
        """Matrix parameters of one block's attention."""
        return self.hidden * self.qkv_width + self.q_width * self.hidden

    @property
    def mlp_parameters(self) -> int:
        """Matrix parameters of one MLP, of one expert where there are several."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def block_parameters(self) -> int:
        """Parameters of one block, with biases, norms and all experts."""
        small = 2 * self.hidden * (2 if self.bias == "all" else 1)
        if self.bias != "none":
            small += self.qkv_width
        if self.bias == "all":
            small += 2 * self.hidden + (2 if self.gated else 1) * self.ffn
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.attention_parameters + self.experts * self.mlp_parameters + router + small

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token table, which the head shares where tied."""
        return self.vocab * self.hidden

    @property
    def outer_parameters(self) -> int:
        """Parameters outside the blocks: tables, head, last norm."""
        tables = self.embedding_parameters * (1 if self.tied else 2) + self.positions * self.hidden
        return tables + self.hidden * (2 if self.bias == "all" else 1)

    @property
    def parameters(self) -> int:
        """All parameters, each once."""
        return self.layers * self.block_parameters + self.outer_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters that a token meets in matrix products: blocks with the experts used, and the head."""
        block = self.attention_parameters + self.experts_used * self.mlp_parameters
        return self.layers * block + self.embedding_parameters

    def flops_per_token(self, seq_len: int, *, window: int = 0) -> float:
        """Returns forward and backward FLOPs of one token: 6 a matmul parameter, and the causal half of attention.

        The same count as LLM.Q's: 6 (N_blocks + V h) + 6 L h S.
        """
        return 6 * self.matmul_parameters + 3 * self.layers * self.attention_flops_per_token(seq_len, window=window)

    def attention_flops_per_token(self, seq_len: int, *, window: int = 0) -> float:
        """Returns one block's forward FLOPs of a token's scores and mixing, over the keys that it may see."""
        seen = seq_len / 2 if self.causal else seq_len
        return 4 * self.q_width * (min(seen, window) if window else seen)


def of_shape(name: str, **shape) -> Model:
    """Returns a Llama-like model of the stated shape; heads, kv heads and ffn take the usual ratios where missing.

    Usual: heads of width 128 (64 up to a hidden of 1024), as many kv heads, ffn 8/3 of the hidden rounded to 256.
    """
    hidden = shape["hidden"]
    heads = shape.get("heads") or max(1, hidden // (128 if hidden > 1024 else 64))
    ffn = shape.get("ffn") or -(-8 * hidden // 3 // 256) * 256
    more = {key: value for key, value in shape.items() if key not in ("hidden", "heads", "ffn", "kv_heads", "layers", "vocab")}
    return Model(name, shape["layers"], hidden, heads, shape.get("kv_heads") or heads, ffn, shape["vocab"], **more)


def of_size(name: str, parameters: float, *, vocab: int = 32000) -> Model:
    """Returns a Llama-like model of about so many parameters: layers = hidden / 128, hidden a multiple of 128."""
    hidden = 128
    while of_shape(name, layers=max(1, (hidden + 128) // 128), hidden=hidden + 128, vocab=vocab).parameters < parameters:
        hidden += 128
    lower = of_shape(name, layers=max(1, hidden // 128), hidden=hidden, vocab=vocab)
    layers = max(1, round((parameters - lower.outer_parameters) / lower.block_parameters))
    return replace(lower, layers=layers)


def changed(model: Model, **fields) -> Model:
    """Returns the model with other fields, heads of one width kept where their number changes."""
    if "heads" in fields and not model.head_width:
        fields["kv_heads"] = max(1, round(model.kv_heads * fields["heads"] / model.heads))
    return replace(model, **fields)
