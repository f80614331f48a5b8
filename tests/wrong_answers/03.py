"""Wrong answers to the exercises of notebook 03, each with the cause that its check must name."""

import torch
import torch.distributed as dist


def summed(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def divided_twice(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        parameter.grad /= dist.get_world_size()


def halved(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def on_rank_0_only(model):
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0, op=dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()


def not_written(model):
    for parameter in model.parameters():
        gradient = parameter.grad.clone()
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)


def matrices_only(model):
    for parameter in model.parameters():
        if parameter.dim() > 1:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def weights_averaged(model):
    summed(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size()
            parameter -= 0.1 * parameter.grad


def called_on_rank_0_only(model):
    if dist.get_rank() == 0:
        summed(model)


def strategy(*, seed_per_rank=False, gradient_op=dist.ReduceOp.AVG, loss_op=dist.ReduceOp.AVG, rows="own"):
    """What `mended` may look like, with one thing wrong or another."""

    def mended(rank, job):
        model = job.replace(seed=job.seed + rank.rank * seed_per_rank).model()
        optimizer = job.optimizer(model.parameters())

        def step(tokens, targets):
            mine = {"own": slice(rank.rank, None, rank.world_size), "all": slice(None), "first": slice(len(tokens) // 2)}[rows]
            loss = job.loss(model(tokens[mine]), targets[mine])
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=gradient_op)
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach()
            if loss_op is not None:
                dist.all_reduce(total, op=loss_op)
            return total

        return step

    return mended


def scaling_of(by):
    """What `scaled` may look like: the loss times a number made of its other arguments."""
    return lambda loss, rows, batch_size, world_size: loss * by(rows, batch_size, world_size)


def without_history(loss, rows, batch_size, world_size):
    return loss.item() * rows * world_size / batch_size


def threshold(times):
    """What `tokens_to_hide` may look like: e F / β times something made of N."""
    return lambda flops_per_s, bytes_per_s, *, world_size, element_bytes=4: (
        times(world_size) * element_bytes * flops_per_s / bytes_per_s
    )


def always_float32(flops_per_s, bytes_per_s, *, world_size, element_bytes=4):
    return (world_size - 1) / world_size * 4 * flops_per_s / (2 * bytes_per_s)


WRONG_ANSWERS = {
    "3.1": [
        (summed, "factor 3 = N: a sum where a mean belongs"),
        (divided_twice, "1/3 = 1/N: a mean where a sum belongs, or divided by N twice"),
        (halved, "off by the factor 3/2: divided by 2, but these are 3 ranks"),
        (on_rank_0_only, "the gradients are right on rank 0, but not on rank 1"),
        (not_written, "every gradient is still the rank's own"),
        (matrices_only, r"\d+ of \d+ gradients are still the rank's own, such as that of `blocks.0.attention_norm.weight`"),
        (weights_averaged, "the weights have changed"),
        (called_on_rank_0_only, "rank 0 waits in all_reduce"),
    ],
    "3.2": [
        (strategy(seed_per_rank=True, gradient_op=dist.ReduceOp.SUM), "rank 1 starts from other weights"),
        (strategy(seed_per_rank=True), "another seed per rank"),
        (strategy(gradient_op=dist.ReduceOp.SUM), "gradients are off by the factor N = 2: a sum where a mean belongs"),
        (strategy(loss_op=dist.ReduceOp.SUM), "the loss is off by the factor N = 2"),
        (strategy(loss_op=None), "the loss of a rank's own slice"),
        (strategy(rows="all"), "the ranks computed 16 rows of a batch of 8"),
        (strategy(rows="first"), "already the first loss departs"),
    ],
    "3.3": [
        (scaling_of(lambda rows, batch_size, world_size: 1), "the plain mean over the ranks"),
        (scaling_of(lambda rows, batch_size, world_size: rows / batch_size), "1/3 = 1/N"),
        (scaling_of(lambda rows, batch_size, world_size: rows), "factor 2.667: weighted by the rows, but not divided"),
        (scaling_of(lambda rows, batch_size, world_size: rows * world_size), "factor 8: weighted by the rows, but not"),
        (scaling_of(lambda rows, batch_size, world_size: batch_size / (rows * world_size)), "weighs 0.2 times as much"),
        (scaling_of(lambda rows, batch_size, world_size: 1 / world_size), "weighs 1 times as much"),
        (scaling_of(lambda rows, batch_size, world_size: rows * 3 / 8), "not for 12 rows on 4"),
        (scaling_of(lambda rows, batch_size, world_size: rows * world_size // batch_size), "does not count at all"),
        (without_history, "a tensor with its history"),
    ],
    "3.4": [
        (threshold(lambda n: (n - 1) / n / 3), "time of forward too"),
        (threshold(lambda n: (n - 1) / n), "2 are those of forward"),
        (threshold(lambda n: 1 / 4), "the ring's factor"),
        (threshold(lambda n: (n - 1) / n / 4), "an all_reduce is a reduce_scatter and an all_gather"),
        (threshold(lambda n: (n - 1) / 2), "the tokens of all devices"),
        (always_float32, "4 ranks, 2 bytes a gradient: off by the factor 2"),
        (lambda *numbers, **options: "many", "text where a number is expected"),
    ],
}
