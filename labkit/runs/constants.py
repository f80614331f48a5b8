"""The free constants of the prediction: what they mean, what was judged of them, and how they enter a machine.

Rates are shares of what the card's or server's own table says, so that they hold for other cards as well. The fitted
values are in fitted.py; data sheets are in labkit's tables of cards and servers, and below.
"""

from dataclasses import dataclass, field, replace
from math import log2

# {name: (judged value, how unsure one is of it as a standard deviation of its logarithm, what it means)}
JUDGED = {
    "matmul": (0.95, 0.05, "rate of large bfloat16 products in training ÷ the rate measured alone: clocks drop under load"),
    "inner_half": (70.0, 0.5, "inner dimension at which a product has half of its rate; twice that in float8"),
    "float8": (0.9, 0.1, "peak of float8 products ÷ the data sheet's"),
    "attention": (0.9, 0.2, "rate of flash attention ÷ the table's"),
    "attention_half": (300.0, 0.7, "length at which attention has half of its rate"),
    "narrow": (0.88, 0.1, "rate of attention with heads narrower than 128 ÷ that of wider ones"),
    "memory": (1.0, 0.08, "elementwise traffic's rate ÷ that of a plain copy"),
    "cached": (0.6, 0.4, "share of small kernels' traffic that the second-level cache answers"),
    "spill": (0.05, 0.7, "what a product loses whose operands are far beyond that cache"),
    "spread": (0.03, 0.5, "standard deviation of equal cards' rates: together they go at the slowest one's"),
    "overhead_s": (0.03, 0.7, "seconds between steps: input, logging, clipping's wait"),
    "overlap_cost": (0.25, 0.5, "share of a collective's time that its kernels take from those beside it"),
    "copy": (0.9, 0.15, "copies between card and host ÷ the table's rate"),
    "staged": (1.0, 0.2, "a collective's link through the host ÷ the table's rate"),
    "staging": (1.7, 0.25, "what a byte of a collective costs a host of one socket ÷ its two passes"),
    "processor": (1.0, 0.5, "the host's optimizer ÷ the table's memory rate of a rank's processors"),
    "network": (1.0, 0.3, "network ÷ the table's rate"),
}
STACK_WIDTH = 0.05  # how unsure one is of a software's own factor, around 1
# Second-level cache in MiB, data sheets; another card has ANY_CACHE.
CACHE = {"RTX 4090": 72, "RTX 3090": 6, "RTX 5090": 96, "A100 80GB": 40, "H100": 50, "L40S": 96}
ANY_CACHE, MIB = 40, 2**20


@dataclass(frozen=True)
class Constants:
    """One set of values of JUDGED's constants; `stacks` has the factor of each software's kernels, 1 for an unknown one."""

    matmul: float = JUDGED["matmul"][0]
    inner_half: float = JUDGED["inner_half"][0]
    float8: float = JUDGED["float8"][0]
    attention: float = JUDGED["attention"][0]
    attention_half: float = JUDGED["attention_half"][0]
    narrow: float = JUDGED["narrow"][0]
    memory: float = JUDGED["memory"][0]
    cached: float = JUDGED["cached"][0]
    spill: float = JUDGED["spill"][0]
    spread: float = JUDGED["spread"][0]
    overhead_s: float = JUDGED["overhead_s"][0]
    overlap_cost: float = JUDGED["overlap_cost"][0]
    copy: float = JUDGED["copy"][0]
    staged: float = JUDGED["staged"][0]
    staging: float = JUDGED["staging"][0]
    processor: float = JUDGED["processor"][0]
    network: float = JUDGED["network"][0]
    stacks: dict = field(default_factory=dict, hash=False)

    def machine(self, run):
        """Returns the run's machine with these constants in place; what kernels cost is pricing's."""
        machine = run.machine.with_(
            overlap_cost=self.overlap_cost,
            copy_bytes_per_s=run.machine.copy_bytes_per_s * self.copy,
            staged_bytes_per_s=run.machine.staged_bytes_per_s * self.staged,
            processor_bytes_per_s=run.machine.processor_bytes_per_s * self.processor,
        )
        if machine.servers == 1:
            return machine
        network = machine.network
        return replace(machine, network=network.with_(bytes_per_s=network.bytes_per_s * self.network))

    def staging_on(self, machine) -> float:
        """Returns what collectives' bytes cost this host's memory; with more than 4 cards it has two sockets that share them."""
        return self.staging / (2 if machine.cards > 4 else 1)

    def pace(self, run) -> float:
        """Returns what all kernels of this run are slower by: its software, and the slowest of its cards.

        0.56 log2(n)^0.83 is within 2 % of the expected largest of n normal deviates, up to 16.
        """
        slowest = 0.564 * log2(run.cards) ** 0.83 if run.cards > 1 else 0.0
        return self.stacks.get(run.stack.name, 1.0) * (1 + self.spread * slowest)

    def whole_step_s(self, seconds: float) -> float:
        """Returns seconds with what passes between steps, less for steps of less than half a second."""
        return seconds + self.overhead_s * seconds / (seconds + 0.5)
