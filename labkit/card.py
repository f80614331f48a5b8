"""A card as constants, and what one kernel takes on it: a roofline with the efficiency that the shape allows.

Source of the roofline: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model" (2009).
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from labkit.constants import Constants

# (rows, columns, share of the best rate) of the output tiles between which a matrix library chooses.
TILES = ((256, 128, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 64, 0.65), (32, 32, 0.25))
SPLITS = (1, 2, 3, 4, 6, 8)  # parts of the inner dimension that libraries deal out as well where tiles are few
SPLIT_RATE, LEAST_INNER = 0.92, 256
MATMUL_DIMS, ATTENTION_DIMS = 4, 5


@dataclass(frozen=True, kw_only=True)
class Card(Constants):
    """What one device can do; rates are per second.

    peak_flops_per_s    {dtype: FLOP/s}; "float16_accumulate" is float16 with sums in float16, all others sum in float32
    usable_bytes        of `memory_bytes`, what is left for tensors once driver and context have theirs
    matmul_efficiency   share of the peak that large matrix products reach; smaller ones lose what their tiles leave idle
    inner_half          length of the inner dimension at which a product reaches half of its rate; 0: any length does
    slower_operations   {operation: bytes per second} of operations known to be slower than memory, by torch's names
    matmul_curve        ((FLOPs of a product, share of the large ones' rate), …), measured; replaces tiles where given
    sms                 multiprocessors, over which the tiles are dealt; 0: no tiles
    launch_s            time of the host per kernel, framework included
    floor_s             shortest time that a kernel occupies the card
    asynchronous        whether the host runs ahead of the card, as with CUDA; a CPU is host and card in one
    overlap_cost        how much longer kernels take beside an asynchronous transfer: 0.05 is 5 %
    """

    peak_flops_per_s: dict = field(hash=False)
    memory_bytes: float
    usable_bytes: float
    bytes_per_s: float
    memory_efficiency: float = 0.9
    matmul_efficiency: float = 0.9
    attention_efficiency: float = 0.7
    attention_backward_efficiency: float = 0.55
    inner_half: float = 0.0
    matmul_curve: tuple = ()
    slower_operations: dict = field(default_factory=dict, hash=False)
    sms: int = 0
    launch_s: float = 0.0
    floor_s: float = 0.0
    asynchronous: bool = True
    overlap_cost: float = 0.0
    copy_engines: int = 2
    tdp_w: float | None = None
    price_usd: float | None = None

    def __post_init__(self):
        for name in ("memory_bytes", "usable_bytes", "bytes_per_s", "memory_efficiency", "matmul_efficiency"):
            _check(self, name, above=True)
        for name in ("attention_efficiency", "attention_backward_efficiency"):
            _check(self, name, above=True)
        for name in ("inner_half", "launch_s", "floor_s", "overlap_cost"):
            _check(self, name, above=False)
        if self.copy_engines not in (1, 2):
            raise ValueError(f"{self.name}: copy_engines is {self.copy_engines}; a card has 1 or 2")

    def peak(self, dtype):
        """The peak in FLOP/s for products of this dtype, sums in float32; a ValueError that names the known ones."""
        if dtype not in self.peak_flops_per_s:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.peak_flops_per_s)}")
        return self.peak_flops_per_s[dtype]

    def kernel_s(self, kernel):
        """Seconds that one of a Kernel's equal kernels occupies the card: the longer of arithmetic and memory traffic."""
        rate = self.slower_operations.get(kernel.name)
        memory_s = kernel.moved_bytes / (rate or self.bytes_per_s * self.memory_efficiency)
        return max(self.floor_s, memory_s, self._arithmetic_s(kernel))

    def matmul_share(self, batch, m, n, k):
        """The share of the peak, 0 to 1, that [batch, m, k] times [k, n] reaches."""
        if self.matmul_curve:
            return self.matmul_efficiency * _between(self.matmul_curve, 2 * batch * m * n * k)
        if not self.sms:
            return self.matmul_efficiency * k / (k + self.inner_half)
        shares = (_tiles(batch, m, n, self.sms, parts) * _inner(k, parts, self.inner_half) for parts in SPLITS)
        return self.matmul_efficiency * max(shares)

    def _arithmetic_s(self, kernel):
        if not kernel.flops:
            return 0.0
        if len(kernel.shape) == MATMUL_DIMS:
            share = self.matmul_share(*kernel.shape)
        elif len(kernel.shape) == ATTENTION_DIMS:
            backward = kernel.phase.startswith("backward")
            share = self.attention_backward_efficiency if backward else self.attention_efficiency
        else:
            return kernel.flops / self.peak("float32")  # elementwise work: no tensor core
        flops = kernel.flops / 2 if kernel.causal else kernel.flops
        return flops / (self.peak(kernel.dtype) * share)


def _tiles(batch, m, n, sms, parts):
    """Share of the rate: useful elements ÷ those of all tiles in all waves, with the tile that suits best.

    The inner dimension is cut into `parts`, tiles of their own. Source of the effect: NVIDIA, "Matrix Multiplication
    Background User's Guide" (tile and wave quantisation).
    """
    best = 0.0
    for rows, columns, rate in TILES:
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns) * parts
        waves = math.ceil(tiles / sms)
        best = max(best, rate * batch * m * n * parts / (waves * sms * rows * columns))
    return best


def _inner(k, parts, half):
    """Share of the rate that an inner dimension in `parts` leaves; parts have to be added up, and must not be too short."""
    if parts == 1:
        return k / (k + half)
    return SPLIT_RATE * k / (k + half * parts) if k >= parts * LEAST_INNER else 0.0


def _between(curve, flops):
    """The curve's value, straight between its points over the logarithm of the FLOPs, flat beyond its ends."""
    at = bisect_right(curve, flops, key=lambda point: point[0])
    if at in (0, len(curve)):
        return curve[min(at, len(curve) - 1)][1]
    (low, low_share), (high, high_share) = curve[at - 1], curve[at]
    return low_share + (high_share - low_share) * math.log(flops / low) / math.log(high / low)


def _check(card, name, *, above):
    value = getattr(card, name)
    if not value >= 0 or (above and value == 0):
        raise ValueError(f"{card.name}: {name} is {value}; it must be {'above' if above else 'at least'} 0")
