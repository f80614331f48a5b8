"""What a learner sees while ranks run: their prints and one picture, in a notebook or in a terminal.

In a notebook the prints of a run go through one updatable output, at most four times a second, and end as one block of
stdout (and one of stderr). The updatable output is empty in the stored file: nbval 0.11 compares an output as it was
first shown with the file, which holds its last update, so nothing that changes may remain in it (tried). What is
compared is the final text, which does not depend on the order in which ranks wrote. Stderr is kept apart since new
versions of libraries put new warnings there; progress bars, which usually write there, are seen while they run.
"""

import importlib.util
import sys
import time
import uuid

from labkit.prints import Stream, batches, first_bar, merged, shortened, text_of, texts_of, visible

PRINTS_EVERY_S = 0.25
PICTURE_EVERY_S = 0.5
BUSY_SHARE = 20  # a frame on cores that ranks use waits this many times the last frame's cost
STREAMS = ("stdout", "stderr")


def in_notebook():
    """Whether this code runs in the kernel of a notebook; never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Display:
    """One output of the current cell that can be replaced in place."""

    def __init__(self):
        self._id = None

    def publish(self, data, metadata=None):
        """Shows a MIME bundle below what the cell shows already, and from the second time on replaces it."""
        from IPython import get_ipython

        update = self._id is not None
        self._id = self._id or uuid.uuid4().hex
        get_ipython().display_pub.publish(data, metadata or {}, transient={"display_id": self._id}, update=update)


class Prints:
    """The prints of `world_size` ranks: fed as bytes, shown tagged by rank, whole in a log.

    log     a text writer that gets every line ("rank 2: ..."), in the order of arrival
    live    False: shown only by close(), once the ranks are done
    name    what the lines are tagged with; limit_lines: how many lines the merged text may have
    """

    def __init__(self, world_size, *, name="rank", limit_lines=200, log=None, live=True):
        self.name, self.limit_lines = name, limit_lines
        self._log, self._live, self._piecemeal = log, live, live and not in_notebook()
        self._streams = {stream: [Stream(limit_lines) for _ in range(world_size)] for stream in STREAMS}
        self._arrived = {stream: [[] for _ in range(world_size)] for stream in STREAMS}
        self._display, self._due, self._cost_s = None, None, 0.0
        self._new = self._closed = False

    def feed(self, rank, stream, data):
        """Takes bytes that `rank` wrote to `stream`, "stdout" or "stderr", cut anywhere."""
        self._new = True
        self._add(rank, stream, self._streams[stream][rank].feed(data))

    def text(self, stream="stdout"):
        """The merged text so far: common lines once ("all 4 ranks: ..."), the others rank by rank."""
        return merged(self._streams[stream], name=self.name, limit=self.limit_lines)

    def show(self, now):
        """Shows what is new, a quarter of a second after its first line, so that ranks' equal lines can meet.

        `now` is a time.monotonic(). A call that comes too early, or has nothing to show, costs next to nothing.
        """
        if not self._live or not self._new:
            return
        if self._due is None:
            self._due = now + max(PRINTS_EVERY_S, BUSY_SHARE * self._cost_s)
        if now < self._due:
            return
        start, self._new, self._due = time.perf_counter(), False, None
        if self._piecemeal:
            self._print_arrived()
        else:
            self._update()
        self._cost_s = time.perf_counter() - start

    def close(self):
        """Ends all lines and shows the final text; the second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for stream, ranks in self._streams.items():
            for rank, lines in enumerate(ranks):
                self._add(rank, stream, lines.feed(b"", final=True))
        if self._piecemeal:
            self._print_arrived()
            return
        if self._display:
            self._display.publish({})
        for stream in STREAMS:
            write(stream, self.text(stream))

    def _add(self, rank, stream, lines):
        if self._log and lines:
            self._log.write("".join([f"{self.name} {rank}: {line.text}\n" for line in lines]))
        if self._piecemeal:
            self._arrived[stream][rank] += [shortened(line) for line in lines if visible(line)]

    def _update(self):
        text = "".join(self.text(stream) for stream in STREAMS)
        if text and not self._display:
            self._display = Display()
            self._display.publish({})
        if self._display:
            self._display.publish({"text/plain": text})

    def _print_arrived(self):
        for stream, ranks in self._arrived.items():
            bar_rank = first_bar(self._streams[stream])
            texts = [texts_of(lines, bars=rank == bar_rank) for rank, lines in enumerate(ranks)]
            write(stream, text_of(batches(texts, name=self.name)))
            self._arrived[stream] = [[] for _ in ranks]


class Picture:
    """One picture that is replaced in place while ranks run; nothing at all outside a notebook.

    text    what stands for it where pictures cannot be shown; nbval compares it, so it must never change
    .cost_s seconds that the last frame took, drawing included where update() is given a function
    """

    def __init__(self, text):
        self.text, self.cost_s = text, 0.0
        self._display = Display() if in_notebook() and importlib.util.find_spec("matplotlib") else None
        self._shown_at = float("-inf")

    def due(self, now, *, busy=False):
        """Whether to draw a frame at `now`, a time.monotonic(): at most two a second.

        busy: the ranks share the kernel's cores, so the next frame waits 20 times the last one's cost.
        """
        wait = max(PICTURE_EVERY_S, BUSY_SHARE * self.cost_s if busy else 0.0)
        return self._display is not None and now - self._shown_at >= wait

    def update(self, figure):
        """Shows a figure, or what a function without arguments draws; the last frame is what the file keeps."""
        if self._display is None:
            return
        from labkit.canvas import png

        start = time.monotonic()
        data, width_px = png(figure() if callable(figure) else figure)
        # Both lengths are given, so the page does not jump while the browser decodes the next frame.
        size = {"width": width_px, "height": round(width_px * png_height(data) / png_width(data))}
        self._display.publish({"image/png": data, "text/plain": self.text}, {"image/png": size})
        self._shown_at = time.monotonic()
        self.cost_s = self._shown_at - start


def png_width(data):
    return int.from_bytes(data[16:20], "big")


def png_height(data):
    return int.from_bytes(data[20:24], "big")


def write(stream, text):
    """Writes to this process's own stdout or stderr as they are now, which a notebook may have replaced."""
    if text:
        file = getattr(sys, stream)
        file.write(text)
        file.flush()
