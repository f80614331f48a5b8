"""The GPT against a computation written out by hand, its parts against the whole, and its initial values."""

import math

import pytest
import torch
from torch.nn import functional as F

from labkit.jobs import CPU, RTX_4090, SMALL
from labkit.model import Attention

TOKENS = torch.randint(256, (3, 19), generator=torch.Generator().manual_seed(1))


def attention_by_hand(x, layer, heads):
    """Attention with one loop per head and an explicit mask."""
    width = x.shape[-1] // heads
    later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    mixed = []
    for h in range(heads):
        rows = slice(h * width, (h + 1) * width)
        query, key, value = (x @ linear.weight[rows].T for linear in (layer.query, layer.key, layer.value))
        scores = (query @ key.transpose(1, 2) / math.sqrt(width)).masked_fill(later, -math.inf)
        mixed.append(scores.softmax(-1) @ value)
    return torch.cat(mixed, -1) @ layer.output.weight.T + layer.output.bias


def norm_by_hand(x, layer):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def logits_by_hand(model, tokens, heads):
    x = model.embed.tokens.weight[tokens] + model.embed.positions.weight[torch.arange(tokens.shape[1])]
    for block in model.blocks:
        x = x + attention_by_hand(norm_by_hand(x, block.attention_norm), block.attention, heads)
        hidden = norm_by_hand(x, block.mlp_norm) @ block.mlp.up.weight.T + block.mlp.up.bias
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        x = x + hidden @ block.mlp.down.weight.T + block.mlp.down.bias
    return norm_by_hand(x, model.head.norm) @ model.head.output.weight.T


def shaken(model):
    """Move every parameter, so that no bias is 0 and no norm 1."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 10
    return model


def test_logits_and_gradients_equal_the_computation_by_hand():
    model = shaken(SMALL.model())
    targets = TOKENS.roll(1, 0)
    logits, expected = model(TOKENS), logits_by_hand(model, TOKENS, SMALL.heads)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad(SMALL.loss(logits, targets), list(model.parameters()))
    probabilities = expected.log_softmax(-1).gather(-1, targets[..., None])
    by_hand = torch.autograd.grad(-probabilities.mean(), list(model.parameters()))
    for got, wanted in zip(gradients, by_hand, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-12)


def test_a_token_changes_no_logits_before_it():
    model = shaken(SMALL.model())
    changed = TOKENS.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 256
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=1e-12)
    assert (before[:, 10:] - after[:, 10:]).abs().amax(-1).min() > 1e-6


def test_model_is_head_of_blocks_of_embed():
    model = SMALL.model()
    x = model.embed(TOKENS)
    assert x.shape == (3, 19, SMALL.d_model)
    for block in model.blocks:
        x = block(x)
    assert torch.equal(model.head(x), model(TOKENS))
    assert model(TOKENS).shape == (3, 19, SMALL.vocab_size)


def test_slices_of_heads_add_up_to_the_attention():
    """The cut of tensor parallelism: rows of query, key and value, columns of the output, its bias once."""
    whole = shaken(SMALL.model()).blocks[0].attention
    x = torch.randn(2, 9, SMALL.d_model, dtype=torch.float64)
    total = whole.output.bias.expand_as(x)
    for rows in (slice(0, 16), slice(16, 64)):  # 1 head and 3 heads
        part = Attention(SMALL.d_model, SMALL.heads).double()
        for name in ("query", "key", "value"):
            getattr(part, name).weight = torch.nn.Parameter(getattr(whole, name).weight[rows])
        part.output.weight = torch.nn.Parameter(whole.output.weight[:, rows])
        part.output.bias = None
        total = total + part(x)
    torch.testing.assert_close(total, whole(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_have_the_names_and_values_of_the_whole_bit_by_bit(tied):
    job = SMALL.replace(tied=tied)
    whole = job.model()
    first, last = job.model(blocks=range(2), head=False), job.model(blocks=(2, 3), embed=False)
    names = [name for stage in (first, last) for name in stage.state_dict()]
    assert names == list(whole.state_dict())
    for stage in (first, last):
        for name, value in stage.state_dict().items():
            assert torch.equal(value, whole.state_dict()[name]), name
    assert torch.equal(last(first(TOKENS)), whole(TOKENS))


def test_one_block_alone_equals_its_part():
    alone = SMALL.model(embed=False, blocks=[2], head=False)
    assert [name for name, _ in alone.named_parameters() if not name.startswith("blocks.2.")] == []
    x = torch.randn(2, 7, SMALL.d_model, dtype=torch.float64)
    assert torch.equal(alone(x), SMALL.model().blocks[2](x))


def test_a_missing_block_is_refused():
    with pytest.raises(ValueError, match="no block 4: the model has blocks 0 to 3"):
        SMALL.model(blocks=range(2, 5))


def test_tied_head_shares_the_weight_and_gathers_both_gradients():
    job = SMALL.replace(tied=True)
    tied = job.model()
    assert tied.head.output.weight is tied.embed.tokens.weight
    job.loss(tied(TOKENS), TOKENS).backward()
    first, last = job.model(blocks=range(2), head=False), job.model(blocks=(2, 3), embed=False)
    job.loss(last(first(TOKENS)), TOKENS).backward()
    total = first.embed.tokens.weight.grad + last.head.output.weight.grad
    torch.testing.assert_close(tied.embed.tokens.weight.grad, total, rtol=1e-10, atol=1e-14)
    assert last.head.output.weight.grad.abs().max() > 1e-6 < first.embed.tokens.weight.grad.abs().max()


def test_initial_values_depend_on_the_name_and_the_seed_only():
    values = SMALL.model().state_dict()
    deeper = SMALL.replace(blocks=6, seq_len=8).model().state_dict()
    for name in ("blocks.1.attention.query.weight", "blocks.3.mlp.up.weight", "embed.tokens.weight"):
        assert torch.equal(values[name], deeper[name])
    assert not torch.equal(values["blocks.1.mlp.up.weight"], values["blocks.2.mlp.up.weight"])
    assert not torch.equal(values["blocks.1.mlp.up.weight"], SMALL.replace(seed=1).model().blocks[1].mlp.up.weight)


def test_initial_values_are_those_of_gpt_2():
    job = CPU.replace(blocks=8)
    for name, value in job.model().state_dict().items():
        if name.endswith("bias"):
            assert torch.equal(value, torch.zeros_like(value)), name
        elif "norm" in name:
            assert torch.equal(value, torch.ones_like(value)), name
        else:
            std = 0.02 / 4 if name.endswith(("attention.output.weight", "mlp.down.weight")) else 0.02
            error = 5 / math.sqrt(value.numel())
            assert abs(value.std() / std - 1) < error and abs(value.mean() / std) < error, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_start_from_the_same_values_rounded(dtype):
    job = SMALL.replace(dtype=dtype, master_weights=dtype == torch.bfloat16)
    for got, wanted in zip(job.model().parameters(), SMALL.model().parameters(), strict=True):
        assert got.dtype == dtype and wanted.dtype == torch.float64
        assert torch.equal(got, wanted.to(dtype))


def test_building_leaves_the_random_stream_and_default_device_alone():
    state = torch.get_rng_state()
    with torch.device("meta"):
        model = SMALL.model()
    assert torch.equal(torch.get_rng_state(), state)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("frozen", [("embed", "blocks.1"), "blocks.10", ("blocks.0.mlp.up.bias",)], ids=str)
def test_frozen_parts_and_no_others_are_not_trained(frozen):
    model = SMALL.replace(blocks=11, frozen=frozen).model()
    got = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    parts = (frozen,) if isinstance(frozen, str) else frozen
    assert got == {name for name in model.state_dict() for part in parts if name == part or name.startswith(part + ".")}


def test_a_frozen_embedding_freezes_the_tied_head_of_a_stage():
    job = SMALL.replace(tied=True, frozen=("embed.tokens",))
    assert not job.model(embed=False).head.output.weight.requires_grad
    assert job.model(embed=False).head.norm.weight.requires_grad


@pytest.mark.parametrize(
    "job",
    [SMALL, SMALL.replace(tied=True), CPU, RTX_4090.replace(blocks=1), CPU.replace(blocks=3, d_model=96, vocab_size=301)],
    ids=str,
)
def test_parameters_are_counted_by_the_formula(job):
    assert sum(parameter.numel() for parameter in job.model().parameters()) == job.parameters


def test_flops_are_counted_by_the_formula():
    """Against torch's own counter: two matmuls of attention per token pair, forward and twice that backward."""
    from torch.utils.flop_counter import FlopCounterMode

    job = SMALL.replace(tied=True)
    model = job.model()
    tokens = TOKENS[:1, :1].expand(2, job.seq_len)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == pytest.approx(job.flops_per_token * tokens.numel(), rel=1e-12)
