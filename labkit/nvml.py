"""Ask the NVIDIA driver which cards there are, without opening a CUDA context.

NVML's own C library is called, not `nvidia-smi`: it comes with the driver and works in this process in milliseconds, where the
tool costs a process start on every call; torch's counters read the same library but know neither names, memory nor MIG.
"""

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """One physical GPU as NVML lists it (PCI order), or one MIG instance of it; 0 bytes: unknown.

    `compute_mode` is NVML's number: 0 any process may use it, 2 none, 1 or 3 one at a time.
    """

    name: str
    memory_bytes: int
    uuid: str
    mig: bool = False
    instances: tuple["Card", ...] = ()
    compute_mode: int = 0


class NvmlError(Exception):
    """An NVML call returned a code other than success."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def read_cards(library=None) -> tuple[tuple[Card, ...], str]:
    """Cards in PCI order, and what NVML complained about ("" where it answered, or where no NVIDIA driver is installed).

    Source of the calls: NVML API reference, "Device Queries" and "Multi Instance GPU Management".
    """
    try:
        library = library or ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return (), ""
    try:
        _call(library, "nvmlInit_v2")
        try:
            return _cards(library)
        finally:
            library.nvmlShutdown()
    except (NvmlError, AttributeError) as error:
        return (), str(error)


def read_driver(library=None) -> str:
    """The version of the NVIDIA driver, "" where NVML does not say."""
    try:
        library = library or ctypes.CDLL("libnvidia-ml.so.1")
        _call(library, "nvmlInit_v2")
        try:
            return _text(library, "nvmlSystemGetDriverVersion")
        finally:
            library.nvmlShutdown()
    except (OSError, NvmlError, AttributeError):
        return ""


def _cards(library) -> tuple[tuple[Card, ...], str]:
    cards, problems = [], []
    for index in range(_number(library, "nvmlDeviceGetCount_v2")):
        try:
            handle = _handle(library, "nvmlDeviceGetHandleByIndex_v2", index)
            cards.append(_card(library, handle, _instances(library, handle)))
        except NvmlError as error:
            problems.append(f"GPU {index}: {error}")
    return tuple(cards), "; ".join(problems)


def _card(library, handle, instances: tuple[Card, ...] | None) -> Card:
    memory = _Memory()
    # Cards that share the host's memory have no number of their own to give.
    known = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return Card(
        name=_text(library, "nvmlDeviceGetName", handle),
        memory_bytes=memory.total if known else 0,
        uuid=_text(library, "nvmlDeviceGetUUID", handle),
        mig=instances is not None,
        instances=instances or (),
        compute_mode=_compute_mode(library, handle),
    )


def _compute_mode(library, handle) -> int:
    mode = ctypes.c_uint()
    query = getattr(library, "nvmlDeviceGetComputeMode", None)
    return mode.value if query is not None and query(handle, ctypes.byref(mode)) == 0 else 0


def _instances(library, handle) -> tuple[Card, ...] | None:
    """The MIG instances of a card, None where MIG is off or not known to the card or driver."""
    current, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    query = getattr(library, "nvmlDeviceGetMigMode", None)
    if query is None or query(handle, ctypes.byref(current), ctypes.byref(pending)) != 0 or not current.value:
        return None
    _call(library, "nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
    found = []
    for index in range(most.value):
        instance = ctypes.c_void_p()
        if library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index, ctypes.byref(instance)) == 0:
            found.append(_card(library, instance, None))
    return tuple(found)


def _call(library, name: str, *arguments) -> None:
    code = getattr(library, name)(*arguments)
    if code != 0:
        library.nvmlErrorString.restype = ctypes.c_char_p
        raise NvmlError((library.nvmlErrorString(code) or b"unknown error").decode())


def _number(library, name: str) -> int:
    value = ctypes.c_uint()
    _call(library, name, ctypes.byref(value))
    return value.value


def _handle(library, name: str, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call(library, name, index, ctypes.byref(handle))
    return handle


def _text(library, name: str, *handle) -> str:
    buffer = ctypes.create_string_buffer(96)
    _call(library, name, *handle, buffer, len(buffer))
    return buffer.value.decode(errors="replace")
