"""Which GPUs ranks may use: the driver's list, cut by CUDA_VISIBLE_DEVICES, by MIG and by what torch was built for."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.nvml import Card
from labkit.readings import Readings


@dataclass(frozen=True)
class Gpu:
    """One GPU as a rank sees it: `index` as in "cuda:index"; 0 bytes and no uuid where the driver does not say."""

    index: int
    name: str
    memory_bytes: int
    uuid: str = ""
    mig: bool = False


def usable_gpus(readings: Readings) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that ranks may use, in CUDA's order, and the sentences that explain what is missing."""
    if not readings.cards:
        return _counted_by_torch(readings)
    notes = [f"NVML complains: {readings.nvml_problem}"] if readings.nvml_problem else []
    cards, note = _visible(readings.cards, readings.visible_devices)
    cards, mig_note = _without_mig(cards) if not _names_mig(readings.visible_devices) else _first_instance(cards)
    mig = bool(cards) and cards[0] not in readings.cards
    gpus = tuple(Gpu(index, card.name, card.memory_bytes, card.uuid, mig) for index, card in enumerate(cards))
    notes += [text for text in (note, mig_note, _order_note(gpus, readings.device_order)) if text]
    if gpus and not readings.torch_has_cuda:
        return (), (*notes, _cpu_build_note(gpus, readings.torch_version))
    return gpus, tuple(notes)


def group_names(gpus: Iterable[Gpu]) -> str:
    """The GPUs counted by name without the maker's prefix: "4 RTX 4090", "1 RTX 4090 + 1 RTX 3090", "2 GPUs"."""
    counts = Counter(short_name(gpu.name) for gpu in gpus)
    return " + ".join(f"{count} {name}{'s' if name == 'GPU' and count > 1 else ''}" for name, count in counts.items())


def short_name(name: str) -> str:
    """A card's name as people say it: "NVIDIA GeForce RTX 4090" is an "RTX 4090"."""
    return re.sub(r"^(NVIDIA |GeForce )+", "", name) or "GPU"


def about_gpus(notes: Iterable[str]) -> list[str]:
    """Those of a machine's notes that tell why GPUs are missing."""
    return [note for note in notes if any(word in note for word in ("CUDA", "NVIDIA", "NVML", "MIG"))]


def _counted_by_torch(readings: Readings) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    gpus = tuple(Gpu(index, "GPU", 0) for index in range(readings.torch_gpus))
    reason = f" ({readings.nvml_problem})" if readings.nvml_problem else ""
    if gpus:
        return gpus, (f"NVML not available{reason}: names and memory of the {group_names(gpus)} are unknown",)
    return (), ((f"NVIDIA driver present, but it lists no GPU{reason}",) if reason else ())


def _names_mig(variable: str | None) -> bool:
    return (variable or "").strip().startswith("MIG-")


def _visible(cards: tuple[Card, ...], variable: str | None) -> tuple[tuple[Card, ...], str]:
    """Cards (or MIG instances, where those are named) that CUDA_VISIBLE_DEVICES leaves, in its order, and a sentence.

    The first entry that names nothing ends the list, a repeated one empties it (CUDA C++ Programming Guide, "CUDA
    Environment Variables").
    """
    if variable is None:
        return cards, ""
    pool = tuple(instance for card in cards for instance in card.instances) if _names_mig(variable) else cards
    chosen: list[Card] = []
    said = f'CUDA_VISIBLE_DEVICES="{variable}"'
    for entry in variable.split(","):
        card = _named(pool, entry.strip(), by_uuid=variable.strip().startswith(("GPU-", "MIG-")))
        if card in chosen:
            return (), f"{said} names a GPU twice: CUDA then shows none"
        if card is None:
            stray = f': "{entry.strip()}" names none of them' if re.match(r"\s*[^\s-]", entry) else ""
            return tuple(chosen), f"{said} shows {len(chosen)} of {group_names(pool) or '0 MIG instances'}{stray}"
        chosen.append(card)
    note = f"{said} shows {len(chosen)} of {group_names(pool)}" if len(chosen) < len(pool) else ""
    return tuple(chosen), note


def _named(pool: tuple[Card, ...], entry: str, *, by_uuid: bool) -> Card | None:
    """The card that one entry names: an index, or the beginning of one UUID only."""
    if by_uuid:
        found = [card for card in pool if entry.startswith(("GPU-", "MIG-")) and card.uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    number = re.match(r"\+?(\d+)", entry)
    return pool[int(number[1])] if number and int(number[1]) < len(pool) else None


def _without_mig(cards: tuple[Card, ...]) -> tuple[tuple[Card, ...], str]:
    """Whole cards where MIG is off on all of them; otherwise what CUDA makes of a card that is cut into instances."""
    if not any(card.mig for card in cards):
        return cards, ""
    instances = tuple(instance for card in cards for instance in card.instances)
    if instances:
        return _first_instance(instances)
    whole = tuple(card for card in cards if not card.mig)
    return whole, f"MIG is on without instances: {group_names(card for card in cards if card.mig)} can't be used"


def _first_instance(instances: tuple[Card, ...]) -> tuple[tuple[Card, ...], str]:
    # A process sees one instance, and whole cards not at all beside it (NVIDIA MIG User Guide, "CUDA Device Enumeration").
    if not instances:
        return (), ""
    name, count = short_name(instances[0].name), len(instances)
    note = f"MIG is on: CUDA shows a process 1 instance of {count}, here {name}; CUDA_VISIBLE_DEVICES selects which"
    return instances[:1], note if count > 1 else ""


def _order_note(gpus: tuple[Gpu, ...], device_order: str) -> str:
    if len({gpu.name for gpu in gpus}) < 2 or device_order == "PCI_BUS_ID":
        return ""
    return "the cards differ: CUDA may number them fastest first, not as listed; CUDA_DEVICE_ORDER=PCI_BUS_ID makes both agree"


def _cpu_build_note(gpus: tuple[Gpu, ...], version: str) -> str:
    remedy = "pip install --force-reinstall torch (on Linux the default build has CUDA)"
    return f"{group_names(gpus)} found, but torch {version} is built without CUDA and can't use them: {remedy}"
