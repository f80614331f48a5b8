"""What an error says: the learner's line, the cause, and nothing that differs from one run to the next."""

import pickle
import threading
import time

import torch
import torch.distributed as dist
import torch.utils.data

from labkit import RankError


def test_raises_while_another_reads_from_a_loader(fail):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, at):
            time.sleep(0.05)
            return at

    def strategy(rank, moment):
        loader = iter(torch.utils.data.DataLoader(Slow(), num_workers=2))
        next(loader)
        dist.barrier()
        if rank.rank == 0:
            moment.note()
            raise ValueError("wrong batch")
        for _ in loader:
            pass

    assert str(fail(strategy)) == "rank 0 raised ValueError: wrong batch"


def test_logging_from_a_loader_worker_is_refused(fail):
    """Two processes that write into one channel would garble it."""

    class Logs(torch.utils.data.Dataset):
        def __init__(self, rank):
            self.rank = rank

        def __len__(self):
            return 1

        def __getitem__(self, at):
            self.rank.log(at=at)

    def strategy(rank, moment):
        rank.log(before=1)
        time.sleep(0.2)  # so that the next record is sent and not only kept
        moment.note()
        next(iter(torch.utils.data.DataLoader(Logs(rank), num_workers=1)))

    assert str(fail(strategy, world_size=1)) == (
        "rank 0 raised RuntimeError: Caught RuntimeError in DataLoader worker process 0: RuntimeError: only the rank itself can "
        "log; this is a process that it started"
    )


def test_an_error_in_a_loader_worker_points_at_its_line(fail):
    class Wrong(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, at):
            return {}["label"]

    def strategy(rank, moment):
        moment.note()
        for _ in torch.utils.data.DataLoader(Wrong(), num_workers=1):
            pass

    error = fail(strategy, world_size=1)
    assert str(error) == "rank 0 raised KeyError: Caught KeyError in DataLoader worker process 0: KeyError: 'label'"
    outer, inner = error.traceback.split(", in __getitem__\n")
    assert "for _ in torch.utils.data.DataLoader" in outer and inner.startswith('    return {}["label"]\n')
    assert "site-packages" not in error.traceback and "fetch.py" not in error.traceback


def test_errors_that_cannot_be_pickled(fail):
    class Odd(Exception):
        def __init__(self, lock):
            super().__init__("held by", lock.__class__.__name__)
            self.lock = lock

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def strategy(rank, moment, kind):
        moment.note()
        raise (Odd(threading.Lock()) if kind == "odd" else Mute())

    assert str(fail(strategy, "odd")) == "rank 0 raised Odd: ('held by', 'lock')"
    assert str(fail(strategy, "mute")) == "rank 0 raised Mute: (its message cannot be shown: RuntimeError)"


def test_a_recursion_and_a_very_long_message_are_cut(fail):
    def descend(depth):
        return descend(depth + 1)

    def recursive(rank, moment):
        moment.note()
        descend(0)

    def wordy(rank, moment):
        moment.note()
        raise ValueError("word-" * 100_000)

    error = fail(recursive)
    assert str(error).startswith("rank 0 raised RecursionError: maximum recursion depth exceeded")
    assert error.traceback.count("\n") < 60 and "more calls …" in error.traceback
    error = fail(wordy)
    assert len(str(error)) < 5_000 and str(error).endswith(" … 496,000 more characters")


def test_the_chain_of_causes_is_shown(fail):
    def read(path):
        raise FileNotFoundError(path)

    def strategy(rank, moment):
        try:
            read("weights.pt")
        except FileNotFoundError as error:
            moment.note()
            raise ValueError("no weights") from error

    error = fail(strategy)
    assert str(error) == "rank 0 raised ValueError: no weights"
    first, cause = error.traceback.split("caused by ")
    assert 'raise ValueError("no weights") from error' in first
    assert cause.startswith("FileNotFoundError: weights.pt\n") and "in read" in cause


def test_a_result_that_cannot_be_sent_back_is_named(fail):
    def strategy(rank, moment):
        moment.note()
        return {"loss": 1.0, "batches": (batch for batch in range(3))}

    error = fail(strategy)
    assert str(error).startswith("rank 0 raised TypeError: the result cannot be sent back: result['batches'] (a generator)")


def test_an_unused_layer_under_ddp_is_named_once(fail):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.forgotten = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    def strategy(rank, moment):
        net = torch.nn.parallel.DistributedDataParallel(Net())
        for _ in range(3):
            moment.note()
            net(torch.ones(2, 4)).sum().backward()

    error = fail(strategy)
    assert error.kind == "raised"
    assert "find_unused_parameters=True" in str(error)
    assert str(error).endswith("Parameters that took no part in the loss: forgotten.weight, forgotten.bias")
    assert error.run.log.count("Expected to have finished reduction") <= 2  # the full text of each rank


def test_an_error_outside_of_python_survives_pickling():
    error = RankError("rank 1 raised KeyError: 'x'", rank=1, kind="raised", traceback="rank 1:\n")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank, again.kind, again.traceback) == (str(error), 1, "raised", "rank 1:\n")
    assert error.__notes__ == ["rank 1:"]
