"""Whether data arrive as they were sent: between GPUs by plain copies, between ranks by all_reduce. Compared number by number."""

import contextlib
import itertools
import signal

import torch
import torch.distributed as dist

SIZES = (1_000, 2**20 + 3)  # numbers of 8 bytes: one short message, and one that is cut into pieces


def changed_copies(devices, *, copy=torch.Tensor.to, sizes=SIZES):
    """Pairs of positions (source, target) in `devices` between which a direct copy changes data, in both directions.

    Each copy is compared with the same tensor brought over host memory. The numbers are new for each copy: memory that still
    holds those of an earlier one does not pass for a copy.
    """
    numbers = torch.Generator().manual_seed(0)
    changed = []
    for source, target in itertools.permutations(range(len(devices)), 2):
        for size in sizes:
            sent = torch.randint(2**62, (size,), generator=numbers).to(devices[source])
            arrived = copy(sent, devices[target])
            if not torch.equal(arrived.cpu(), sent.cpu()):
                changed.append((source, target))
                break
    return changed


def copies_on_one_rank(rank, count, limit_s):
    """On a rank that sees `count` GPUs: (pairs whose copies arrive changed, number of pairs that are copied directly)."""
    with ended_after(limit_s):
        pairs = itertools.permutations(range(count), 2)
        direct = sum(torch.cuda.can_device_access_peer(source, target) for source, target in pairs)
        return changed_copies([torch.device("cuda", index) for index in range(count)]), direct


def wrong_sums(rank, limit_s):
    """On every rank: how many numbers of an all_reduce differ from the sum computed without communication."""
    wrong = 0
    with ended_after(limit_s):
        for size in SIZES:
            parts = [_numbers(size, seed=other) for other in range(rank.world_size)]
            total = parts[rank.rank].to(rank.device, copy=True)
            dist.all_reduce(total)
            wrong += int((total.cpu() != sum(parts)).sum())
    return wrong


def _numbers(size, seed):
    return torch.randint(2**40, (size,), generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def ended_after(limit_s):
    """The system ends this process if the block takes longer, even where it hangs in the driver's code."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit_s)
    yield
    signal.alarm(0)
