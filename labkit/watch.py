"""What one rank notes of its communication while it runs, for the kernel to see and for the run's timeline."""

import contextlib
import threading
import time

from torch.distributed import distributed_c10d

from labkit.status import BEGUN, ENDED, OPERATIONS, OUTSTANDING, WAITING

torch_wait = distributed_c10d.Work.wait


class Watch:
    """What one rank notes of its communication: the shared page, the counter and the spans."""

    def __init__(self, rank, status, recorder):
        self.rank, self.status, self.recorder = rank, status, recorder
        self.open = {}  # id of a Work -> (Work, operation, payload bytes, start, asynchronous)
        self.on_device = []  # (Work, operation) that a GPU may still be busy with
        self._on_cpu, self._lock = {}, threading.Lock()  # id of a Work -> operation, of asynchronous ones that are not done

    def begin(self, operation):
        self.status.add(self.rank, BEGUN)
        self.status.set(self.rank, WAITING, OPERATIONS.index(operation) + 1)

    def end(self):
        self.status.set(self.rank, WAITING, 0)
        self.status.add(self.rank, ENDED)

    @contextlib.contextmanager
    def waiting(self, operation):
        self.begin(operation)
        try:
            yield
        finally:
            self.end()

    def called(self, operation, payload_bytes, group, arguments, work, start, asynchronous):
        """Notes a call that has been handed to the backend; its span closes when the Work is done."""
        self.recorder.counter.count(operation, payload_bytes, group.size())
        if work is None:
            return
        self.open[id(work)] = (work, operation, payload_bytes, start, asynchronous)
        if self.recorder.on_cuda:
            self.on_device.append((work, operation))
        if asynchronous and operation not in ("send", "recv"):
            self._follow(work, operation)

    def _follow(self, work, operation):
        """Closes the span of an asynchronous collective when it really ends, which only its future tells.

        Gloo's reduce_scatter has none, as point-to-point has none: their spans close when they are waited for.
        """
        with contextlib.suppress(RuntimeError):
            future = work.get_future()
            self._show(id(work), operation)
            future.add_done_callback(lambda _: self.done(work))

    def done(self, work):
        entry = self.open.pop(id(work), None)
        if entry is not None:
            self._show(id(work), None)
            _, operation, payload_bytes, start, _ = entry
            end = self.recorder.stamp()
            self.recorder.add("communicate", "communicate", operation, start, end, {"bytes": payload_bytes})

    def _show(self, key, operation):
        """Shows the oldest asynchronous collective: what DDP and others wait for in C++ does not pass through `wait`."""
        if self.recorder.on_cuda:
            return
        with self._lock:
            if operation is None:
                self._on_cpu.pop(key, None)
            else:
                self._on_cpu[key] = operation
            oldest = next(iter(self._on_cpu.values()), None)
            self.status.set(self.rank, OUTSTANDING, OPERATIONS.index(oldest) + 1 if oldest else 0)

    def wait(self, work, *timeout):
        """Stands in for Work.wait: the page shows the wait, and an asynchronous one leaves a span."""
        entry = self.open.get(id(work))
        operation = entry[1] if entry else "wait"
        start = self.recorder.stamp()
        self.begin(operation)
        try:
            return torch_wait(work, *timeout)
        finally:
            self.end()
            if entry and entry[4]:
                self.recorder.add("compute", "wait", operation, start, self.recorder.stamp(), {})
            self.done(work)

    def poll_device(self, period_s=0.5):
        """Shows the oldest collective that the GPU has not finished; runs in a thread of its own, on CUDA only."""
        while True:
            self.on_device = [entry for entry in self.on_device if not entry[0].is_completed()]
            oldest = OPERATIONS.index(self.on_device[0][1]) + 1 if self.on_device else 0
            self.status.set(self.rank, OUTSTANDING, oldest)
            time.sleep(period_s)
