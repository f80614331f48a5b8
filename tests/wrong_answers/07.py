"""Wrong answers to the exercises of notebook 07, each with the cause that its check must name."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from labkit.notebook import load

lesson = load("07_tensor_parallel")
copy_to_ranks, sum_over_ranks = lesson.copy_to_ranks, lesson.sum_over_ranks


class SumBothWays(torch.autograd.Function):
    """What torch.distributed.nn.functional.all_reduce does: the gradient is summed, too."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return SumBothWays.apply(gradient)


def mine(rank, tensor, dim):
    return tensor.tensor_split(rank.world_size, dim)[rank.rank]


def gated(*, enter=copy_to_ranks, leave=sum_over_ranks, cut=mine, twice=False):
    """What `gated_mlp` may look like, with one thing wrong or another."""

    def gated_mlp(rank, x, gate, up, down):
        first, second = (enter(x), enter(x)) if twice else [enter(x)] * 2
        features = F.silu(F.linear(first, cut(rank, gate, 0))) * F.linear(second, cut(rank, up, 0))
        return leave(F.linear(features, cut(rank, down, 1)))

    return gated_mlp


def other_features_of_up(rank, x, gate, up, down):
    x, neighbour = copy_to_ranks(x), up.tensor_split(rank.world_size)[rank.rank - 1]
    return sum_over_ranks(F.linear(F.silu(F.linear(x, mine(rank, gate, 0))) * F.linear(x, neighbour), mine(rank, down, 1)))


def sums_before_the_product(rank, x, gate, up, down):
    """All three cut by rows: partial sums are made whole twice more than needed."""
    x = mine(rank, copy_to_ranks(x), -1)
    gates, ups = (sum_over_ranks(F.linear(x, mine(rank, weight, 1))) for weight in (gate, up))
    return F.linear(F.silu(gates) * ups, down)


def silu_of_partial_sums(rank, x, gate, up, down):
    x = mine(rank, copy_to_ranks(x), -1)
    return sum_over_ranks(F.linear(F.silu(F.linear(x, mine(rank, gate, 1))) * F.linear(x, mine(rank, up, 1)), down))


def everything_everywhere(rank, x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def copied_for_gate_only(rank, x, gate, up, down):
    features = F.silu(F.linear(copy_to_ranks(x), mine(rank, gate, 0))) * F.linear(x, mine(rank, up, 0))
    return sum_over_ranks(F.linear(features, mine(rank, down, 1)))


def for_two_ranks(rank, tensor, dim):
    """Right for two ranks: of three, the last gets nothing."""
    return tensor.narrow(dim, min(6 * rank.rank, 12), 6 if rank.rank < 2 else 0)


def detached(rank, tensor, dim):
    return mine(rank, tensor, dim).detach()


def gathered(partial_sum):
    """Adds up by hand what all_gather brings; autograd sees the own part only."""
    parts = [torch.empty_like(partial_sum) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, partial_sum.detach())
    return partial_sum + sum(part for number, part in enumerate(parts) if number != dist.get_rank())


def row(add):
    """What `mended_row` may look like: how the bias comes in."""
    return lambda x, weight, bias: add(F.linear(x, weight), bias)


def on_rank_0(partial_sum, bias):
    return sum_over_ranks(partial_sum + bias if dist.get_rank() == 0 else partial_sum)


def split_heads_across_ranks(x, weight, bias):
    """As if a head were cut: half of its features go to a neighbour."""
    return sum_over_ranks(F.linear(x.roll(x.shape[-1] // 2, -1), weight)) + bias


PARTS, CUTS = (2.0, -2.0), {"up": "column", "down": "row"}


def right_activation(partial_sums):
    return F.gelu(sum_over_ranks(partial_sums))


def handed(per_block=4, ends=2, small=3, element_bytes=None, rows=None):
    """What `handed_over` may look like."""

    def handed_over(job):
        large, tokens = per_block * job.blocks + ends, (rows or job.batch_size) * job.seq_len
        return large + small, (large * job.d_model + small) * tokens * (element_bytes or job.dtype.itemsize)

    return handed_over


def faster(seconds):
    """What `winner` may look like: seconds(calls, bytes, alpha_s, bytes_per_s) decides."""

    def winner(job, alpha_s, bytes_per_s):
        tensor = seconds(*handed()(job), alpha_s, bytes_per_s)
        data = seconds(2, (job.parameters + 1) * job.dtype.itemsize, alpha_s, bytes_per_s)
        return "tensor parallel" if tensor < data else "data parallel"

    return winner


def right_winner(job, alpha_s, bytes_per_s):
    return faster(lambda calls, nbytes, alpha_s, bytes_per_s: calls * alpha_s + nbytes / bytes_per_s)(job, alpha_s, bytes_per_s)


def winner_in_float32(job, alpha_s, bytes_per_s):
    """As if gradients always had 4 bytes a number."""
    tensor, data = handed()(job), (2, 4 * (job.parameters + 1))
    tensor_s, data_s = (calls * alpha_s + nbytes / bytes_per_s for calls, nbytes in (tensor, data))
    return "tensor parallel" if tensor_s < data_s else "data parallel"


WRONG_ANSWERS = {
    "7.1": [
        (gated(enter=lambda x: x), "no all_reduce backward, where 1 is needed: each rank has its own part of the gradient"),
        (gated(leave=lambda y: y), "the output: .*No all_reduce forward: is it this rank's partial sums"),
        (gated(twice=True), "2 all_reduces backward, where 1 is enough"),
        (gated(leave=SumBothWays.apply), "2 all_reduces backward, where 1 is enough"),
        (copied_for_gate_only, r"the gradient of `x`: .* Do gate and up both read what one copy_to_ranks\(x\) returned"),
        (gated(cut=for_two_ranks), "rank 0 computes with 6 of 12 hidden features, where 4 are its N-th, N = 3"),
        (gated(leave=lambda y: sum_over_ranks(y).detach()), "on rank 0, no gradient passes through the output"),
        (gated(leave=lambda y: sum_over_ranks(y).tolist()), "on rank 0, the output is a list, where a tensor is expected"),
        (gated(cut=detached), "`gate` has no gradient: cut it by a slice"),
        (gated(leave=gathered), "all_gather was called forward; all_reduce is all it needs"),
        (other_features_of_up, "on rank 0, the output: .* wrong"),
        (silu_of_partial_sums, "on rank 0, the output: .* wrong"),
        (sums_before_the_product, "2 all_reduces forward, where 1 is enough"),
        (everything_everywhere, "no all_reduce forward, where 1 is needed: did every rank compute the whole"),
    ],
    "7.2": [
        (
            row(lambda y, bias: sum_over_ranks(y + bias)),
            "the output holds the bias N = 3 times: every rank adds it before the sum",
        ),
        (row(lambda y, bias: sum_over_ranks(y)), "the output holds the bias 0 times"),
        (row(lambda y, bias: sum_over_ranks(y + bias / 3)), "on rank 0, the gradient of `bias`: off by the factor 1/3 = 1/N"),
        (row(on_rank_0), "on rank 1, `bias` has no gradient, so its copies on the ranks would drift apart"),
        (row(lambda y, bias: sum_over_ranks(y) + copy_to_ranks(bias)), "1 all_reduce backward, where none is enough"),
        (row(lambda y, bias: y + bias), "on rank 0, the output: .* wrong"),
        (split_heads_across_ranks, "on rank 0, the output: .* wrong"),
    ],
    "7.3": [
        ((PARTS, lambda partial_sums: sum_over_ranks(F.gelu(partial_sums)), CUTS), "the sum of the GELUs of partial sums"),
        ((PARTS, F.gelu, CUTS), "the GELU of the rank's own partial sums"),
        ((PARTS, lambda partial_sums: F.gelu(SumBothWays.apply(partial_sums)), CUTS), "its gradient: off by the factor 3 = N"),
        ((PARTS, lambda y: F.gelu(sum_over_ranks(y.detach())), CUTS), "`activated`: on rank 0, no gradient passes"),
        (((0.5, -0.5), right_activation, CUTS), "the GELUs of `parts` add up to 0.191, which is not more than 1"),
        (((2.0, 1.0), right_activation, CUTS), "`parts` add up to 3, not to 0"),
        ((PARTS, right_activation, {"up": "row", "down": "column"}), "the cuts that somebody made"),
        ((PARTS, right_activation, {"up": "column", "down": "column"}), "all hidden features on every rank, an all_gather"),
        ((PARTS, right_activation, {"up": "row", "down": "row"}), "leaves partial sums before the GELU"),
        ((PARTS, right_activation, {"up": "col", "down": "row"}), 'each is "column" or "row"'),
    ],
    "7.4": [
        ((handed(per_block=2), right_winner), "these are the forward ones only"),
        (
            (handed(ends=0), right_winner),
            "the embedding's sum forward and the one for the gradient of the head's input are missing",
        ),
        ((handed(ends=1), right_winner), "one of two is missing"),
        ((handed(small=0), right_winner), "the three sums of the loss"),
        ((handed(element_bytes=8), right_winner), "not always 8"),
        ((handed(element_bytes=1), right_winner), "bytes are expected: a number has"),
        ((handed(rows=1), right_winner), "that is the traffic of one sequence"),
        ((lambda job: handed()(job)[::-1], right_winner), "calls come first, then bytes"),
        ((handed(per_block=6), right_winner), "as DTensor does"),
        ((handed(per_block=5), right_winner), "4 blocks, D 64, .*: calls, "),
        ((handed(), faster(lambda calls, nbytes, alpha_s, bytes_per_s: nbytes)), "fewer bytes, but what about the calls"),
        ((handed(), winner_in_float32), "4 blocks, D 64, 128 tokens"),
        ((handed(), lambda *_: "tensor parallel"), "tensor parallel waits .* ms, data parallel waits"),
        ((handed(), lambda *_: "tp"), '\'tp\', where "tensor parallel" or "data parallel" is expected'),
    ],
}
