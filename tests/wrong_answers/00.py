"""Wrong answers to the exercises of notebook 00, each with the cause that its check must name."""

import torch
import torch.distributed as dist


def number_only(rank):
    return rank.rank**2


def swapped(rank):
    return rank.world_size, rank.rank**2


def doubled(rank):
    return 2 * rank.rank, rank.world_size


def fixed_world_size(rank):
    return rank.rank**2, 3


def printed(rank):
    print(rank.rank**2, rank.world_size)


def neighbours(rank):
    return (rank.rank - 1) % rank.world_size, (rank.rank + 1) % rank.world_size


def formula(rank):
    return rank.world_size * (rank.world_size - 1) // 2


def added_up(rank):
    token = torch.tensor([float(rank.rank)])
    dist.all_reduce(token)
    return token.item()


def one_round(rank):
    left, right = neighbours(rank)
    token = torch.zeros(1)
    if rank.rank > 0:
        dist.recv(token, src=left)
        token += rank.rank
    if rank.rank < rank.world_size - 1:
        dist.send(token, dst=right)
    return token.item()


def everyone_receives_first(rank):
    left, right = neighbours(rank)
    token = torch.zeros(1)
    dist.recv(token, src=left)
    token += rank.rank
    dist.send(token, dst=right)
    return token.item()


def everyone_sends_first(rank):
    left, right = neighbours(rank)
    token = torch.tensor([float(rank.rank)])
    dist.send(token, dst=right)
    dist.recv(token, src=left)
    return token.item()


def back_at_rank_0(rank):
    left, right = neighbours(rank)
    token = torch.zeros(1)
    if rank.rank == 0:
        dist.send(token, dst=right)
        dist.recv(token, src=left)
    else:
        dist.recv(token, src=left)
        token += rank.rank
        dist.send(token, dst=right)
    return token.item()


def nothing_added(rank):
    return relayed(rank, add=0)


def added_in_both_rounds(rank):
    return relayed(rank, rounds_that_add=2)


def without_last_rank(rank):
    return relayed(rank, skipped=rank.world_size - 1)


def formula_after_one_message(rank):
    left, right = neighbours(rank)
    token = torch.zeros(1)
    if rank.rank == 0:
        dist.send(token, dst=right)
    elif rank.rank == 1:
        dist.recv(token, src=left)
    return formula(rank)


def relayed(rank, *, add=1, rounds_that_add=1, skipped=None):
    """Two rounds of a token; with the defaults it would be right."""
    left, right = neighbours(rank)
    token = torch.zeros(1)
    for turn in range(2):
        own = add * rank.rank if turn < rounds_that_add and rank.rank != skipped else 0
        if rank.rank == 0:
            dist.send(token, dst=right)
            dist.recv(token, src=left)
        else:
            dist.recv(token, src=left)
            token += own
            dist.send(token, dst=right)
    return token.item()


def start(rank):
    return torch.tensor([rank.rank + 1.0]), torch.tensor([42.0 if rank.rank == 0 else 0.0])


def still_crossed(rank):
    number, secret = start(rank)
    calls = [lambda: dist.broadcast(secret, src=0), lambda: dist.all_reduce(number)]
    for call in calls if rank.rank == 0 else calls[::-1]:
        call()
    return number.item(), secret.item()


def one_call_dropped(rank):
    number, secret = start(rank)
    dist.all_reduce(number)
    return number.item(), 42.0


def secret_summed(rank):
    number, secret = start(rank)
    dist.all_reduce(number)
    dist.all_reduce(secret)
    return number.item(), secret.item()


def averaged(rank):
    number, secret = start(rank)
    dist.all_reduce(number)
    dist.broadcast(secret, src=0)
    return number.item() / rank.world_size, secret.item()


def from_rank_1(rank):
    number, secret = start(rank)
    dist.all_reduce(number)
    dist.broadcast(secret, src=1)
    return number.item(), secret.item()


def alone(rank):
    number, secret = start(rank)
    dist.broadcast(secret, src=0)
    if rank.rank == 0:
        dist.all_reduce(number)
    return number.item(), secret.item()


WRONG_ANSWERS = {
    "0.1": [
        (number_only, r"of 3 ranks, rank 0 returned 0 where \(0, 3\) is expected"),
        (swapped, "in the wrong order: first the square"),
        (doubled, r"rank 1 returned \(2, 3\) where \(1, 3\) is expected"),
        (fixed_world_size, r"of 2 ranks, rank 0 returned \(0, 3\)"),
        (printed, "does the function end with `return`"),
    ],
    "0.2": [
        (formula, "the value is right, but rank 0 never calls send"),
        (formula_after_one_message, "the value is right, but rank 0 never calls recv"),
        (added_up, "all_reduce was called: only send and recv"),
        (one_round, "a second round must carry the total"),
        (everyone_receives_first, "every rank waits in recv and nobody sends"),
        (everyone_sends_first, "every rank waits in send and nobody receives"),
        (back_at_rank_0, "a second round must carry the total"),
        (nothing_added, r"rank 0 returned 0 where 0 \+ … \+ 2 = 3 is expected"),
        (added_in_both_rounds, "rank 0 returned 6 where"),
        (without_last_rank, "rank 0 returned 1 where"),
    ],
    "0.3": [
        (still_crossed, "rank 0 waits in broadcast.*; rank 1 waits in all_reduce"),
        (one_call_dropped, "rank 0 calls broadcast 0 times"),
        (secret_summed, "rank 0 calls all_reduce 2 times"),
        (averaged, r"rank 0 returned \(1.5, 42.0\) where \(3.0, 42.0\) is expected"),
        (from_rank_1, r"rank 0 returned \(3.0, 0.0\)"),
        (alone, "rank 0 waits in all_reduce.*; rank 1 has returned"),
    ],
}
