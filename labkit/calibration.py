"""This machine's own constants, measured by a short run of its ranks, in the same form as those of other machines."""

import functools
import math
from statistics import median

from labkit.calibration_ranks import measure_rank
from labkit.card import Card
from labkit.constants import ESTIMATED, MEASURED, Source
from labkit.cost_fit import Cost, fit_cost
from labkit.devices import machine
from labkit.launcher import run_ranks
from labkit.machine_model import Server
from labkit.server_table import RTX4090_SERVER

DTYPES = ("float32", "float64", "bfloat16")
HERE = Source(MEASURED, "on this machine, in this session")
SHARE_OF_CORE = Source(ESTIMATED, "gloo copies and adds on the core that the kernels run on")


@functools.cache
def this_machine():
    """A Server with as many cards as ranks have devices here: GPUs where there are any, else CPU cores."""
    here = machine()
    device = "cuda" if here.gpus else "cpu"
    count = len(here.gpus) or len(here.cores)
    ranks = min(2, count) if here.gpus else 2
    run = run_ranks(measure_rank, (DTYPES,), {}, world_size=ranks, device=device, live=False, warn=False)
    return _server(_joined(run.results), here, device, count)


def _server(found, here, device, count):
    name = here.describe(count, device)
    card = _gpu(found, here) if device == "cuda" else _core(found, here, count)
    rates = _links(found) if "messages" in found else _unmeasured()
    copy = found.get("copy", found["memory"])
    origins = dict.fromkeys(("cards", "copy_bytes_per_s", "host_bytes_per_s", "processor_bytes_per_s"), HERE)
    return Server(
        name=name,
        card=card,
        cards=count,
        peer_to_peer=True,
        copy_bytes_per_s=copy,
        host_bytes_per_s=math.inf,
        processor_bytes_per_s=found["memory"] if device == "cpu" else RTX4090_SERVER.processor_bytes_per_s,
        origins=origins | {name: HERE for name in rates if "messages" in found},
        **rates,
    )


def _core(found, here, count):
    """A CPU core: kernels and their launches take the same core, and so does what gloo does beside them."""
    peaks, launch_s = found["peak"], found["launch"]
    curve = _curve(found, launch_s)
    return Card(
        name=f"{here.cpu_name}, one core",
        peak_flops_per_s=peaks,
        memory_bytes=here.memory_bytes / count,
        usable_bytes=here.memory_bytes / count,
        bytes_per_s=found["memory"],
        memory_efficiency=1.0,
        matmul_efficiency=1.0,
        matmul_curve=curve,
        attention_efficiency=found["attention"][0] / peaks["float32"],
        attention_backward_efficiency=found["attention"][1] / peaks["float32"],
        slower_operations=found["operations"],
        launch_s=launch_s,
        asynchronous=False,
        overlap_cost=0.5,
        origins=_measured() | {"overlap_cost": SHARE_OF_CORE},
    )


def _gpu(found, here):
    peaks, gpu = found["peak"], here.gpus[0]
    return Card(
        name=gpu.name,
        peak_flops_per_s=peaks | {"tfloat32": peaks["float32"], "float16": peaks["bfloat16"]},
        memory_bytes=gpu.memory_bytes,
        usable_bytes=gpu.memory_bytes - 0.9 * 2**30,
        bytes_per_s=found["memory"],
        memory_efficiency=1.0,
        matmul_efficiency=1.0,
        inner_half=RTX4090_SERVER.card.inner_half,
        sms=found["sms"],
        attention_efficiency=min(1.0, found["attention"][0] / peaks["bfloat16"]),
        attention_backward_efficiency=min(1.0, found["attention"][1] / peaks["bfloat16"]),
        launch_s=found["launch"],
        floor_s=found["floor"],
        overlap_cost=RTX4090_SERVER.card.overlap_cost,
        origins=RTX4090_SERVER.card.origins | _measured() | {"sms": HERE, "floor_s": HERE},
    )


def _curve(found, launch_s):
    """((FLOPs, share of the peak), …) of products, the launch taken out, never above the peak."""
    best = found["peak"]["float32"]
    pairs = ((flops, max(flops / rate - launch_s, 0.2 * flops / rate)) for flops, rate in found["curve"])
    return tuple((flops, min(1.0, flops / seconds / best)) for flops, seconds in pairs)


def _links(found):
    """The server's constants of links, from fits of α and β: messages give the links, each collective its own rate."""
    message = _cost(found["messages"])
    costs = {name: _cost(times) for name, times in found["collectives"].items()}
    base_s = max(0.0, 2 * message.alpha_s - costs["all_reduce"].alpha_s)  # all_reduce of 2 ranks: base and two steps
    shares = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "broadcast": 1.0, "all_to_all": 0.5}
    return {
        "staged_bytes_per_s": message.bytes_per_s,
        "peer_bytes_per_s": message.bytes_per_s,
        "slower_collectives": {name: shares[name] * cost.bytes_per_s for name, cost in costs.items()},
        "base_s": base_s,
        "hop_s": max(0.0, message.alpha_s - base_s),
    }


def _cost(times):
    """The α and β of {bytes: seconds}; by the smallest and the largest alone where noise leaves no line."""
    try:
        return fit_cost({size: [seconds] for size, seconds in times.items()})
    except ValueError:
        return Cost(min(times.values()), max(times) / times[max(times)])


def _unmeasured():
    return {name: getattr(RTX4090_SERVER, name) for name in ("staged_bytes_per_s", "peer_bytes_per_s", "base_s", "hop_s")}


def _measured():
    rates = "peak_flops_per_s bytes_per_s attention_efficiency attention_backward_efficiency slower_operations".split()
    return dict.fromkeys([*rates, "memory_bytes", "launch_s", "matmul_curve", "memory_efficiency", "matmul_efficiency"], HERE)


def _joined(results):
    """What all ranks found as one: the median of each number."""
    first = results[0]
    if isinstance(first, dict):
        return {key: _joined([one[key] for one in results]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(pair)) for pair in zip(*results, strict=True))
    return median(results)
