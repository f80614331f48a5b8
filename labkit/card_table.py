"""The cards by name, each constant with its source.

Rates of products are dense, with sums in float32; GeForce cards run those at half the rate of sums in float16.
"""

from labkit.card import Card
from labkit.constants import DERIVED, ESTIMATED, READ, Source

GB, GIB, T = 1e9, 2**30, 1e12
CONTEXT_BYTES = 0.9 * GIB  # what driver, context and libraries keep on a card
COMMUNITY = "bf16 torch.mm, zzc0721/torch-performence-test-data, database.md"
MAMF = "ml-engineering, maximum achievable matmul FLOPS table"

COMMON = {
    "usable_bytes": Source(ESTIMATED, "memory less 0.9 GiB for driver and context"),
    "memory_efficiency": Source(DERIVED, "copies of 904 to 922 GB/s on an RTX 4090 (nvbench README) / 1,008 GB/s"),
    "attention_efficiency": Source(ESTIMATED, "flash attention forward, head width 64 to 128"),
    "attention_backward_efficiency": Source(ESTIMATED, "flash attention backward, which recomputes the scores"),
    "inner_half": Source(ESTIMATED, "prologue and epilogue of a tile cost about as much as 96 steps of its inner loop"),
    "launch_s": Source(ESTIMATED, "an eager PyTorch operation with autograd, on a current CPU"),
    "floor_s": Source(ESTIMATED, "shortest kernel, launch to end on the card"),
    "overlap_cost": Source(ESTIMATED, "NCCL occupies a few multiprocessors while it communicates"),
    "copy_engines": Source(READ, "deviceQuery of an RTX 4090 (thamada/nvidia-smi); taken to hold for the others"),
    "asynchronous": Source(READ, "CUDA C++ Programming Guide: kernel launches return at once"),
}
ESTIMATES = {
    "memory_efficiency": 0.905,
    "attention_efficiency": 0.75,
    "attention_backward_efficiency": 0.58,
    "inner_half": 96.0,
    "launch_s": 8e-6,
    "floor_s": 2e-6,
    "overlap_cost": 0.05,
}


def _card(name, *, memory, rates, matmul, sources, **fields):
    """memory  (GiB, GB/s); rates  {dtype: TFLOP/s}; matmul  TFLOP/s measured on large bf16 products."""
    size, speed = memory
    measured, where = matmul
    efficiency = Source(DERIVED, f"{measured} TFLOP/s measured ({where}) / {rates['bfloat16']} of the data sheet")
    return Card(
        name=name,
        peak_flops_per_s={dtype: rate * T for dtype, rate in rates.items()},
        memory_bytes=size * GIB,
        usable_bytes=size * GIB - CONTEXT_BYTES,
        bytes_per_s=speed * GB,
        matmul_efficiency=measured / rates["bfloat16"],
        origins=COMMON | sources | {"matmul_efficiency": efficiency},
        **ESTIMATES | fields,
    )


def _read(**texts):
    return {name: Source(READ, text) for name, text in texts.items()}


RTX4090 = _card(
    "RTX 4090",
    memory=(24210 / 1024, 1008),
    rates={
        "float32": 82.6,
        "tfloat32": 82.6,
        "bfloat16": 165.2,
        "float16": 165.2,
        "float16_accumulate": 330.3,
        "float8": 330.3,
        "float64": 82.6 / 64,
    },
    matmul=(165.7, f"median of 5 cards, {COMMUNITY}"),
    sms=128,
    tdp_w=450,
    price_usd=1599,
    sources=_read(
        peak_flops_per_s="LLM.Q sol.cpp, citing NVIDIA's Ada paper; float64 1/64 of float32, from memory",
        memory_bytes="deviceQuery: 24,210 MiB (thamada/nvidia-smi)",
        sms="deviceQuery",
        tdp_w="press",
        price_usd="launch price in the press: about 1,600 USD",
    )
    | {"bytes_per_s": Source(DERIVED, "deviceQuery: 10,501 MHz x 2 x 384 bit / 8")},
)
RTX3090 = _card(
    "RTX 3090",
    memory=(24, 936),
    rates={
        "float32": 35.6,
        "tfloat32": 35.6,
        "bfloat16": 71.0,
        "float16": 71.0,
        "float16_accumulate": 142.0,
        "float64": 35.6 / 64,
    },
    matmul=(76.5, f"3 cards, {COMMUNITY}; clocks above the data sheet's"),
    sms=82,
    tdp_w=350,
    price_usd=1499,
    sources=_read(peak_flops_per_s="data sheet", memory_bytes="data sheet", bytes_per_s="data sheet", sms="data sheet")
    | _read(tdp_w="data sheet", price_usd="launch price, from memory"),
)
RTX5090 = _card(
    "RTX 5090",
    memory=(32, 1792),
    rates={
        "float32": 104.8,
        "tfloat32": 104.8,
        "bfloat16": 209.5,
        "float16": 209.5,
        "float16_accumulate": 419.0,
        "float8": 419.0,
        "float64": 104.8 / 64,
    },
    matmul=(239.0, f"2 cards, {COMMUNITY}; clocks above the data sheet's"),
    sms=170,
    tdp_w=575,
    price_usd=1999,
    sources=_read(peak_flops_per_s="LLM.Q, citing NVIDIA's Blackwell paper", memory_bytes="data sheet", bytes_per_s="data sheet")
    | _read(sms="data sheet", tdp_w="data sheet", price_usd="launch price"),
)
A100_80GB = _card(
    "A100 80GB",
    memory=(80, 2039),
    rates={"float32": 19.5, "tfloat32": 156.0, "bfloat16": 312.0, "float16": 312.0, "float16_accumulate": 312.0, "float64": 9.7},
    matmul=(271.2, MAMF),
    sms=108,
    tdp_w=400,
    price_usd=15000,
    sources=_read(peak_flops_per_s="data sheet, SXM; float64 from memory", memory_bytes="data sheet", sms="data sheet")
    | _read(bytes_per_s="data sheet (2,039 GB/s from memory)", tdp_w="data sheet", price_usd="press, approximate"),
)
H100 = _card(
    "H100",
    memory=(80, 3350),
    rates={
        "float32": 67.0,
        "tfloat32": 494.7,
        "bfloat16": 989.4,
        "float16": 989.4,
        "float16_accumulate": 989.4,
        "float8": 1978.9,
        "float64": 34.0,
    },
    matmul=(794.5, MAMF),
    sms=132,
    tdp_w=700,
    price_usd=35000,
    sources=_read(peak_flops_per_s="data sheet, SXM; float64 from memory", memory_bytes="data sheet", sms="data sheet")
    | _read(bytes_per_s="data sheet", tdp_w="data sheet", price_usd="press: 30,000 to 40,000 USD"),
)
L40S = _card(
    "L40S",
    memory=(48, 864),
    rates={
        "float32": 91.6,
        "tfloat32": 183.0,
        "bfloat16": 362.0,
        "float16": 362.0,
        "float16_accumulate": 362.0,
        "float8": 733.0,
        "float64": 91.6 / 64,
    },
    matmul=(269.0, COMMUNITY),
    sms=142,
    tdp_w=350,
    price_usd=8500,
    sources=_read(peak_flops_per_s="data sheet", memory_bytes="data sheet", bytes_per_s="data sheet", sms="data sheet")
    | _read(tdp_w="data sheet", price_usd="7,500 to 10,000 USD, from memory"),
)
CARDS = {card.name: card for card in (RTX4090, RTX3090, RTX5090, A100_80GB, H100, L40S)}
