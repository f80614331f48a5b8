"""Every storage that is alive, its size and its kind: the ledger under the memory account."""

import weakref

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

KINDS = ("weights", "gradients", "optimizer state", "activations", "other")


def refuse_unknown_kind(kind):
    """Raises ValueError for what is no kind of memory."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of memory; use one of {', '.join(KINDS)}")


class Entry:
    """One storage: `nbytes` now (0 when it died), its kind, and the `label` that `rank.memory` gave it, else None."""

    __slots__ = ("kind", "label", "nbytes", "storage")

    def __init__(self, storage, kind, label):
        self.storage, self.nbytes = weakref.ref(storage), storage.nbytes()
        self.kind, self.label = kind, label


class Ledger:
    """Counts each storage of one type of device once, from its first sight to its death.

    `device_type` None counts all but meta tensors. A kind is only ever raised: weights before gradients before optimizer
    state before activations before other; a kind that was given by hand stays.
    """

    def __init__(self, device_type):
        self.device_type = device_type
        self.entries, self.total_bytes = {}, 0
        self.most_bytes, self.most_when, self._most = 0, "", ()
        self._rising = False

    def touch(self, tensor, when, kind="other", label=None):
        """Returns the entries of a tensor's storages, new or with the size that they have now."""
        return [self._touch(one.untyped_storage(), when, kind, label) for one in plain_tensors(tensor) if self._counts(one)]

    def resized(self, storage, when):
        """Notes the size of a storage that is known."""
        if id(storage) in self.entries:
            self._touch(storage, when, "other", None)

    def raise_kind(self, entry, kind):
        """Gives the storage this kind, unless it has one that comes before it."""
        if entry.label is None and KINDS.index(kind) < KINDS.index(entry.kind):
            entry.kind = kind

    def by_kind(self):
        """Returns {kind: bytes} of what is alive."""
        # A list, since tensors die in gloo's threads too, whenever they like.
        return by_kind((entry, entry.nbytes) for entry in list(self.entries.values()))

    def restart(self, when):
        """Forgets the fullest moment; what is alive now is the first candidate."""
        self.most_bytes, self.most_when, self._rising = self.total_bytes, when, True

    def at_most(self):
        """Returns {kind: bytes} at the fullest moment, by what is known of the storages today."""
        return by_kind(self._snapshot() if self._rising else self._most)

    def _counts(self, tensor):
        kind = tensor.device.type
        return kind != "meta" if self.device_type is None else kind == self.device_type

    def _touch(self, storage, when, kind, label):
        key = id(storage)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = Entry(storage, kind, label)
            weakref.finalize(storage, self._die, key, entry).atexit = False
            self._change(entry.nbytes, when)
        elif (nbytes := storage.nbytes()) != entry.nbytes:
            before = entry.nbytes
            self._about_to_change(nbytes - before)
            entry.nbytes = nbytes
            self._change(nbytes - before, when)
        return entry

    def _die(self, key, entry):
        self._about_to_change(-entry.nbytes)
        if self.entries.get(key) is entry:
            del self.entries[key]
        self.total_bytes -= entry.nbytes
        entry.nbytes = 0

    def _about_to_change(self, nbytes):
        # The moment is written down when it ends: until then it may be surpassed.
        if nbytes < 0 and self._rising:
            self._most, self._rising = self._snapshot(), False

    def _change(self, nbytes, when):
        self.total_bytes += nbytes
        if self.total_bytes > self.most_bytes:
            self.most_bytes, self.most_when, self._rising = self.total_bytes, when, True

    def _snapshot(self):
        return [(entry, entry.nbytes) for entry in list(self.entries.values()) if entry.nbytes]


def by_kind(pairs):
    """Returns {kind: bytes}, of all kinds, from (entry, bytes) pairs."""
    found = dict.fromkeys(KINDS, 0)
    for entry, nbytes in pairs:
        found[entry.kind] += nbytes
    return found


def plain_tensors(tensor):
    """Yields the tensor, or what a DTensor (or another wrapper) holds on this rank."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            if isinstance(inner := getattr(tensor, name), torch.Tensor):  # a DTensor also names its mesh
                yield from plain_tensors(inner)
    elif tensor.layout == torch.strided:
        yield tensor


def is_same(one, other):
    """Returns whether two tensors are the same numbers of the same storage; wrappers never are."""
    if is_traceable_wrapper_subclass(one) or is_traceable_wrapper_subclass(other):
        return False
    places = ((t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()) for t in (one, other))
    return next(places) == next(places)


def tensors_in(values):
    """Yields the tensors in the arguments or results of an operation."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
