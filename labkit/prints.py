"""What ranks print: bytes become lines, and the lines of all ranks one text that does not depend on who was first.

Lines that every rank prints are shown once; which ones those are is the longest common subsequence of what the ranks
printed, so the text is the same however their writes interleave. Memory is bounded: the first and last lines of each
rank are kept, the log has them all.
"""

import bisect
import codecs
import collections
import itertools
import re
from typing import NamedTuple

LINE_CHARACTERS = 2_000
BREAK_CHARACTERS = 65_536
BATCH_LINES = 400
CHATTER = "[Gloo] Rank"
CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-HJKhlsu]")


class Line(NamedTuple):
    """One line; a bar is one that its rank rewrote by carriage returns."""

    text: str
    bar: bool = False


class Shown(NamedTuple):
    """One line of the merged text, and how many printed lines it stands for."""

    text: str
    printed: int = 1


class Stream:
    """The lines of one stream of one rank, assembled from chunks that end anywhere, even within a character."""

    def __init__(self, limit):
        self.head, self.tail, self.counts = [], collections.deque(maxlen=limit), {False: 0, True: 0}
        self._limit, self._unfinished = limit, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data, *, final=False):
        """Returns the lines that these bytes complete; `final` ends the line in progress too."""
        *complete, rest = (self._unfinished + self._decoder.decode(data, final)).split("\n")
        while len(rest) > BREAK_CHARACTERS:
            complete.append(rest[:BREAK_CHARACTERS])
            rest = rest[BREAK_CHARACTERS:]
        if final and rest:
            complete.append(rest)
            rest = ""
        self._unfinished = collapsed(rest)
        lines = [line_of(raw) for raw in complete]
        self._keep([line for line in lines if visible(line)])
        return lines

    def lines(self):
        """Returns (first lines, last lines) with the one in progress; the last lines are empty where none were left out."""
        current = line_of(self._unfinished)
        now = [shortened(current)] if current.text and visible(current) else []
        if self.left_out:
            return self.head, [*self.tail, *now]
        return [*self.head, *self.tail, *now], []

    @property
    def left_out(self):
        return sum(self.counts.values()) - len(self.head) - len(self.tail)

    def _keep(self, lines):
        bars = sum(line.bar for line in lines)
        self.counts[True] += bars
        self.counts[False] += len(lines) - bars
        room = self._limit - len(self.head)
        self.head += map(shortened, lines[:room])
        self.tail.extend(map(shortened, lines[room:][-self._limit :]))


def line_of(raw):
    """The line that a terminal would show for `raw`, which holds no newline."""
    raw = raw.removesuffix("\r")
    if "\x1b" in raw:
        raw = CURSOR.sub("", raw)
    if "\r" not in raw:
        return Line(raw)
    *_, before, last = raw.split("\r")
    return Line((last or before).rstrip(), bar=True)


def collapsed(rest):
    """The unfinished line without what carriage returns have already overwritten."""
    if "\r" not in rest[:-1]:
        return rest
    *_, before, last = rest.split("\r")
    return f"\r{before}\r" if not last else f"\r{last}"


def visible(line):
    """False for a wiped bar and for what the backend says of itself."""
    return not line.text.startswith(CHATTER) and bool(line.text or not line.bar)


def shortened(line):
    """The line, cut to a length that a page can show."""
    more = len(line.text) - LINE_CHARACTERS
    return line if more <= 0 else Line(f"{line.text[:LINE_CHARACTERS]} … {more:,} more characters", line.bar)


def merged(streams, *, name, limit):
    """One text for the streams of all ranks, at most `limit` lines and one that counts what is left out."""
    bar_rank = first_bar(streams)
    parts = [[texts_of(lines, bars=rank == bar_rank) for lines in stream.lines()] for rank, stream in enumerate(streams)]
    first, last = (folded(sequences, name=name) for sequences in zip(*parts))
    left_out = any(stream.left_out for stream in streams)
    if not left_out:
        if len(first) <= limit:
            return text_of(first)
        last = first
    first, last = first[: limit // 2], last[-(limit // 2) :]
    printed = sum(stream.counts[False] for stream in streams) + (streams[bar_rank].counts[True] if bar_rank is not None else 0)
    more = printed - sum(line.printed for line in first + last)
    return text_of([*first, Shown(f"… {more:,} more lines here; all of them are in the run's log …"), *last])


def first_bar(streams):
    """The lowest rank that has a progress bar, whose bars stand for everyone's; None where there is none."""
    bars = (stream.counts[True] or any(line.bar for line in [*stream.lines()[0], *stream.lines()[1]]) for stream in streams)
    return next((rank for rank, bar in enumerate(bars) if bar), None)


def texts_of(lines, *, bars):
    """The texts of the lines, with or without bars."""
    return [line.text for line in lines if bars or not line.bar]


def text_of(shown):
    return "".join(line.text + "\n" for line in shown)


def folded(sequences, *, name):
    """The lines of all ranks (a list of texts per rank) as Shown: common ones once, between them rank by rank."""
    everyone = f"all {len(sequences)} {name}s" if len(sequences) > 1 else f"{name} 0"
    common = sequences[0]
    for sequence in sequences[1:]:
        common = common_lines(common, sequence)
    shown, places = [], [0] * len(sequences)
    for line in [*common, None]:
        for rank, sequence in enumerate(sequences):
            stop = len(sequence) if line is None else sequence.index(line, places[rank])
            shown += [Shown(f"{name} {rank}: {text}") for text in sequence[places[rank] : stop]]
            places[rank] = stop + 1
        if line is not None:
            shown.append(Shown(f"{everyone}: {line}", len(sequences)))
    return shown


def batches(sequences, *, name):
    """The folded lines of many lines per rank, for a terminal, in time that grows with their number only."""
    longest = max(map(len, sequences))
    slices = ([sequence[at : at + BATCH_LINES] for sequence in sequences] for at in range(0, longest, BATCH_LINES))
    return [line for part in slices for line in folded(part, name=name)]


def common_lines(left, right):
    """The longest common subsequence of two lists of lines (Hunt and Szymanski 1977), equal ends taken as they are."""
    start = equal_lines(left, right)
    stop = equal_lines(reversed(left[start:]), reversed(right[start:]))
    places = {}
    for place, line in enumerate(right[start : len(right) - stop]):
        places.setdefault(line, []).insert(0, place)
    ends, chains = [], []
    for line in left[start : len(left) - stop]:
        for place in places.get(line, ()):
            length = bisect.bisect_left(ends, place)
            chain = (line, chains[length - 1] if length else None)
            ends[length : length + 1], chains[length : length + 1] = [place], [chain]
    middle, chain = [], chains[-1] if chains else None
    while chain:
        line, chain = chain
        middle.insert(0, line)
    return left[:start] + middle + left[len(left) - stop :]


def equal_lines(left, right):
    """How many lines are equal from the start."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right)))
