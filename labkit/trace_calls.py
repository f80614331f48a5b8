"""What a traced rank says to the others: its collectives, its messages, and what it waits for."""

import contextlib
import types

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.trace_records import Collective, Message, Wait

_PEER_AT = {"send": 1, "recv": 1}
# torch's functional collectives, as the ProcessGroup counts them: operation, and whether the payload is the result.
_FUNCTIONAL = {
    "all_reduce": ("all_reduce", False),
    "all_reduce_": ("all_reduce", False),
    "all_reduce_coalesced": ("all_reduce", False),
    "broadcast": ("broadcast", False),
    "broadcast_": ("broadcast", False),
    "all_gather_into_tensor": ("all_gather", True),
    "all_gather_into_tensor_coalesced": ("all_gather", True),
    "reduce_scatter_tensor": ("reduce_scatter", False),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", False),
    "all_to_all_single": ("all_to_all", False),
}


class Calls:
    """Stands where a real rank has its Watch: `CountingGroup` tells it of every call, and torch of every wait."""

    recorder = types.SimpleNamespace(stamp=lambda: None)

    def __init__(self, steps):
        self._steps = steps
        self._groups, self._counts, self._same = {}, {}, {}
        self._open, self._results = {}, {}
        self._beside = None  # (after, entries) while collectives go to a stream of their own

    def begin(self, operation):
        """Nothing is shown of a rank that is traced."""

    def end(self):
        """See `begin`."""

    def called(self, operation, payload_bytes, group, arguments, work, start, asynchronous):
        """Notes a call on a group."""
        key = self._key(group)
        number = self._steps.next_id()
        if operation in _PEER_AT:
            if len(arguments) < 3:
                raise ValueError("a recv from any source cannot be traced: name the rank that sends")
            peer, tag = key[0][arguments[1]], (*key, arguments[2])
            entry = Message(operation, peer, payload_bytes, number, tag, True)
        else:
            self._counts[key] = count = self._counts.get(key, -1) + 1
            after, beside = self._beside or (None, None)
            is_beside = beside is not None
            entry = Collective(operation, key[0], payload_bytes, (*key, count), number, is_beside or bool(asynchronous), after)
            if is_beside:
                beside.append(entry)
                work = None  # `wait_for` is told instead
        self._steps.add(entry)
        if work is not None:
            self._open[id(work)] = work, entry

    def wait(self, work, *timeout):
        """Notes that the device waits for a call; of a Work that stands for several, for all that are open."""
        if self._beside is not None:
            return True
        _, entry = self._open.pop(id(work), (None, None))
        if entry is None:
            open_ones = [other for _, other in self._open.values() if other.asynchronous]
            self._open.clear()
            self._steps.wait(*open_ones)
        elif entry.asynchronous:
            self._steps.wait(entry)
        return True

    @contextlib.contextmanager
    def beside(self, after=None):
        """Collectives called within are asynchronous and wait only for `after` (see Collective); yields the list of them."""
        after = None if after is None else self._steps.of_this_step(after)
        before, self._beside = self._beside, (after, [])
        try:
            yield self._beside[1]
        finally:
            self._beside = before

    def wait_for(self, entries):
        """Notes that the device waits for these."""
        self._steps.wait(*entries)

    def functional(self, function, arguments, made):
        """Notes one of torch's functional collectives, which do not reach their group in a traced rank."""
        name = function._schema.name.partition("::")[2]
        tensors = [tensor for one in (made, *arguments) for tensor in _tensors(one)]
        if name == "wait_tensor":
            work = self._results.pop(tensors[-1].untyped_storage()._cdata, (None, None))[1]
            if work is not None:
                self.wait(work)
            return
        if name not in _FUNCTIONAL:
            raise ValueError(f"the functional collective {name} cannot be traced")
        operation, of_result = _FUNCTIONAL[name]
        payload = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(made if of_result else arguments[0]))
        groups = [one for one in arguments if isinstance(one, dist.ProcessGroup)]
        group = groups[0] if groups else distributed_c10d._resolve_process_group(arguments[-1])
        work = object()
        self.called(operation, payload, group, (), work, None, True)
        for tensor in _tensors(made):
            self._results[tensor.untyped_storage()._cdata] = tensor, work

    def _key(self, group):
        """(ranks, number) of a group: the second group of the same ranks has number 1, on every rank."""
        if id(group) not in self._groups:
            ranks = tuple(dist.get_process_group_ranks(group))
            self._same[ranks] = number = self._same.get(ranks, -1) + 1
            self._groups[id(group)] = group, (ranks, number)
        return self._groups[id(group)][1]


class Steps:
    """The entries of one rank's step, in the order of its code."""

    def __init__(self):
        self.entries, self.is_recording, self._ids, self._first = [], False, 0, 0

    def begin(self):
        """From now on what is added counts."""
        self.entries, self.is_recording, self._first = [], True, self._ids + 1

    def add(self, entry):
        if self.is_recording:
            self.entries.append(entry)

    def next_id(self):
        self._ids += 1
        return self._ids

    def of_this_step(self, ids):
        """Those of the ids that the warm-up has not left."""
        return tuple(one for one in ids if one >= self._first)

    def wait(self, *entries):
        """Adds a Wait; a call that is waited for before anything else is done becomes a synchronous one."""
        ids = self.of_this_step(entry.id for entry in entries)
        if len(ids) == 1 and self.entries and self.entries[-1] is entries[0] and entries[0].after is None:
            self.entries[-1] = _synchronous(entries[0])
        elif ids:
            self.add(Wait(ids))


def _synchronous(entry):
    if isinstance(entry, Message):
        return Message(entry.operation, entry.peer, entry.payload_bytes, entry.id, entry.tag)
    return Collective(entry.operation, entry.group, entry.payload_bytes, entry.key, entry.id)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (list, tuple)) else []
