"""The free constants of the prediction: fitted ones with what they mean, judged ones beside them; data sheets are elsewhere.

Rates are shares of what the card's or server's own table says, so that they hold for other cards as well.
"""

from dataclasses import dataclass, field, replace

MEANING = {
    "matmul": "rate of large bfloat16 products in training ÷ the rate measured alone (clocks drop under load)",
    "inner_half": "inner dimension at which a product has half of its rate",
    "float8": "rate of float8 products ÷ twice that of bfloat16",
    "attention": "rate of flash attention ÷ the table's",
    "memory": "elementwise traffic's rate ÷ that of a plain copy",
    "copy": "copies between card and host ÷ the table's, under load",
    "staged": "collectives through the host ÷ the table's link",
    "processor": "host's optimizer ÷ the table's memory rate of a rank's processors",
    "network": "network ÷ the table's rate",
}


# {name: (judged value, how unsure one is of it, as a standard deviation of the logarithm)}
PRIORS = {
    "matmul": (0.97, 0.05),
    "inner_half": (96.0, 0.5),
    "float8": (0.85, 0.12),
    "attention": (0.9, 0.2),
    "memory": (1.0, 0.1),
    "copy": (0.9, 0.15),
    "staged": (1.0, 0.25),
    "processor": (1.0, 0.5),
    "network": (1.0, 0.3),
    "narrow": (0.85, 0.1),
    "overlap_cost": (0.3, 0.5),
    "cached": (0.35, 0.5),
    "spill": (0.05, 0.7),
}
# Second-level cache in bytes, data sheets; another card has ANY_CACHE.
CACHE = {"RTX 4090": 72, "RTX 3090": 6, "RTX 5090": 96, "A100 80GB": 40, "H100": 50, "L40S": 96}
MIB, ANY_CACHE = 2**20, 40
STACK_WIDTH = 0.05


@dataclass(frozen=True)
class Constants:
    """One set of values; see MEANING. `stacks` is the remaining factor of each software's kernels, 1 for an unknown one."""

    matmul: float = 0.97
    inner_half: float = 96.0
    float8: float = 0.85
    attention: float = 0.9
    memory: float = 1.0
    overlap_cost: float = 0.3
    copy: float = 0.9
    staged: float = 1.0
    processor: float = 1.0
    network: float = 1.0
    narrow: float = 0.85
    cached: float = 0.35
    spill: float = 0.05
    stacks: dict = field(default_factory=dict, hash=False)

    def machine(self, run):
        """Returns the run's machine with these constants in place."""
        machine, card = run.machine, run.machine.card
        peaks = {dtype: rate * (self.float8 if dtype == "float8" else 1) for dtype, rate in card.peak_flops_per_s.items()}
        machine = machine.with_(
            peak_flops_per_s=peaks,
            matmul_efficiency=card.matmul_efficiency * self.matmul,
            inner_half=self.inner_half,
            attention_efficiency=card.attention_efficiency * self.attention,
            attention_backward_efficiency=card.attention_backward_efficiency * self.attention,
            memory_efficiency=card.memory_efficiency * self.memory,
            overlap_cost=self.overlap_cost,
            copy_bytes_per_s=machine.copy_bytes_per_s * self.copy,
            staged_bytes_per_s=machine.staged_bytes_per_s * self.staged,
            processor_bytes_per_s=machine.processor_bytes_per_s * self.processor,
        )
        if machine.servers == 1:
            return machine
        network = machine.network
        return replace(machine, network=network.with_(bytes_per_s=network.bytes_per_s * self.network))

    def stack_factor(self, run) -> float:
        return self.stacks.get(run.stack.name, 1.0)

    def kernel_s(self, card, kernel) -> float:
        """Returns seconds of one kernel on this card: the longer of arithmetic and memory traffic."""
        cache = CACHE.get(card.name, ANY_CACHE) * MIB
        fill = kernel.moved_bytes / cache
        seconds = card.kernel_s(kernel)
        if len(kernel.shape) == 5:
            return seconds / (self.narrow if kernel.shape[4] < 128 else 1.0)
        if len(kernel.shape) == 4:
            k = kernel.shape[3]
            thick = (k + 2 * self.inner_half) / (k + self.inner_half) if kernel.dtype == "float8" else 1.0
            return seconds * thick * (1 + self.spill * fill / (fill + 8))
        return seconds * (1 - self.cached / (1 + (fill / 2) ** 2))
