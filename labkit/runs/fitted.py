"""Fitted constants, written by `python -m labkit judge --fit`: what they mean and where they start is in constants.py."""

from labkit.runs.constants import Constants

FITTED = Constants(
    stacks={
        "LLM.Q": 0.95,
        "HF Trainer with Liger kernels": 0.95,
        "Megatron-LM": 0.98,
        "torch.compile, autocast": 1.1,
        "PyTorch, eager": 1.01,
    },
)
# Half-widths of the interval, of the logarithm of the step time.
ONE_CARD, SEVERAL_CARDS, UNKNOWN_SOFTWARE = 0.06, 0.08, 0.15
