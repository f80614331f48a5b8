"""The initial values of a GPT: one random stream per parameter name, the same for every part, dtype and device."""

import zlib

import torch
from torch.overrides import TorchFunctionMode

from labkit.model import GPT

STD = 0.02  # GPT-2, section 2.3 of the paper, as is the smaller one where a block adds to its input
ADDS_TO_INPUT = ("attention.output.weight", "mlp.down.weight")
EMBEDDING, HEAD = "embed.tokens.weight", "head.output.weight"


def build(*, seed: int, dtype: torch.dtype, tied: bool, frozen: tuple[str, ...], **sizes) -> GPT:
    """Return a GPT, or the part of one that `sizes` asks for, with its initial values, on the CPU.

    `tied` makes the head's weight the embedding's; a head that stands alone in a stage starts from the same values.
    `frozen` lists the parameters, or the parts of the model, that are not trained.
    """
    model = build_without_values(**sizes)
    values = {}
    for name, parameter in model.named_parameters():
        source = source_of(name, tied)
        values[name] = values[source] if source in values else draw(source, parameter.shape, seed, len(model.blocks))
        parameter.requires_grad_(not is_within(source, frozen))
    model.load_state_dict({name: value.to(dtype) for name, value in values.items()}, assign=True)
    if tied and {EMBEDDING, HEAD} <= values.keys():
        model.head.output.weight = model.embed.tokens.weight
    return model


def build_without_values(**sizes) -> GPT:
    """Return a GPT on the meta device: names and shapes, no memory."""
    with WithoutValues(), torch.device("meta"):
        return GPT(**sizes)


class WithoutValues(TorchFunctionMode):
    """Keeps new layers from drawing values, which on the meta device would import torch's compiler (2 s)."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def source_of(name: str, tied: bool) -> str:
    """Return the name under which a parameter is known in the whole model."""
    return EMBEDDING if tied and name == HEAD else name


def is_within(name: str, parts: tuple[str, ...]) -> bool:
    """Say whether a parameter is one of the parts or inside one: "blocks.1" holds "blocks.1.mlp.up.bias"."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def draw(name: str, shape: torch.Size, seed: int, layers: int) -> torch.Tensor:
    """Return GPT-2's initial values in float32: biases 0, norms 1, other weights normal."""
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    if name.endswith("bias"):
        return values.zero_()
    if "norm" in name:
        return values.fill_(1)
    std = STD / (2 * layers) ** 0.5 if name.endswith(ADDS_TO_INPUT) else STD
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return values.normal_(0, std, generator=generator)
