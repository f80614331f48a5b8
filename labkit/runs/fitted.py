"""Fitted constants, written by `python -m labkit judge --fit`; where each of them started is in constants.py."""

from labkit.runs.constants import Constants

FITTED = Constants(
    matmul=0.9509,  # rate of large bfloat16 products in training ÷ the rate measured alone: clocks drop under load
    inner_half=65.68,  # inner dimension at which a product has half of its rate; twice that in float8
    float8=0.9218,  # peak of float8 products ÷ the data sheet's
    attention=0.8654,  # rate of flash attention ÷ the table's
    attention_half=364.2,  # length at which attention has half of its rate
    narrow=0.872,  # rate of attention with heads narrower than 128 ÷ that of wider ones
    memory=1.022,  # elementwise traffic's rate ÷ that of a plain copy
    cached=0.5411,  # share of small kernels' traffic that the second-level cache answers
    spill=0.04232,  # what a product loses whose operands are far beyond that cache
    spread=0.03172,  # standard deviation of equal cards' rates: together they go at the slowest one's
    overhead_s=0.0469,  # seconds between steps: input, logging, clipping's wait
    overlap_cost=0.29,  # share of a collective's time that its kernels take from those beside it
    copy=0.9282,  # copies between card and host ÷ the table's rate
    staged=1.027,  # a collective's link through the host ÷ the table's rate
    staging=2.015,  # what a byte of a collective costs a host of one socket ÷ its two passes
    processor=0.9294,  # the host's optimizer ÷ the table's memory rate of a rank's processors
    network=0.9633,  # network ÷ the table's rate
    stacks={  # what is left of each software: its kernels' seconds ÷ those counted
        "LLM.Q": 0.9677,
        "HF Trainer with Liger kernels": 0.9769,
        "Megatron-LM": 0.99,
        "torch.compile, autocast": 1.1,
        "PyTorch, eager": 0.9647,
    },
)
# Half-widths of the interval, of the logarithm of the step time.
ONE_CARD = 0.0737
SEVERAL_CARDS = 0.0737
UNKNOWN_SOFTWARE = 0.0969
