"""How a machine shows itself: a few aligned lines in a terminal, a small card in a notebook."""

from html import escape
from itertools import groupby

from labkit.gpus import about_gpus

GIB = 2**30
CARD = (
    "display:inline-block;max-width:46em;padding:10px 14px;border-radius:6px;border:1px solid rgba(128,128,128,.45);"
    "color:inherit;background:rgba(128,128,128,.07);font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
)


def mode(machine) -> tuple[str, str]:
    """Two sentences: where the ranks of a run go on this machine, and what would change that."""
    cores = machine.describe(len(machine.cores), "cpu")
    if machine.system.startswith("Windows"):
        return "Ranks do not start on native Windows.", "Inside WSL2 they do."
    if len(machine.gpus) >= 2:
        gpus = machine.describe(len(machine.gpus), "cuda")
        return f"Ranks run on {gpus}, one GPU each.", f'device="cpu" takes {cores} instead.'
    if machine.gpus:
        gpu = machine.describe(1, "cuda").removeprefix("1 ")
        return f"2 or more ranks run on {cores}.", f"The one-rank step is measured on the one GPU, the {gpu}."
    if about_gpus(machine.notes):
        return f"Ranks run on {cores}.", "The note says why no GPU is used."
    return f"Ranks run on {cores}.", "To use GPUs, open the workbook on a machine with NVIDIA GPUs and a torch built for CUDA."


def rows(machine) -> list[tuple[str, str]]:
    """Label and text of each line below the mode, notes last; a label that repeats is written once."""
    quota = "no quota" if machine.quota_cores is None else f"quota {round(machine.quota_cores, 2):g} CPUs"
    used = machine.describe(len(machine.cores), "cpu")
    lines = [
        *(("GPU", line) for line in _gpus(machine.gpus) or ["none that ranks can use"]),
        ("CPU", machine.cpu_name),
        ("cores", f"{used} for ranks: {machine.physical_cores} physical, {machine.allowed_cpus} CPUs allowed, {quota}"),
        ("memory", _gib(machine.memory_bytes)),
        ("software", f"{machine.system}, Python {machine.python}, torch {machine.torch}"),
        *(("note", note) for note in machine.notes),
    ]
    labels = [label for label, _ in lines]
    return [("" if label in labels[:index] else label, text) for index, (label, text) in enumerate(lines)]


def as_text(machine) -> str:
    """The passport as aligned lines."""
    return "\n".join(f"{label:<10}{text}" for label, text in [("mode", " ".join(mode(machine))), *rows(machine)])


def as_html(machine) -> str:
    """The passport as a card with inline styles only; text and lines take the page's own colours, light or dark."""
    where, change = mode(machine)
    title = f'<div style="font-weight:600;font-size:14px">{escape(where)}</div><div>{escape(change)}</div>'
    table = "".join(_row(label, text) for label, text in rows(machine))
    grid = f'<div style="display:grid;grid-template-columns:max-content 1fr;column-gap:14px">{table}</div>'
    return f'<div style="{CARD}">{title}{_strip(machine)}{grid}</div>'


def _strip(machine) -> str:
    """One square per device: filled where a run puts ranks, hollow where a physical core is beyond the quota."""
    used = len(machine.gpus) if len(machine.gpus) >= 2 else len(machine.cores)
    spare = 0 if len(machine.gpus) >= 2 else max(0, machine.physical_cores - used)
    kind = machine.describe(used, "cuda" if len(machine.gpus) >= 2 else "cpu")
    if used + spare > 128:
        return ""
    square = '<span style="display:inline-block;width:11px;height:11px;margin:0 3px 3px 0;border-radius:2px;{}"></span>'
    filled = square.format("background:#3b8bc4;border:1px solid #3b8bc4") * used
    hollow = square.format("border:1px solid rgba(128,128,128,.6)") * spare
    beyond = f", {spare} beyond the quota" if spare else ""
    return f'<div title="{escape(kind + beyond)}" style="line-height:0;margin:8px 0">{filled}{hollow}</div>'


def _row(label: str, text: str) -> str:
    return f'<div style="opacity:.65">{escape(label)}</div><div style="overflow-wrap:anywhere">{escape(text)}</div>'


def _gpus(gpus) -> list[str]:
    """One line per run of equal GPUs: "cuda:0 to cuda:3: NVIDIA GeForce RTX 4090, 24.0 GiB each"."""
    lines = []
    for (name, memory_bytes), group in groupby(gpus, key=lambda gpu: (gpu.name, gpu.memory_bytes)):
        first, *others = [f"cuda:{gpu.index}" for gpu in group]
        size = f", {_gib(memory_bytes)}{' each' if others else ''}" if memory_bytes else ""
        lines.append(f"{first} to {others[-1]}: {name}{size}" if others else f"{first}: {name}{size}")
    return lines


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes else "unknown"
