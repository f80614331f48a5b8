"""A GPT, written to be read and to be cut: `embed`, `blocks` and `head`, one after another.

Shapes: B sequences, T tokens in each, D d_model, H heads, E = D / H width of a head, F = 4 D, V vocabulary.
Architecture: Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), 2019, without dropout.
"""

from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention, [B, T, D] -> [B, T, D].

    Query, key and value are three linears: the rows of one head lie together in each weight, so the heads of one rank
    are one slice (of a fused weight they would be three). `forward` reads the number of heads from the shape, so the
    same code runs on a slice. They have no bias: softmax cancels the key's (its gradient would be rounding noise, which
    Adam blows up), and the output's bias covers the value's.
    """

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.head_width = d_model // heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        query, key, value = (self.split_heads(linear(x)) for linear in (self.query, self.key, self.value))
        mixed = self.attend(query, key, value)  # [B, H, T, E]
        return self.output(mixed.transpose(1, 2).flatten(2))  # [B, T, H E] @ [H E, D]

    def split_heads(self, x):
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # [B, T, H E] -> [B, H, T, E]

    def attend(self, query, key, value):
        """Mix the values of the tokens up to each token: the only place where tokens meet."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class MLP(nn.Module):
    """Two linears with a GELU between them, [B, T, D] -> [B, T, D]."""

    def __init__(self, d_model: int):
        super().__init__()
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))  # [B, T, F] @ [F, D]


class Block(nn.Module):
    """One layer: attention, then MLP, each behind a norm and added to its input, [B, T, D] -> [B, T, D]."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, heads)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = MLP(d_model)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nn.Module):
    """Tokens [B, T] -> vectors [B, T, D]: one vector per token id plus one per position."""

    def __init__(self, vocab_size: int, seq_len: int, d_model: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(seq_len, d_model)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]  # [B, T, D] + [T, D]


class Head(nn.Module):
    """Vectors [B, T, D] -> logits [B, T, V]: the last norm and a linear without bias."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, x):
        return self.output(self.norm(x))  # [B, T, D] @ [D, V]


class GPT(nn.Module):
    """Embed, then every block, then head: tokens [B, T] -> logits [B, T, V].

    A part that is left out (`blocks` lists the layers to keep) is an `nn.Identity`, so a stage has the same `forward`
    and the same parameter names as the whole, and takes or gives [B, T, D] where it was cut.
    """

    def __init__(self, *, layers, d_model, heads, vocab_size, seq_len, embed=True, blocks=None, head=True):
        super().__init__()
        kept = range(layers) if blocks is None else blocks
        self.embed = Embedding(vocab_size, seq_len, d_model) if embed else nn.Identity()
        self.blocks = nn.ModuleList(Block(d_model, heads) if i in kept else nn.Identity() for i in range(layers))
        self.head = Head(d_model, vocab_size) if head else nn.Identity()

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
