"""Wrong answers to the exercises of notebook 05, each with the cause that its check must name."""

from itertools import combinations, pairwise

import torch
import torch.distributed as dist


def equally_many(costs, stages):
    return [len(costs) // stages + (stage < len(costs) % stages) for stage in range(stages)]


def filled_to_the_mean(costs, stages):
    cut, cost = [0], 0
    for at, one in enumerate(costs):
        full = cost + one > sum(costs) / stages or len(costs) - at == stages - len(cut)
        if cut[-1] and len(cut) < stages and full:
            cut.append(0)
            cost = 0
        cut[-1] += 1
        cost += one
    return cut


def with_empty_stages(costs, stages):
    return [len(costs)] + [0] * (stages - 1)


def ends_of_stages(costs, stages):
    return [sum(equally_many(costs, stages)[: stage + 1]) for stage in range(stages)]


def every_cut(costs, stages):
    cuts = ((0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), stages - 1))
    best = min(cuts, key=lambda ends: max(sum(costs[a:b]) for a, b in pairwise(ends)))
    return [b - a for a, b in pairwise(best)]


def both_ends_with(*, embedding=True, gradient=1.0, receive_first=False, stages="ends", extra=False, own_targets=False):
    """What `both_ends` may look like, with one thing wrong or another."""

    def both_ends(rank, job):
        if stages == "ends":
            part = job.model(blocks=()) if rank.rank == 0 else job.model(embed=False, head=False)
        else:
            part = job.model()
        optimizer = job.optimizer(part.parameters())
        other = 1 - rank.rank

        def receive():
            tensor = torch.empty(job.batch_size, job.seq_len, job.d_model, dtype=job.parameter_dtype)
            dist.recv(tensor, other)
            return tensor

        def ends(tokens, targets):
            y = part.embed(tokens)
            if receive_first:
                receive()
            dist.send(y.detach(), other)
            x = receive().requires_grad_()
            loss = job.loss(part.head(x), tokens if own_targets else targets)
            loss.backward()
            dist.send(x.grad, other)
            back = receive()
            if embedding:
                y.backward(gradient * back)
            return loss.detach()

        def middle():
            x = receive().requires_grad_()
            y = x
            for block in part.blocks:
                y = block(y)
            dist.send(y.detach(), other)
            y.backward(receive())
            dist.send(x.grad, other)

        def step(tokens, targets):
            loss = ends(tokens, targets) if rank.rank == 0 else middle()
            if extra and rank.rank == 0:
                dist.send(loss, other)
            elif extra:
                dist.recv(torch.empty((), dtype=torch.float64), other)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    return both_ends


def untied_ends(rank, job):
    return both_ends_with()(rank, job.replace(tied=False))


def busy_share(by):
    """What `utilisation` may look like: the stages' time over something made of it, of p and of a message's time."""
    return lambda stage_s, link_s=0.0: by(sum(stage_s), len(stage_s), link_s)


WRONG_ANSWERS = {
    "5.1": [
        (equally_many, "stages of equally many layers, whatever a layer costs"),
        (filled_to_the_mean, "filled up to the mean"),
        (with_empty_stages, "leaves a stage without a layer"),
        (ends_of_stages, r"does not cut \d layers into 2 stages"),
        (every_cut, "not done after 10 s with 48 layers in 8 stages: of 62,891,499 cuts not all can be tried"),
        (lambda costs, stages: max(costs), "where a list of 2 whole numbers is expected"),
    ],
    "5.2": [
        (both_ends_with(embedding=False), "the embedding has no gradient: rank 0 calls `backward` a second time"),
        (both_ends_with(gradient=0.5), "the gradient of `embed.tokens.weight`: off by the factor 1/2"),
        (both_ends_with(receive_first=True), "rank 0 waits in recv.*rank 1 waits in recv"),
        (both_ends_with(stages="all"), "rank 0 holds blocks and embed and head"),
        (both_ends_with(extra=True), "an update sends 5 messages"),
        (both_ends_with(own_targets=True), "the gradient of"),
        (untied_ends, "with a tied head, "),
    ],
    "5.3": [
        (busy_share(lambda busy, p, link_s: 1 / p), "messages take time too"),
        (busy_share(lambda busy, p, link_s: busy / p / (busy + (p - 1) * link_s)), "every link is passed twice"),
        (busy_share(lambda busy, p, link_s: busy / p / (busy + 2 * p * link_s)), "one link less than there are stages"),
        (busy_share(lambda busy, p, link_s: busy / (busy + 2 * (p - 1) * link_s)), r"\*any\* device computes"),
        (busy_share(lambda busy, p, link_s: 1 - busy / p / (busy + 2 * (p - 1) * link_s)), "in which a device is idle"),
        (busy_share(lambda busy, p, link_s: 100 * busy / p / (busy + 2 * (p - 1) * link_s)), "percent where a fraction belongs"),
        (lambda stage_s, link_s=0.0: max(stage_s) / sum(stage_s), "off by the factor 2"),
    ],
}
