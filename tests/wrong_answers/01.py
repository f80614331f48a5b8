"""Wrong answers to the exercises of notebook 01, each with the cause that its check must name."""

import time
from statistics import mean, median

import torch


def counting(wrong):
    """What `count_parameters` may look like: the right count and `wrong` of D, L, V, T and tied beside it."""

    def count_parameters(*, blocks, d_model, vocab_size, seq_len, tied):
        block = 4 * d_model**2 + d_model + 8 * d_model**2 + 5 * d_model + 4 * d_model
        head = 2 * d_model + (0 if tied else vocab_size * d_model)
        right = (vocab_size + seq_len) * d_model + blocks * block + head
        return right + wrong(d_model, blocks, vocab_size, seq_len, tied)

    return count_parameters


def states(weights, gradients, state, *, each=16, gib=2**30):
    """What the pair of answers to 1.2 may look like, from bytes per parameter."""

    def model_states(parameters):
        return weights * parameters, gradients * parameters, state * parameters

    def largest_model(memory_gib):
        return memory_gib * gib / each

    return model_states, largest_model


def summed_states(parameters):
    return 16 * parameters


def adding(weigh):
    """What `accumulate` may look like: each micro-batch's loss times weigh(rows, all rows, micro-batches)."""

    def accumulate(model, job, micro_batches):
        total = sum(len(tokens) for tokens, _ in micro_batches)
        for tokens, targets in micro_batches:
            loss = job.loss(model(tokens), targets)
            (loss * weigh(len(tokens), total, len(micro_batches))).backward()

    return accumulate


def all_at_once(model, job, micro_batches):
    tokens, targets = (torch.cat(parts) for parts in zip(*micro_batches))
    job.loss(model(tokens), targets).backward()


def one_backward(model, job, micro_batches):
    total = sum(len(tokens) for tokens, _ in micro_batches)
    sum(len(tokens) / total * job.loss(model(tokens), targets) for tokens, targets in micro_batches).backward()


def zeroing(model, job, micro_batches):
    total = sum(len(tokens) for tokens, _ in micro_batches)
    for tokens, targets in micro_batches:
        model.zero_grad()
        (len(tokens) / total * job.loss(model(tokens), targets)).backward()


def without_backward(model, job, micro_batches):
    return sum(job.loss(model(tokens), targets) for tokens, targets in micro_batches)


def updating(model, job, micro_batches):
    adding(lambda rows, total, count: rows / total)(model, job, micro_batches)
    job.optimizer(model.parameters()).step()


def timing(statistic=median, *, warm_up=3, steps=7, first=True, each=True):
    """What `step_seconds` may look like; `first` and `each`: whether it synchronises after the warm-up and each step."""

    def step_seconds(step, synchronise, clock):
        for _ in range(warm_up):
            step()
        if first:
            synchronise()
        times = []
        for _ in range(steps):
            start = clock()
            step()
            if each:
                synchronise()
            times.append(clock() - start)
        return statistic(times)

    return step_seconds


def together(step, synchronise, clock):
    for _ in range(3):
        step()
    synchronise()
    start = clock()
    for _ in range(10):
        step()
    synchronise()
    return (clock() - start) / 10


def own_clock(step, synchronise, clock):
    times = []
    for _ in range(8):
        start = time.perf_counter()
        step()
        synchronise()
        times.append(time.perf_counter() - start)
    return median(times)


WRONG_ANSWERS = {
    "1.1": [
        (counting(lambda d, blocks, v, t, tied: 0 if tied else -v * d), "the head's weight, .V, D., is missing"),
        (counting(lambda d, blocks, v, t, tied: v * d if tied else 0), "a tied head shares the embedding's weight"),
        (counting(lambda d, blocks, v, t, tied: 3 * blocks * d), "query, key and value have no bias"),
        (counting(lambda d, blocks, v, t, tied: -t * d), "the positions, .T, D., are missing"),
        (counting(lambda d, blocks, v, t, tied: -2 * d), "the norm before the head is missing"),
        (counting(lambda d, blocks, v, t, tied: -(2 * blocks + 1) * d), "a norm has a weight and a bias"),
        (counting(lambda d, blocks, v, t, tied: -2 * d - t * d), "positions, .T, D., are missing; and the norm before the head"),
        (counting(lambda d, blocks, v, t, tied: 7), "7 too many for blocks=4"),
        (lambda **sizes: "many", "text where a number is expected"),
    ],
    "1.2": [
        (states(2, 2, 8, each=12), "8 bytes of optimizer state per parameter are those of m and v"),
        (states(4, 2, 12), "4 bytes per parameter are float32: the weights are bfloat16"),
        (states(2, 4, 12), "4 bytes per parameter are float32: the gradients are bfloat16"),
        (states(2, 2, 12, each=12), "follows from 12 bytes per parameter"),
        (states(2, 2, 12, each=4), "follows from 4 bytes per parameter, those of weights and gradients"),
        (states(2, 2, 12, each=18), "follows from 18 bytes per parameter, those of float32 gradients"),
        (states(2, 2, 12, gib=1e9), "GB .* and GiB .* exchanged"),
        (states(2, 2, 6), "6 bytes of optimizer state per parameter are not right"),
        ((summed_states, states(2, 2, 12)[1]), "where three numbers are expected"),
    ],
    "1.3": [
        (adding(lambda rows, total, count: 1 / count), r"40 \+ 24 rows: off by \d.\de-0\d: the plain mean of means"),
        (adding(lambda rows, total, count: 1), "the sum of the micro-batches' means"),
        (adding(lambda rows, total, count: rows / total / count), "divided by the number of micro-batches too"),
        (adding(lambda rows, total, count: rows), "off by the factor 64"),
        (adding(lambda rows, total, count: 1 - rows / total), "counts more than one of many"),
        (all_at_once, "64 rows were computed at once"),
        (one_backward, "several micro-batches were alive at once"),
        (zeroing, "only the last micro-batch is in it: were gradients set to zero"),
        (without_backward, "was `backward` called"),
        (updating, "the weights have changed"),
    ],
    "1.4": [
        (timing(warm_up=0), "the first 2 calls, which are slow, are among the steps timed"),
        (timing(mean, warm_up=1), "the first 2 calls"),
        (timing(each=False), "the clock was read while the device was still at work"),
        (timing(first=False), "`synchronise` after the warm-up too"),
        (timing(mean), "the mean, which every hiccup pulls up"),
        (timing(min), "the fastest step, which is luck"),
        (timing(sum), "the time of all steps together"),
        (timing(steps=3), "3 steps were timed after the warm-up"),
        (together, "10 steps lie between two readings"),
        (own_clock, "read it before a step and after"),
        (timing(lambda times: 1000 * median(times)), "off by the factor 1000"),
    ],
}
