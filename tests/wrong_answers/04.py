"""Wrong answers to the exercises of notebook 04, each with the cause that its check must name."""

import torch
import torch.distributed as dist
from torch.nn import functional as F


def bytes_of(weight=2, gradient=2, optimizer=12, first=(3, 2, 1), divide=lambda size, n: size / n):
    """What `bytes_per_parameter` may look like, with one number wrong; `first`: the stages from which each kind is sharded."""

    def bytes_per_parameter(stage, world_size):
        sizes = zip((weight, gradient, optimizer), first)
        return sum(divide(size, world_size if stage >= least else 1) for size, least in sizes)

    return bytes_per_parameter


def sending(times, *, own_too=False, ranks=1, size=None):
    """What `bytes_sent` may look like, with one factor wrong."""

    def bytes_sent(stage, world_size, parameters, element_bytes=2):
        share = 1 if own_too else (world_size - 1) / world_size
        return times[stage] * parameters * (size or element_bytes) * share * (world_size if ranks != 1 else 1)

    return bytes_sent


def step(*, mean=True, whole_state=False, reduce=True, gather=True, front=False, copy=True, floor=False, twice=False):
    """What `zero1_step` may look like, with one thing wrong."""

    def zero1_step(rank, weights, gradients, adam):
        n, size = rank.world_size, len(weights)
        padding = -size % n
        if floor:  # what does not divide is left out
            padding = -(size % n)
        weights_padded, gradients_padded = (F.pad(one, (padding, 0) if front else (0, padding)) for one in (weights, gradients))
        if whole_state:
            dist.all_reduce(gradients)
            adam(weights, gradients / n)
            return
        shard, gradient = (one.chunk(n)[rank.rank].clone() for one in (weights_padded, gradients_padded))
        if reduce:
            dist.reduce_scatter_single(gradient, gradients_padded)
        adam(shard, gradient / n if mean and reduce else gradient)
        if twice:
            adam(shard, gradient / n)
        whole = weights_padded.clone()
        whole.chunk(n)[rank.rank].copy_(shard)
        if gather:
            dist.all_gather_single(whole, shard)
        if copy:
            weights[: len(whole)] = whole[:size]

    return zero1_step


def with_sizes(*, shards, whole):
    """A ZeRO-1 step that does not pad what it cuts into shards, or what it gathers them into."""

    def zero1_step(rank, weights, gradients, adam):
        n = rank.world_size
        weights_padded, gradients_padded = (F.pad(one, (0, -len(weights) % n)) for one in (weights, gradients))
        shard = weights_padded.chunk(n)[rank.rank].clone()
        gradient = torch.empty_like(shard)
        dist.reduce_scatter_single(gradient, gradients_padded if shards else gradients)
        adam(shard, gradient / n)
        dist.all_gather_single(weights_padded if whole else weights, shard)

    return zero1_step


def update(*, own=True, exchanged=False, gathers="weights"):
    """A ZeRO-1 step that updates shard 0 everywhere, exchanges adam's arguments, or gathers the gradients."""

    def zero1_step(rank, weights, gradients, adam):
        n = rank.world_size
        weights_padded, gradients_padded = (F.pad(one, (0, -len(weights) % n)) for one in (weights, gradients))
        shard = weights_padded.chunk(n)[rank.rank if own else 0].clone()
        gradient = torch.empty_like(shard)
        dist.reduce_scatter_single(gradient, gradients_padded)
        gradient /= n
        adam(*((gradient, shard) if exchanged else (shard, gradient)))
        dist.all_gather_single(weights_padded, shard if gathers == "weights" else gradient)
        weights.copy_(weights_padded[: len(weights)])

    return zero1_step


def own_shard_everywhere(rank, weights, gradients, adam):
    n = rank.world_size
    weights_padded, gradients_padded = (F.pad(one, (0, -len(weights) % n)) for one in (weights, gradients))
    shard, gradient = (one.chunk(n)[rank.rank].clone() for one in (weights_padded, gradients_padded))
    dist.reduce_scatter_single(gradient, gradients_padded)
    adam(shard, gradient / n)
    weights.copy_(shard.repeat(n)[: len(weights)])


def mlp(*, mean=True, keep=False, early=False, forget=False, reduce=True, order=-1, graph=False, flat=True, square=True, on=True):
    """What `mlp_gradients` may look like, with one thing wrong."""

    def mlp_gradients(rank, shards, x, layer, loss):
        n, kept = rank.world_size, []

        def gather(shard):
            whole = shard.new_zeros(n * len(shard))
            if forget:
                whole.chunk(n)[rank.rank].copy_(shard)
            else:
                dist.all_gather_single(whole, shard)
            side = round(len(whole) ** 0.5)
            kept.append(whole) if keep else None
            return whole.view(side, side) if square else whole

        def scattered(gradient):
            if not reduce:
                return gradient.flatten().chunk(n)[rank.rank]
            shard = gradient.new_empty(gradient.numel() // n)
            dist.reduce_scatter_single(shard, gradient.flatten() if flat else gradient)
            return shard / n if mean else shard

        if graph:
            weights, y = [gather(shard).requires_grad_() for shard in shards], x
            for weight in weights:
                y = layer(weight, y)
            return [scattered(one) for one in torch.autograd.grad(loss(y), weights)]

        inputs, gradients, ready = [], [], [gather(shard) for shard in shards] if early else None
        with torch.no_grad():
            for shard in shards:
                inputs.append(x)
                x = layer(ready.pop(0) if early else gather(shard), x)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x), x)
        for shard in reversed(shards):
            weight, x = gather(shard).requires_grad_(), inputs.pop().requires_grad_()
            inner, whole = torch.autograd.grad(layer(weight, x), (x, weight), gradient)
            gradient = inner if on else gradient
            gradients.append(scattered(whole))
        return gradients[::order]

    return mlp_gradients


WRONG_ANSWERS = {
    "4.1": [
        (bytes_of(4, 4, 8), "that is float32"),
        (bytes_of(2, 2, 8), "the float32 master is missing"),
        (bytes_of(2, 2, 4), "Adam's two means are 8 bytes more"),
        (bytes_of(4, 4, 12), "2 bytes each in bf16"),
        (bytes_of(first=(2, 1, 0)), "stages are off by one"),
        (bytes_of(first=(3, 1, 2)), "stages 1 and 2 shard the wrong kind"),
        (bytes_of(first=(1, 1, 1)), "every stage shards everything"),
        (bytes_of(divide=lambda size, n: size // n), "rounded to whole bytes: `/`"),
        (lambda *at: int(bytes_of()(*at)), "rounded to whole bytes: no `int`"),
        (bytes_of(first=(4, 3, 2)), "stage 1 shards the optimizer's state already"),
        (bytes_of(first=(3, 3, 1)), "stage 2 shards the gradients, too"),
        (bytes_of(first=(4, 2, 1)), "stage 3 shards all: the weights, too"),
        (bytes_of(gradient=0), "the gradients are missing"),
        (lambda stage, world_size: world_size * bytes_of()(stage, world_size), "what all ranks hold together"),
        (lambda stage, world_size: (16, 5.5, 3.75, 2)[stage], "that is on 8 ranks"),
        (lambda stage, world_size: 16, "stage 1 on 2 ranks: it is 60 % too large"),
        (lambda stage, world_size: print(stage), "does the function end with `return`"),
    ],
    "4.2": [
        (step(mean=False), "factor 3 = N: a sum where a mean belongs"),
        (step(whole_state=True), "`adam` updates all 100 weights on rank 0"),
        (step(reduce=False), "the rank's own gradient, not the mean"),
        (step(gather=False), "on rank 0: only the rank's own shard is new"),
        (step(copy=False), "the weights are the old ones"),
        (step(front=True), "the weights lie 2 places away from where they belong: padding was taken for weights"),
        (step(floor=True), "33 numbers on rank 0, where 34 are a shard"),
        (step(twice=True), "called 6 times on rank 0 in 3 steps"),
        (own_shard_everywhere, "only|wrong|values"),
        (with_sizes(shards=False, whole=True), r"100 is not 3 × 3\d: is it flat, and padded"),
        (with_sizes(shards=True, whole=False), "room for them, padding too"),
        (update(own=False), "one shard of weights and the gradient of another on rank 1"),
        (update(exchanged=True), "given weights where the gradient belongs"),
        (update(gathers="gradients"), "the weights are the mean gradients now"),
    ],
    "4.3": [
        (mlp(mean=False), "factor 2 = N: a sum where a mean belongs"),
        (mlp(keep=True), "5 of 5 layers are whole at once, in forward"),
        (mlp(early=True), "5 of 5 layers are whole at once, in forward"),
        (mlp(graph=True), "5 of 5 layers are whole at once, in forward"),
        (mlp(forget=True), "the shard of rank 1 is missing"),
        (mlp(reduce=False), "those of its own rows: reduce_scatter them"),
        (mlp(order=1), "in the order of backward"),
        (mlp(flat=False), "12 is not 2 × 72: is it flat"),
        (mlp(square=False), r"a weight of shape \[144\], where \[12, 12\] is whole"),
        (mlp(on=False), "only the last layer's gradient is right"),
    ],
    "4.4": [
        (sending((2, 2, 2, 2)), "stage 3 gathers the weights twice"),
        (sending((2, 3, 3, 3)), "2 in all"),
        (sending((2, 2, 3, 3)), "stages 1 and 2 send the same"),
        (sending((1, 2, 2, 3)), "it counts twice"),
        (sending((1, 1, 1, 3)), "stages 0 to 2 send twice"),
        (sending((1, 1, 1, 2)), "every stage both reduces and gathers"),
        (lambda stage, n, count, size=2: (3 if stage == 3 else 2) * count * size / n, "not 1/N"),
        (sending((2, 2, 2, 4)), "no new weights to send after the update"),
        (sending((2, 2, 2, 3), own_too=True), "a rank keeps its own part"),
        (sending((2, 2, 2, 3), ranks=None), "of all ranks together"),
        (sending((2, 2, 2, 3), size=2), "`element_bytes` is not used"),
        (sending((2, 2, 2, 3), size=1), "numbers, not bytes"),
    ],
}
