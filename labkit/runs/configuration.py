"""One training run as numbers: model, batch, precision, layout, software and machine. What the reader makes of a row."""

from dataclasses import dataclass, field

from labkit.machine_model import Cluster, Server
from labkit.runs.shapes import Model
from labkit.runs.stacks import PLAIN, Stack

OFFLOADS = ("master", "adam_m", "adam_v", "gradients", "weights", "quantised_weights", "activations")
RECOMPUTES = ("block", "ffn", "attention", "attention_core", "qkv", "norm", "swiglu")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A run. Batches count sequences: `global_batch` of all cards and micro-batches, `micro_batch` of one card and pass.

    dtype          of block matmuls: "bfloat16", "float8", "float16", "float16_accumulate", "float32"
    zero           stage 0 to 3; shard_weights: weights are sharded though the gradients are not
    chunks         model chunks per pipeline stage (interleaved schedule where above 1)
    offload        of OFFLOADS, what lives in the host's memory; recompute: of RECOMPUTES, what backward makes again
    adapter_rank   of LoRA adapters on a frozen base, 0: everything is trained; base: "bf16" or "nf4"
    window         attention looks back so many tokens at most, 0: all
    reduce_always  gradients are reduced after every micro-batch, not only after the last one
    copy_engine_collectives  "all" or "gathers": those that the copy engines carry, the multiprocessors left alone
    head_chunks    logits are made in so many parts, 0: as the software does it
    """

    model: Model
    seq_len: int
    global_batch: int
    micro_batch: int
    machine: Server | Cluster = field(hash=False)
    dtype: str = "bfloat16"
    stack: Stack = PLAIN
    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    shard_weights: bool = False
    chunks: int = 1
    offload: frozenset = frozenset()
    recompute: frozenset = frozenset()
    adapter_rank: int = 0
    base: str = "bf16"
    window: int = 0
    reduce_always: bool = False
    head_chunks: int = 0
    copy_engine_collectives: str = ""

    def __post_init__(self):
        for name in ("seq_len", "global_batch", "micro_batch", "dp", "tp", "pp", "chunks"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero is {self.zero}; ZeRO has stages 0 to 3")
        if self.pp * self.chunks > self.model.layers:
            raise ValueError(f"{self.model.layers} layers do not fill {self.pp} stages of {self.chunks} chunks; use fewer stages")
        if self.chunks > 1 and self.pp == 1:
            raise ValueError(f"{self.chunks} chunks on 1 stage; chunks are of a pipeline with several stages")
        if self.cards > self.machine.world_size:
            raise ValueError(f"dp {self.dp} x tp {self.tp} x pp {self.pp} = {self.cards} cards; {self.machine.name} has fewer")
        unknown = (self.offload - set(OFFLOADS)) | (self.recompute - set(RECOMPUTES))
        if unknown:
            known = f"offload {', '.join(OFFLOADS)}; recompute {', '.join(RECOMPUTES)}"
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown; {known}")

    @property
    def cards(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        return max(1, round(self.global_batch / (self.dp * self.micro_batch)))

    @property
    def sequences(self) -> float:
        """Sequences of one micro-batch on average: the global batch does not always divide."""
        return self.global_batch / (self.dp * self.micro_batches)

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch."""
        return self.sequences * self.seq_len

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len

    @property
    def sharded(self) -> bool:
        """Whether weights are gathered from all data-parallel cards."""
        return (self.zero == 3 or self.shard_weights) and self.dp > 1

    @property
    def streamed(self) -> bool:
        """Whether block weights come from the host's memory for every pass."""
        if self.offload & {"weights", "quantised_weights"}:
            return True
        # Where the computing copy is the master itself, offloading the master offloads the weights.
        return "master" in self.offload and self.stack.master_is_weight and self.dtype != "float8"
