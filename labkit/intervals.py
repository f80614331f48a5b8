"""Arithmetic on lists of intervals: (start, end) pairs, disjoint and ascending."""

from bisect import bisect_right


def merge(pairs):
    """The union of intervals given in any order, overlapping or not; empty ones vanish."""
    merged = []
    for start, end in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def subtract(intervals, holes):
    """What is left of `intervals` outside `holes`."""
    left, first = [], 0
    for start, end in intervals:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        hole = first
        while hole < len(holes) and holes[hole][0] < end:
            if holes[hole][0] > start:
                left.append((start, holes[hole][0]))
            start = max(start, holes[hole][1])
            hole += 1
        if end > start:
            left.append((start, end))
    return left


def length(intervals):
    """The summed length."""
    return sum(end - start for start, end in intervals)


def inside(point, intervals):
    """Whether `point` lies in one of `intervals` (its end excluded)."""
    at = bisect_right(intervals, point, key=lambda pair: pair[0]) - 1
    return at >= 0 and point < intervals[at][1]
