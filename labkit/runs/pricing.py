"""What one kernel of a layer takes on a card: a roofline with tiles, cache and head widths.

Sources: roofline, Williams, Waterman, Patterson (2009); tiles and waves, NVIDIA, "Matrix Multiplication Background User's
Guide"; splitting of the inner dimension, Osama et al., "Stream-K" (2023).
"""

from math import ceil

from labkit.card import TILES, Card
from labkit.runs.constants import ANY_CACHE, CACHE, MIB, Constants
from labkit.trace_records import Kernel

SPLITS, LEAST_INNER, SPLIT_COST = (1, 2, 4, 8), 1024, 0.01
SPILL_AT = 8  # times the cache at which half of `spill` is lost
LONG = 1.25  # the table's attention rates hold for sequences of 4 attention_half


def kernel_s(constants: Constants, card: Card, kernel: Kernel) -> float:
    """Returns seconds of one of a Kernel's equal kernels."""
    memory_s = kernel.moved_bytes / (card.bytes_per_s * card.memory_efficiency * constants.memory)
    fill = kernel.moved_bytes / (CACHE.get(card.name, ANY_CACHE) * MIB)
    if len(kernel.shape) == 4:
        lost = 1 + constants.spill * fill / (fill + SPILL_AT)
        return max(card.floor_s, memory_s, _product_s(constants, card, kernel)) * lost
    if len(kernel.shape) == 5:
        return max(card.floor_s, memory_s, _attention_s(constants, card, kernel))
    return max(card.floor_s, memory_s * (1 - constants.cached / (1 + fill)))


def _product_s(constants, card, kernel):
    batch, m, n, k = kernel.shape
    float8 = kernel.dtype == "float8" and "float8" in card.peak_flops_per_s
    dtype = kernel.dtype if kernel.dtype in card.peak_flops_per_s else "bfloat16"
    inner_half = constants.inner_half * (2 if float8 else 1)
    share = card.matmul_efficiency * constants.matmul * k / (k + inner_half) * tile_share(batch, m, n, k, card.sms)
    return kernel.flops / (card.peak(dtype) * (constants.float8 if float8 else 1) * share)


def tile_share(batch, m, n, k, sms) -> float:
    """Returns the share of the rate that tiles and waves leave, with the tile and the split of k that suit best."""
    best = 0.0
    for rows, columns, rate in TILES:
        tiles, useful = batch * ceil(m / rows) * ceil(n / columns), batch * m * n / (rows * columns)
        for at, split in enumerate(SPLITS):
            if split > 1 and k < split * LEAST_INNER:
                break
            waves = ceil(tiles * split / sms)
            best = max(best, rate * (1 - at * SPLIT_COST) * split * useful / (waves * sms))
    return best


def _attention_s(constants, card, kernel):
    _, _, _, keys, width = kernel.shape
    forward = kernel.phase == "forward"
    share = card.attention_efficiency if forward else card.attention_backward_efficiency
    share *= constants.attention * (constants.narrow if width < 128 else 1.0) * LONG * keys / (keys + constants.attention_half)
    return kernel.flops / (card.peak(kernel.dtype if kernel.dtype in card.peak_flops_per_s else "bfloat16") * share)
