"""An MLP whose weights are in shards: what exercise 4.3 runs on every rank, under observation, and one device's gradients."""

import torch

from labkit.checks.whole_weights import WholeWeights

LAYERS, WIDTH, ROWS = 5, 12, 4


def mlp_rank(rank, mlp_gradients):
    """What each rank does: the answer, under observation."""
    weights, given = mlp_weights(), []
    right = [weight.flatten().tolist() for weight in weights]  # as numbers: what is compared below must not count as whole
    shards = [weight.flatten().chunk(rank.world_size)[rank.rank].clone() for weight in weights]
    watch = WholeWeights(weights)

    def observed_layer(weight, x):
        if weight.shape != (WIDTH, WIDTH):
            raise ValueError(f"a layer was given a weight of shape {list(weight.shape)}, where {[WIDTH, WIDTH]} is whole")
        if watch.phase == "forward":
            given.append(weight_cause(weight, right, len(given), rank.world_size))
        return mlp_layer(weight, x)

    def observed_loss(y):
        watch.phase = "backward"
        return y.square().mean()

    with watch:
        gradients = mlp_gradients(rank, shards, mlp_rows(rank.rank), observed_layer, observed_loss)
    cause = next(filter(None, given), None)
    if not cause and watch.phase == "forward":
        cause = "`loss` was never called: backward begins with it"
    return {"given": cause, "gradients": gradients, "most": watch.most, "when": watch.when, "left": len(watch.whole())}


def weight_cause(weight, right, number, world_size):
    """Why what a layer was given in forward is not its weight (`right` lists each layer's numbers), or None."""
    if number >= len(right):
        return f"forward computes more than {len(right)} layers before `loss` is called"
    ours, size = weight.detach().flatten().tolist(), WIDTH**2 // world_size
    wrong = [at for at in range(world_size) if ours[at * size : (at + 1) * size] != right[number][at * size : (at + 1) * size]]
    if wrong:
        return f"layer {number} was given a weight in which the shard of rank {wrong[0]} is missing or in another place"
    return None


def mlp_layer(weight, x):
    return torch.tanh(x @ weight.T)  # [b, D] @ [D, D]


def mlp_weights():
    return list(torch.randn(LAYERS, WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(43)) / WIDTH**0.5)


def mlp_rows(rank):
    return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def mlp_gradients_of(rank):
    """The flat gradients of every layer for one rank's rows."""
    x, weights = mlp_rows(rank), [weight.requires_grad_() for weight in mlp_weights()]
    for weight in weights:
        x = mlp_layer(weight, x)
    return [gradient.flatten() for gradient in torch.autograd.grad(x.square().mean(), weights)]


def mean_gradients(world_size):
    return [torch.stack(layer).mean(0) for layer in zip(*map(mlp_gradients_of, range(world_size)))]
