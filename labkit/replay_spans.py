"""What a replayed rank did, as spans that can be read: kernels in a row are one, the learner's own spans keep their names."""

from labkit.deadlock import name_of, payload_of
from labkit.timeline import COMPUTE_KINDS, Span
from labkit.trace_records import Collective, HostWork

NEAR_S = 1e-9  # kernels closer together than this are in a row
OWN_KIND = ""  # the label under which the kind of the innermost span of the learner's own travels


def rank_spans(actor):
    """Yields the Spans of one rank: its device's rows, then what was in flight."""
    for kind, name, start_s, end_s, labels in _merged(sorted(actor.rows, key=lambda row: (row[2], -row[3]))):
        yield _span(actor.rank, "communicate" if kind == "communicate" else "compute", kind, name, start_s, end_s, labels)
    for entry, start_s, end_s, labels in actor.transfers:
        if isinstance(entry, HostWork):
            stream, kind, more = "communicate" if entry.asynchronous else "compute", "optimizer", {}
        else:
            stream, kind, more = "communicate", "communicate", {"payload_bytes": payload_of(entry)}
        if isinstance(entry, Collective):
            more["group"] = entry.group
        yield _span(actor.rank, stream, kind, name_of(entry), start_s, end_s, labels | more)


def _merged(rows):
    """The rows, kernels within a span of the learner's own left out, and those of one phase in a row made one."""
    last = None
    for row in rows:
        kind, name, start_s, end_s, labels = row
        if kind == "wait" or "mark" in labels:
            yield row
        elif labels.get(OWN_KIND) in (*COMPUTE_KINDS, "optimizer"):
            continue
        elif last and last[0] == kind and start_s - last[3] <= NEAR_S and last[4] == labels:
            last = (kind, name, last[2], end_s, labels)
        else:
            if last:
                yield last
            last = row
    if last:
        yield last


def _span(rank, stream, kind, name, start_s, end_s, labels):
    shown = {key: value for key, value in labels.items() if key not in (OWN_KIND, "mark")}
    return Span(rank, stream, kind, name, start_s, end_s, shown)
