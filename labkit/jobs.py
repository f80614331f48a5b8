"""What is trained: one frozen description from which every rank builds the same model, loss, optimizer and batches."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from labkit import precision, refusals
from labkit.initial import build
from labkit.model import GPT
from labkit.text import GeneratedText, SourceText

# foreach=False: one operation on one tensor at a time, so a shard is updated bit for bit as in the whole (the fused
# kernel rounds the ends of a tensor otherwise), and no copies of all parameters at once.
ADAMW = {"betas": (0.9, 0.95), "weight_decay": 0.1, "foreach": False}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A GPT, its text and its optimizer; made by `job()` or `small_job()`, changed by `replace`.

    `batch_size` counts the sequences of the global batch. `dtype` is that of the parameters, with one exception:
    bfloat16 without `master_weights` keeps float32 parameters and computes under bfloat16 autocast. bfloat16 with
    `master_weights` has bfloat16 parameters and gradients, and an optimizer that updates float32 copies.
    `frozen` names the parameters, or parts such as "embed" or "blocks.0", that are not trained.
    """

    blocks: int
    d_model: int
    heads: int
    vocab_size: int
    seq_len: int
    batch_size: int
    micro_batches: int
    dtype: torch.dtype
    optimizer_args: dict = field(hash=False)
    optimizer_class: type = torch.optim.AdamW
    master_weights: bool = False
    tied: bool = False
    frozen: tuple[str, ...] = ()
    seed: int = 0
    text: SourceText | GeneratedText = SourceText()

    def __post_init__(self):
        frozen = (self.frozen,) if isinstance(self.frozen, str) else tuple(self.frozen)
        object.__setattr__(self, "frozen", frozen)
        object.__setattr__(self, "optimizer_args", dict(self.optimizer_args))
        refusals.refuse_wrong_numbers(self)
        refusals.refuse_wrong_precision(self)
        refusals.refuse_unknown_frozen(self)

    def replace(self, **changes) -> "Job":
        """Return the job with some fields changed.

        Where `batch_size` changes and `micro_batches` does not, the number of micro-batches becomes the largest
        divisor of the new batch that is not above the old number. Another `optimizer_class` without
        `optimizer_args` gets its own default arguments. ValueError: an unknown field, or numbers that do not fit together.
        """
        refusals.refuse_unknown_fields(changes, [entry.name for entry in dataclasses.fields(self)])
        batch_size = changes.get("batch_size")
        if refusals.is_count(batch_size):
            fitting = [n for n in refusals.divisors(batch_size) if n <= self.micro_batches]
            changes.setdefault("micro_batches", max(fitting))
        if changes.get("optimizer_class", self.optimizer_class) is not self.optimizer_class:
            changes.setdefault("optimizer_args", {})
        return dataclasses.replace(self, **changes)

    def model(self, *, embed: bool = True, blocks: Iterable[int] | None = None, head: bool = True) -> GPT:
        """Return the model with its initial values, on the CPU, or a part of it: a stage is a GPT too.

        `job.model(blocks=range(2, 4), embed=False)` is the second half of four blocks with the head: what it holds has
        the names and, bit for bit, the values that it has in the whole, and what it lacks is an `nn.Identity`.
        """
        blocks = range(self.blocks) if blocks is None else tuple(blocks)
        if absent := [i for i in blocks if i not in range(self.blocks)]:
            raise ValueError(f"there is no block {absent[0]}: the model has blocks 0 to {self.blocks - 1}")
        part = {"embed": embed, "blocks": blocks, "head": head}
        values = {"seed": self.seed, "dtype": self.parameter_dtype, "tied": self.tied, "frozen": self.frozen}
        return build(**values, **self.sizes, **part)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy, mean over tokens, in float32 or better; logits [..., V], targets [...]."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

    def optimizer(self, parameters: Iterable) -> torch.optim.Optimizer | precision.MasterWeights:
        """Return the optimizer of some parameters, or (name, parameter) pairs: one group, no clipping.

        AdamW treats every number apart, so ranks that hold shards update them as one device would.
        """
        parameters = [entry[1] if isinstance(entry, tuple) else entry for entry in parameters]
        if self.master_weights:
            return precision.MasterWeights(parameters, self.optimizer_class, **self.optimizer_args)
        return self.optimizer_class(parameters, **self.optimizer_args)

    def batches(self, n: int, skip: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield n global batches from number `skip` on: tokens and targets, each [B, T] int64 on the CPU."""
        for index in range(skip, skip + n):
            ids = self.text.batch(
                index,
                batch_size=self.batch_size,
                length=self.seq_len + 1,
                vocab_size=self.vocab_size,
                seed=self.seed,
            )
            yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def autocast(self, device_type: str):
        """Return the context of one step, entered by the lens and anew for every step; empty without autocast."""
        return precision.autocast(device_type, self.dtype, self.master_weights)

    @property
    def sizes(self) -> dict[str, int]:
        """The arguments of `GPT`."""
        names = ("d_model", "heads", "vocab_size", "seq_len")
        return {"layers": self.blocks, **{name: getattr(self, name) for name in names}}

    @property
    def parameter_dtype(self) -> torch.dtype:
        return precision.parameter_dtype(self.dtype, self.master_weights)

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def parameters(self) -> int:
        """How many numbers the model holds; a tied head's weight counts once."""
        blocks = self.blocks * (12 * self.d_model**2 + 10 * self.d_model)
        head = 2 * self.d_model + (0 if self.tied else self.vocab_size * self.d_model)
        return (self.vocab_size + self.seq_len) * self.d_model + blocks + head

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of forward and backward per token: 6 per weight in a matmul + 12 L D T.

        The second term is attention, without a discount for its causal half (Chowdhery et al., "PaLM", 2022,
        appendix B). The head is a matmul, tied or not; looking up an embedding is none.
        """
        weights = 12 * self.blocks * self.d_model**2 + self.vocab_size * self.d_model
        return 6 * weights + 12 * self.blocks * self.d_model * self.seq_len

    def __str__(self):
        dtype = str(self.dtype).removeprefix("torch.")
        if self.dtype == torch.bfloat16:
            dtype += " with master weights" if self.master_weights else " autocast"
        return (
            f"GPT {in_words(self.parameters)} parameters, {self.blocks} blocks, d_model {self.d_model}, "
            f"T {self.seq_len}, B {self.batch_size}, {dtype} on {self.text}"
        )


CPU_SIZES = {"blocks": 4, "d_model": 256, "heads": 4, "vocab_size": 256, "seq_len": 256, "batch_size": 8}
GPU_SIZES = {"blocks": 12, "d_model": 768, "heads": 12, "vocab_size": 50_304, "seq_len": 1024, "batch_size": 16}
SMALL_SIZES = {"blocks": 4, "d_model": 64, "heads": 4, "vocab_size": 256, "seq_len": 32, "batch_size": 8}

CPU = Job(**CPU_SIZES, micro_batches=8, dtype=torch.float32, optimizer_args=ADAMW | {"lr": 5e-4})
RTX_4090 = Job(**GPU_SIZES, micro_batches=8, dtype=torch.bfloat16, tied=True, optimizer_args=ADAMW | {"lr": 3e-4})
SMALL = Job(**SMALL_SIZES, micro_batches=4, dtype=torch.float64, optimizer_args=ADAMW | {"lr": 3e-3}, text=GeneratedText())


def job(*, device: str | None = None, **changes) -> Job:
    """Return the preset of the devices that ranks use here, with changes: 3.4 M parameters on CPU cores, 124 M on GPUs.

    A machine with one GPU counts as CPU cores: two ranks run on these. `device="cpu"` or `"cuda"` asks for the preset
    of the one or the other. Errors: as `Job.replace`.
    """
    from labkit.devices import machine

    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device={device!r} has no preset; use "cpu", "cuda" or None')
    on_gpus = device == "cuda" or (device is None and len(machine().gpus) > 1)
    return (RTX_4090 if on_gpus else CPU).replace(**changes)


def small_job(**changes) -> Job:
    """Return a job that gives the same numbers on every machine: float64, 0.2 M parameters, a generated stream."""
    return SMALL.replace(**changes)


def in_words(parameters: int) -> str:
    if parameters < 1e6:
        return f"{parameters / 1e3:.0f} k"
    return f"{parameters / 1e6:.{0 if parameters >= 1e8 else 1}f} M"
