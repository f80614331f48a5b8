"""Jobs: presets, changes and refusals, the same batches everywhere, loss and optimizer against formulas."""

import hashlib
import math
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit import text
from labkit.jobs import CPU, RTX_4090, SMALL, job, small_job
from labkit.precision import MasterWeights


def digest(tensors):
    joined = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(joined).hexdigest()


def batches_digest(preset):
    return digest([tensor for batch in preset.batches(3, skip=1) for tensor in batch])


# Presets


def test_presets_are_those_of_the_design():
    assert (CPU.parameters, CPU.tokens_per_step) == (3_353_088, 2048)
    assert RTX_4090.parameters == 124_448_256 and RTX_4090.parameter_dtype == torch.float32
    assert small_job() == SMALL and small_job().dtype == torch.float64
    assert job(device="cpu") == CPU and job(device="cuda", seed=3) == RTX_4090.replace(seed=3)
    with pytest.raises(ValueError, match='device=\'gpu\' has no preset; use "cpu", "cuda" or None'):
        job(device="gpu")


@pytest.mark.parametrize(("gpus", "preset"), [((), CPU), (("a card",), CPU), (("a card", "another"), RTX_4090)])
def test_the_preset_follows_the_machine(monkeypatch, gpus, preset):
    from types import SimpleNamespace

    import labkit.devices

    monkeypatch.setattr(labkit.devices, "machine", lambda: SimpleNamespace(gpus=gpus))
    assert job(seed=5) == preset.replace(seed=5)


def test_a_job_says_what_it_is():
    assert str(CPU) == ("GPT 3.4 M parameters, 4 blocks, d_model 256, T 256, B 8, float32 on Python's own source text")
    assert "GPT 124 M" in str(RTX_4090) and "bfloat16 autocast" in str(RTX_4090)
    assert str(SMALL) == "GPT 234 k parameters, 4 blocks, d_model 64, T 32, B 8, float64 on a generated stream"


def test_a_job_travels_as_a_few_bytes():
    data = pickle.dumps(RTX_4090)
    assert pickle.loads(data) == RTX_4090 and len(data) < 2_000
    assert len({CPU, RTX_4090, SMALL, SMALL.replace()}) == 3


def test_presets_do_not_share_their_optimizer_arguments():
    small_job().optimizer_args["lr"] = 9
    assert small_job().optimizer_args["lr"] < 1


# Changes and refusals


def test_micro_batches_follow_the_batch_size_unless_given():
    assert small_job(batch_size=7).micro_batches == 1
    assert small_job(batch_size=6).micro_batches == 3
    assert small_job(batch_size=16).micro_batches == 4
    assert small_job(batch_size=6, micro_batches=6).micro_batches == 6
    assert small_job(batch_size=10**12).micro_batches == 4  # at once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batchsize": 4}, 'a job has no "batchsize"; did you mean "batch_size"?'),
        ({"xyzzy": 4}, 'a job has no "xyzzy"; it has blocks, d_model, heads,'),
        ({"heads": 5}, "d_model 64 does not divide into 5 heads; use 1, 2, 4, 8, 16 or 32"),
        ({"micro_batches": 3}, "8 sequences do not divide into 3 micro-batches; use 1, 2, 4 or 8"),
        ({"batch_size": 4, "micro_batches": 8}, "4 sequences do not divide into 8 micro-batches; use 1, 2 or 4"),
        ({"batch_size": 0}, "batch_size=0 is not a whole number of at least 1"),
        ({"batch_size": 4.0}, "batch_size=4.0 is not a whole number of at least 1"),
        ({"seq_len": -1}, "seq_len=-1 is not a whole number of at least 1"),
        ({"text": text.SourceText(), "vocab_size": 100}, "Python's own source text has 256 token ids"),
        ({"dtype": torch.float16}, "dtype=torch.float16 is not trained here; use torch.float64, torch.float32 or"),
        ({"master_weights": True}, "torch.float64 parameters are their own master weights"),
        ({"frozen": ("blocks.9",)}, 'the model has no part "blocks.9" to freeze'),
    ],
)
def test_wrong_requests_are_refused_with_the_remedy(changes, message):
    with pytest.raises(ValueError) as refusal:
        small_job(**changes)
    assert message in str(refusal.value)


# Text


@pytest.mark.parametrize("preset", [CPU, SMALL], ids=["source", "generated"])
def test_batches_are_int64_and_targets_are_the_next_tokens(preset):
    for tokens, targets in preset.batches(2):
        assert tokens.dtype == targets.dtype == torch.int64 and tokens.is_contiguous() and targets.is_contiguous()
        assert tokens.shape == targets.shape == (preset.batch_size, preset.seq_len)
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        assert tokens.min() >= 0 and tokens.max() < preset.vocab_size


@pytest.mark.parametrize("preset", [CPU, SMALL], ids=["source", "generated"])
def test_batch_k_is_the_same_whatever_is_asked_for(preset):
    batches = list(preset.batches(5))
    assert len(batches) == 5
    (tokens, targets), *_ = preset.batches(1, skip=3)
    assert torch.equal(tokens, batches[3][0]) and torch.equal(targets, batches[3][1])
    assert not torch.equal(tokens, batches[2][0])
    assert len({digest([row]) for tokens, _ in batches for row in tokens}) == 5 * preset.batch_size


def test_batches_and_models_are_the_same_in_another_process():
    code = (
        "import random, torch; random.seed(); torch.manual_seed(7)\n"
        "from test_jobs import batches_digest, digest, CPU, SMALL\n"
        "print(batches_digest(CPU), batches_digest(SMALL), digest([p.detach() for p in SMALL.model().parameters()]))"
    )
    other = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    here = digest([parameter.detach() for parameter in SMALL.model().parameters()])
    assert other.stdout.split() == [batches_digest(CPU), batches_digest(SMALL), here]


def test_the_generated_stream_never_changes():
    (tokens, _), *_ = small_job().batches(1)
    assert tokens[0, :8].tolist() == [115, 66, 23, 118, 81, 66, 31, 158]


def test_sequences_of_the_generated_stream_follow_its_rule():
    ids = text.generate(random.Random(3).random, 4_000, 256)
    follow = sum(b == (5 * a + 3) % 256 for a, b in zip(ids, ids[1:], strict=False)) / len(ids)
    repeat = sum(a == b for a, b in zip(ids, ids[4:], strict=False)) / len(ids)
    assert 0.6 < follow < 0.8 and 0.2 < repeat < 0.6


def test_the_seed_changes_the_generated_stream():
    assert batches_digest(SMALL) != batches_digest(SMALL.replace(seed=1))


def test_source_text_is_the_library_of_the_running_python():
    paths, ends = text.source_files()
    assert any(path.endswith("argparse.py") for path in paths)
    assert not any(set(Path(path).parts) & {"test", "tests", "site-packages"} for path in paths)
    whole = b"".join(Path(path).read_bytes() for path in paths)
    assert len(whole) == ends[-1] > 2**20
    (tokens, _), *_ = CPU.batches(1, skip=2)
    for b, row in enumerate(tokens):
        start = b * (len(whole) // CPU.batch_size) + 2 * CPU.seq_len
        assert bytes(row.tolist()) == whole[start : start + CPU.seq_len]


def test_windows_join_files_and_wrap_round(tmp_path, monkeypatch):
    contents = [b"a" * 3, b"bc", b"def"]
    paths = [tmp_path / f"{i}.py" for i in range(3)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    monkeypatch.setattr(text, "source_files", lambda: ([str(path) for path in paths], [3, 5, 8]))
    joined = b"".join(contents) * 4
    for start in range(20):
        for length in (1, 2, 7, 12):
            assert text.window(start, length) == joined[start % 8 : start % 8 + length]


def test_sequences_read_on_where_they_stopped():
    first, second = CPU.batches(2)
    assert torch.equal(first[1][:, -1], second[0][:, 0])


def test_a_python_without_sources_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "long.py").write_bytes(b"#" * 2**21)
    (tmp_path / "short.py").write_bytes(b"#" * 100)
    with pytest.raises(ValueError, match="^100 bytes of Python source text"):
        text.list_files(str(tmp_path))
    with pytest.raises(ValueError, match="^0 bytes"):
        text.list_files(str(tmp_path / "nowhere"))
    (tmp_path / "long.py").write_bytes(b"#" * 2**20)
    assert text.list_files(str(tmp_path))[1] == [2**20, 2**20 + 100]


# Loss, optimizer, precision


def test_loss_is_the_mean_over_tokens_in_float32_at_least():
    logits = torch.randn(3, 5, 11, dtype=torch.float64)
    targets = torch.randint(11, (3, 5))
    by_hand = [-logits[b, t].log_softmax(0)[targets[b, t]].item() for b in range(3) for t in range(5)]
    assert SMALL.loss(logits, targets).item() == pytest.approx(sum(by_hand) / 15, rel=1e-12)
    assert SMALL.loss(logits.bfloat16(), targets).dtype == torch.float32
    assert SMALL.loss(logits, targets).dtype == torch.float64
    assert SMALL.loss(torch.zeros(2, 4, 256), torch.zeros(2, 4).long()).item() == pytest.approx(math.log(256))


def trained(preset, steps=3):
    model = preset.model()
    optimizer = preset.optimizer(model.named_parameters())
    losses = []
    for tokens, targets in preset.batches(steps):
        with preset.autocast("cpu"):
            loss = preset.loss(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, optimizer, losses


def test_the_loss_falls():
    losses = trained(SMALL, steps=40)[2]
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert sum(losses[-5:]) / 5 < losses[0] - 1


def test_optimizer_is_adamw_with_one_group_and_no_clipping():
    """Two updates with formulas (Loshchilov and Hutter, 2019), with a huge gradient first."""
    arguments = small_job().optimizer_args
    (rate, decay), (b1, b2) = (arguments["lr"], arguments["weight_decay"]), arguments["betas"]
    weight = torch.nn.Parameter(torch.randn(7, dtype=torch.float64))
    expected, m, v = weight.detach().clone(), torch.zeros(7), torch.zeros(7)
    optimizer = small_job().optimizer([weight])
    assert type(optimizer) is torch.optim.AdamW and len(optimizer.param_groups) == 1
    for step, gradient in enumerate((1e6 * torch.randn(7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)), 1):
        weight.grad = gradient
        optimizer.step()
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        update = (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + 1e-8)
        expected = expected * (1 - rate * decay) - rate * update
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shards_are_updated_bit_for_bit_as_the_whole(dtype):
    values, gradients = torch.randn(4, 200_003).to(dtype).split((1, 3))
    whole = torch.nn.Parameter(values[0].clone())
    shards = [torch.nn.Parameter(part.clone()) for part in values[0].split(997)]
    optimizers = small_job().optimizer([whole]), small_job().optimizer(shards)
    for gradient in gradients:
        whole.grad = gradient.clone()
        for shard, part in zip(shards, gradient.split(997), strict=True):
            shard.grad = part.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(torch.cat([shard.detach() for shard in shards]), whole.detach())


def test_another_optimizer_class_brings_its_own_arguments():
    changed = small_job(optimizer_class=torch.optim.SGD)
    assert type(changed.optimizer(changed.model().parameters())) is torch.optim.SGD
    kept = small_job(optimizer_class=torch.optim.AdamW)
    assert kept.optimizer_args == SMALL.optimizer_args
    given = small_job(optimizer_class=torch.optim.SGD, optimizer_args={"lr": 0.5})
    assert given.optimizer([torch.nn.Parameter(torch.ones(2))]).param_groups[0]["lr"] == 0.5


def test_bfloat16_means_autocast_over_float32_parameters():
    preset = small_job(dtype=torch.bfloat16)
    model, optimizer, losses = trained(preset)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    exact = trained(small_job())[2]
    assert losses == pytest.approx(exact, abs=0.05) and losses != exact
    with preset.autocast("cpu"):
        assert model.blocks[0].mlp.up(torch.ones(1, 64)).dtype == torch.bfloat16
    with SMALL.autocast("cpu"):
        assert SMALL.model().blocks[0].mlp.up(torch.ones(1, 64).double()).dtype == torch.float64


def test_master_weights_keep_updates_that_rounding_would_lose():
    preset = small_job(dtype=torch.bfloat16, master_weights=True)
    model, optimizer, losses = trained(preset)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert losses == pytest.approx(trained(small_job())[2], abs=0.1)
    assert {master.dtype for master in optimizer.masters} == {torch.float32}
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=1e-3)
    for _ in range(10):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert optimizer.masters[0].item() == pytest.approx(0.99, rel=1e-6)
    assert weight.item() == torch.tensor(0.99).bfloat16().item()


def test_master_weights_cost_sixteen_bytes_per_parameter():
    preset = small_job(dtype=torch.bfloat16, master_weights=True)
    model = preset.model()
    optimizer = preset.optimizer(model.parameters())
    tokens, targets = next(preset.batches(1))
    preset.loss(model(tokens), targets).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    held = [*model.parameters(), *gradients, *optimizer.masters, *states]
    assert sum(tensor.numel() * tensor.element_size() for tensor in held) == 16 * preset.parameters
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in model.parameters())
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("changes", [{}, {"dtype": torch.bfloat16, "master_weights": True}], ids=["plain", "master"])
def test_frozen_parameters_are_left_as_they_are(changes):
    preset = small_job(frozen="blocks.1", **changes)
    model, _, _ = trained(preset)
    before = preset.model().state_dict()
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert {name for name in before if name.startswith("blocks.1.")} == same
