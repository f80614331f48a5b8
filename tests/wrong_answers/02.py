"""Wrong answers to the exercises of notebook 02, each with the cause that its check must name."""

import math

import numpy as np
import torch
import torch.distributed as dist

RIGHT = {
    "broadcast": [2, 6, 8],
    "scatter": [1],
    "all_gather": [3, 5, 8],
    "reduce_scatter": [12],
    "all_reduce": [6, 12, 21],
    "all_to_all": [1, 5, 6],
}


def holding(**changed):
    return RIGHT | changed


def exchange(rank, outgoing, incoming):
    right, left = (rank.rank + 1) % rank.world_size, (rank.rank - 1) % rank.world_size
    operations = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()


def ring(*, shift=-1, added=True, cut=None, gathered=True):
    """What `my_ring` may look like; with the defaults it would be right."""

    def my_ring(rank, tensor):
        n, whole = rank.world_size, tensor.clone()
        chunks = whole.tensor_split(n) if cut is None else cut(whole, n)
        for step in range(n - 1):
            growing = chunks[(rank.rank - step - 1 + shift) % n]
            incoming = torch.empty_like(growing)
            exchange(rank, chunks[(rank.rank - step + shift) % n], incoming)
            growing.copy_(growing + incoming if added else incoming)
        own = chunks[(rank.rank + 1 + shift) % n].clone()
        for step in range(n - 1 if gathered else 0):
            exchange(rank, chunks[(rank.rank - step + 1 + shift) % n], chunks[(rank.rank - step + shift) % n])
        return own, whole

    return my_ring


def even_chunks(whole, n):
    """Drops what does not divide."""
    size = len(whole) // n
    return [whole[k * size : (k + 1) * size] for k in range(n)]


def library(rank, tensor):
    whole = tensor.clone()
    dist.all_reduce(whole)
    return whole.tensor_split(rank.world_size)[rank.rank], whole


def star(rank, tensor):
    whole, incoming = tensor.clone(), torch.empty_like(tensor)
    if rank.rank == 0:
        for other in range(1, rank.world_size):
            dist.recv(incoming, src=other)
            whole += incoming
        for other in range(1, rank.world_size):
            dist.send(whole, dst=other)
    else:
        dist.send(whole, dst=0)
        dist.recv(whole, src=0)
    return whole.tensor_split(rank.world_size)[rank.rank], whole


def uncut(rank, tensor):
    whole, travelling = tensor.clone(), tensor.clone()
    for _ in range(rank.world_size - 1):
        incoming = torch.empty_like(tensor)
        exchange(rank, travelling, incoming)
        whole += incoming
        travelling = incoming
    return whole.tensor_split(rank.world_size)[rank.rank], whole


def blocking(rank, tensor):
    incoming = torch.empty_like(tensor)
    dist.send(tensor, dst=(rank.rank + 1) % rank.world_size)
    dist.recv(incoming, src=(rank.rank - 1) % rank.world_size)
    return incoming, tensor + incoming


def shown_ring_cut_at_the_end(rank, tensor):
    whole = ring(shift=0)(rank, tensor)[1]
    return whole.tensor_split(rank.world_size)[rank.rank], whole


def total_only(rank, tensor):
    return ring()(rank, tensor)[1]


def least_squares(table, *, weights=None, upside_down=False, swapped=False, unit=1.0):
    sizes, times = np.array(list(table), dtype=float), np.array(list(table.values()))
    slope, alpha_s = np.polyfit(sizes, times, 1, w=1 / times if weights is None else np.ones(len(times)))
    answer = unit * alpha_s, slope if upside_down else 1 / slope
    return answer[::-1] if swapped else answer


def plain(table):
    return least_squares(table, weights="none")


def upside_down(table):
    return least_squares(table, upside_down=True)


def swapped(table):
    return least_squares(table, swapped=True)


def in_microseconds(table):
    return least_squares(table, unit=1e6)


def two_points(table):
    (small, first_s), *_, (large, last_s) = table.items()
    return first_s, (large - small) / (last_s - first_s)


def learned_by_heart(table):
    return 170.3e-6, 1.688e9


def only_alpha(table):
    return least_squares(table)[0]


def planned(*, each=None, flat=None, bucket=None):
    """What `plan` may look like; what is None would be right."""

    def plan(alpha_s, bytes_per_s):
        right_each = 200 * (alpha_s + 4096 / bytes_per_s)
        right_flat = alpha_s + 200 * 4096 / bytes_per_s
        exact = 9 * alpha_s * bytes_per_s / 4096
        return (
            each(alpha_s, bytes_per_s) if each else right_each,
            flat(alpha_s, bytes_per_s) if flat else right_flat,
            bucket(exact) if bucket else math.ceil(exact),
        )

    return plan


WRONG_ANSWERS = {
    "2.1": [
        (holding(broadcast=[3, 1, 4]), "broadcast: that is what rank 0 held before; everybody holds all cells of rank 2"),
        (holding(scatter=[3]), "scatter: that is what rank 0 holds afterwards"),
        (holding(scatter=1), r"scatter: the right number, but a rank holds a list of numbers.*: \[1\]"),
        (holding(scatter=5), "scatter: 5 is not right: rank r gets cell r of rank 0"),
        (list(RIGHT.values()), "keep the dict"),
        (holding(all_gather=[3, 1, 4, 1, 5, 9, 2, 6, 8]), "all_gather: .* everybody holds cell r of each rank r"),
        (holding(reduce_scatter=[6, 12, 21]), "reduce_scatter: that is what all_reduce gives; rank r gets one number"),
        (holding(reduce_scatter=[15]), r"reduce_scatter: \[15\] is not right: .* the sum of all cells r"),
        (holding(all_reduce=[2, 4, 7]), "all_reduce: .* the sums, cell by cell"),
        (holding(all_to_all=[1, 5, 9]), "all_to_all: that is what rank 1 held before"),
        (holding(all_to_all=[6, 5, 1]), "in the order of the ranks"),
        ({name: RIGHT[name] for name in list(RIGHT)[:5]}, "there is no entry 'all_to_all'"),
    ],
    "2.2": [
        (ring(shift=0), "3 ranks, 12 numbers: rank 0, the total is right, but the chunk is the sum of chunk 1, not 0"),
        (ring(added=False), "the total: every number is still that of a single rank; add what arrives"),
        (ring(gathered=False), "the total: only chunk 0 is complete; is the second half, the all_gather, missing"),
        (ring(cut=even_chunks), "3 ranks, 11 numbers: rank 0, the total: only the last 2 of 11 along dim 0 are wrong"),
        (library, "all_reduce was called; only sends and receives"),
        (star, "in all are right, but rank 0 sends .* of them; a ring spreads them evenly"),
        (shown_ring_cut_at_the_end, "the ranks send what our ring sends: after the first half chunk r is not yet on rank r"),
        (uncut, "576 bytes were sent where .* = 384 are expected, 1.5 times as many"),
        (blocking, "rank 0 waits in send.*; rank 1 waits in send"),
        (total_only, r"return two tensors: \(chunk, total\)"),
    ],
    "2.3": [
        (plain, "for `table`: plain least squares: the largest sizes decide alone"),
        (upside_down, "β is upside down"),
        (swapped, "the right numbers in the wrong order"),
        (in_microseconds, "α is off by a power of ten"),
        (two_points, "α is the time of the smallest size alone"),
        (learned_by_heart, "for table 2 of 3: α: it is "),
        (only_alpha, "return two numbers"),
    ],
    "2.4": [
        (planned(each=lambda alpha_s, bytes_per_s: alpha_s + 819200 / bytes_per_s), "200 calls: α is paid once here; every call"),
        (planned(each=lambda alpha_s, bytes_per_s: 200 * alpha_s), "200 calls: the bytes are missing"),
        (planned(flat=lambda alpha_s, bytes_per_s: 200 * alpha_s + 819200 / bytes_per_s), "one call pays it once"),
        (planned(flat=lambda alpha_s, bytes_per_s: 819200 / bytes_per_s), "one flat call: α is missing"),
        (planned(flat=lambda alpha_s, bytes_per_s: alpha_s + 800000 / bytes_per_s), "one flat call: it is 2.2 % too small"),
        (planned(bucket=lambda exact: math.ceil(exact * 10 / 9)), "10 % of the whole call, α [+] bytes/β"),
        (planned(bucket=math.floor), "round up"),
        (planned(bucket=lambda exact: exact), "round up"),
        (planned(bucket=lambda exact: math.ceil(exact * 4096)), "these are bytes; divide by 4,096"),
        (lambda alpha_s, bytes_per_s: 0.5, "return three numbers"),
    ],
}
