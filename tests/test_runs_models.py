"""Named models and their arithmetic, against what their authors and other people's logs say."""

import pytest

from labkit.runs import given, memory, models, shapes
from labkit.runs.estimate import model_flops_share

PUBLISHED = {  # parameters in billions, as the authors state them
    "Qwen2.5-0.5B": 0.494, "Qwen2.5-1.5B": 1.544, "Qwen2.5-3B": 3.086, "Qwen2.5-7B": 7.616, "Qwen2.5-14B": 14.77,
    "Qwen2.5-32B": 32.764, "Qwen2.5-72B": 72.706, "Qwen3-0.6B": 0.596, "Qwen3-1.7B": 1.72, "Qwen3-4B": 4.022, "Qwen3-8B": 8.19,
    "Qwen3-32B": 32.76, "Qwen3-30B-A3B": 30.53, "Qwen3-235B-A22B": 235.09, "Llama-2-7B": 6.738, "Llama-2-13B": 13.016,
    "Llama-2-70B": 68.977, "Llama-3-8B": 8.03, "Llama-3-70B": 70.554, "Llama-3-405B": 405.85, "Llama-3.2-1B": 1.236,
    "Llama-3.2-3B": 3.213, "TinyLlama-1.1B": 1.1, "SmolLM2-135M": 0.1345, "Mistral-7B": 7.242, "Mixtral-8x7B": 46.70,
    "Yi-6B": 6.061, "Yi-34B": 34.389, "Baichuan2-7B": 7.506, "Baichuan2-13B": 13.897, "Gemma-2B": 2.506, "Gemma-7B": 8.538,
    "Gemma-2-9B": 9.242,
    "Phi-3-mini": 3.821, "Phi-2": 2.78, "GPT-J-6B": 6.05, "Pythia-6.9B": 6.857, "OPT-6.7B": 6.658, "GPT-2-124M": 0.1244,
    "GPT-2-355M": 0.3548, "GPT-2-1.5B": 1.5576, "GPT-3-175B": 174.6, "BERT-large": 0.334,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_parameters_are_those_that_the_authors_state(name, billions):
    assert models.MODELS[name].parameters == pytest.approx(billions * 1e9, rel=2e-3)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama3.1-8B (full fine-tune)", "Llama-3-8B"),
        ("meta-llama/Llama-2-7b-hf", "Llama-2-7B"),
        ("LLaMA-7B pre-training, 8-bit GaLore Adam", "Llama-1-7B"),
        ("Qwen2.5 1.5B (from scratch)", "Qwen2.5-1.5B"),
        ("qwen2-7b-instruct", "Qwen2.5-7B"),
        ("GPT2-XL", "GPT-2-1.5B"),
        ("GPT-2 124M (nanoGPT)", "GPT-2-124M"),
        ("Yi-34B QLoRA", "Yi-34B"),
        ("Mistral 7B v0.1", "Mistral-7B"),
        ("a model of ours", None),
        ("", None),
    ],
)
def test_names_are_found_in_what_people_write(text, name):
    found = models.find(text)
    assert (found.name if found else None) == name


def test_a_size_alone_gives_a_shape_of_about_that_size():
    for parameters in (1e8, 1e9, 7e9, 7e10):
        assert shapes.of_size("x", parameters).parameters == pytest.approx(parameters, rel=0.05)


def test_flops_are_those_behind_the_utilisation_that_llmq_reports():
    compared = 0
    for row in given.rows():
        if row.id.startswith("LLMQ") and row.measured("mfu"):
            share, peak = model_flops_share(row.configuration, row.measured_step_s)
            assert share == pytest.approx(row.measured("mfu"), abs=0.004), row.id
            assert "165.2" in peak and ("330.3" in peak) == row.id.endswith("fp8")
            compared += 1
    assert compared == 20


def test_states_of_a_stage_are_those_that_megatron_allocated():
    run = next(row.configuration for row in given.rows() if row.id == "INF-3.5B-8")
    held = memory.peak_bytes(run)
    states = held["weights"] + held["gradients"] + held["optimizer state"]
    assert states / 2**20 == pytest.approx(10_770.4, rel=3e-3)  # its log, weights and optimizer of the first stage


def test_the_allocator_printout_of_llmq_is_met():
    run = next(row.configuration for row in given.rows() if row.id == "LLMQ-README-1x-0.5B-fp8")
    held = {kind: nbytes / 2**20 for kind, nbytes in memory.peak_bytes(run).items()}
    assert held["weights"] == pytest.approx(601, rel=0.01) and held["gradients"] == pytest.approx(942, rel=0.01)
    assert held["optimizer state"] == pytest.approx(682 + 942 + 942, rel=0.01)
    assert held["activations"] + held["logits"] == pytest.approx(4505, rel=0.2)  # its smaller buffers are in "other" here
    assert sum(held.values()) == pytest.approx(24_080 - 14_078, rel=0.05)
