"""What one rank times and counts while it runs."""

import time

import torch

from labkit.timeline import COMPUTE_KINDS
from labkit.traffic import Counter

MAX_SPANS = 200_000


class Recorder:
    """Time stamps, spans and traffic of one rank, kept in its own memory until the run ends."""

    def __init__(self, rank, device):
        self.rank, self.on_cuda = rank, device.type == "cuda"
        self.counter, self.spans, self.dropped = Counter(), [], 0
        self.automatic, self.own = [], set()  # spans of module_spans; the families of spans that the strategy makes itself
        self.step = None
        if self.on_cuda:
            torch.cuda.synchronize(device)
            self._anchor = self.stamp()
        self._anchor_s = time.perf_counter()

    def stamp(self):
        """Returns a time: seconds on the CPU's clock, or a CUDA event in the current stream."""
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, stream, kind, name, start, end, labels):
        if len(self.spans) >= MAX_SPANS:
            self.dropped += 1
            return
        if self.step is not None:
            labels = {"step": self.step, **labels}
        self.spans.append((stream, kind, name, start, end, labels))

    def add_automatic(self, kind, name, start, labels):
        """Adds a span that ends now and that counts only where the strategy makes none of its family itself.

        `labels` may still be completed until the run ends.
        """
        if family(kind) not in self.own and len(self.automatic) < MAX_SPANS:
            self.automatic.append(("compute", kind, name, start, self.stamp(), labels, self.step))

    def clear(self):
        """Forgets what was sent and timed until now: set-up is not part of the steps."""
        self.counter.clear()
        self.spans.clear()
        self.automatic.clear()

    def rows(self):
        """Returns all spans as (rank, stream, kind, name, start_s, end_s, labels), on the host's clock."""
        if self.on_cuda:
            torch.cuda.synchronize()
        automatic = [
            (*span, labels if step is None else {"step": step, **labels})
            for *span, labels, step in self.automatic
            if family(span[1]) not in self.own
        ]
        return [
            (self.rank, stream, kind, name, self._seconds(start), self._seconds(end), labels)
            for stream, kind, name, start, end, labels in [*self.spans, *automatic]
        ]

    def _seconds(self, stamp):
        return stamp if not self.on_cuda else self._anchor_s + self._anchor.elapsed_time(stamp) / 1e3


def family(kind):
    """Forward and backward of all kinds are one family of spans: who times the one, times the other."""
    return "compute" if kind in COMPUTE_KINDS else kind
