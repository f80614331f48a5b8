"""Whether the GPUs can be used: by torch, by more than one process, and by NCCL with and without peer-to-peer copies."""

import os
from collections.abc import Callable, Mapping

from labkit import peer_to_peer
from labkit.devices import Machine, machine
from labkit.findings import Finding, broken, fine, look
from labkit.gpus import about_gpus
from labkit.nvml import read_cards, read_driver
from labkit.peer_to_peer import VARIABLE, Decision, Trials

COMPUTE_MODES = {1: "one thread at a time", 2: "no process at all", 3: "one process at a time"}  # NVML: nvmlComputeMode_t
OFF = f"export {VARIABLE}=1 for other programs"


def gpus(here: Machine | None = None, driver: str | None = None) -> Finding:
    """Which GPUs ranks may use."""
    here = here or machine()
    driver = read_driver() if driver is None else driver
    notes = about_gpus(here.notes)
    if not here.gpus:
        remedy = "nvidia-smi must list the GPUs, and CUDA_VISIBLE_DEVICES must not hide them"
        return look("; ".join(notes), remedy) if notes else fine("none: ranks run on CPU cores")
    found = "; ".join([here.describe(len(here.gpus), "cuda"), *([f"driver {driver}"] if driver else []), *notes])
    return look(found, "reinstall the driver, then restart") if any(note.startswith("NVML") for note in notes) else fine(found)


def compute_mode(here: Machine | None = None, cards=None) -> Finding:
    """Whether more than one process may use each GPU."""
    visible = {gpu.uuid for gpu in (here or machine()).gpus}
    if not visible:
        return fine("no GPU to share")
    cards = read_cards()[0] if cards is None else cards
    limited = [(index, card.compute_mode) for index, card in enumerate(cards) if card.uuid in visible and card.compute_mode]
    if not limited:
        return fine("any number of processes may use a GPU")
    found = "; ".join(f"GPU {index} (as nvidia-smi counts) lets in {COMPUTE_MODES.get(mode, mode)}" for index, mode in limited)
    remedy = "sudo nvidia-smi -c DEFAULT"
    if any(mode == 2 for _, mode in limited):
        return broken(found, remedy)
    return look(f"{found}: a rank fails while the notebook itself holds the GPU", f"{remedy}, or keep CUDA out of the kernel")


def one_gpu(trials: Trials) -> Finding:
    """Whether the only GPU takes a rank."""
    trial = trials.direct
    return fine(trial.found) if trial.state == "works" else broken(trial.found, "install a driver that suits this torch")


def copies(trials: Trials) -> Finding:
    """Whether copies between each two GPUs arrive as sent, compared with the path over host memory."""
    trial = trials.copies
    if trial.state == "works":
        return fine(trial.found)
    if trial.state == "unclear":
        return look(trial.found, "free the GPUs' memory (nvidia-smi), then try again")
    return broken(trial.found, "copy over host memory: tensor.cpu().to(device); a newer driver may repair it")


def all_reduce(trials: Trials) -> Finding:
    """Whether NCCL adds up right with and without peer-to-peer copies."""
    direct, over_host = trials.direct, trials.over_host
    found = f"with P2P: {direct.found}; without: {over_host.found}"
    works = [trial.state == "works" for trial in (direct, over_host)]
    if all(works):
        return fine(found)
    if not any(works):
        return broken(found, "free the GPUs and /dev/shm, then look at NCCL_DEBUG=INFO; device=\"cpu\" works meanwhile")
    return look(found, "give /dev/shm more room" if works[0] else OFF)


def decision(trials: Trials, here: Machine, driver: str, environ: Mapping[str, str] = os.environ) -> Finding:
    """What labkit does about P2P on these GPUs from now on; stores it for their next runs."""
    verdict, uuids = trials.verdict, tuple(gpu.uuid for gpu in here.gpus)
    known = bool(driver and all(uuids))
    if verdict is not None and known:
        peer_to_peer.remember(Decision(uuids, driver, *verdict))
    own = " ".join(f"{name}={environ[name]}" for name in peer_to_peer.USERS_OWN if name in environ)
    if own:
        return _beside_own(own, verdict)
    if verdict is None:
        return look("not decided: the trials above do not tell", "repair what they name, then run the doctor again")
    disable, reason = verdict
    if not disable:
        return fine("left to NCCL, which may use P2P")
    if not known:
        return look(f"{reason}; NVML does not name the GPUs, so labkit can't remember it", f"export {VARIABLE}=1 yourself")
    return look(f"labkit sets {VARIABLE}=1 for its runs: {reason}", OFF)


def _beside_own(own, verdict):
    if verdict and verdict[0] and f"{VARIABLE}=1" not in own:
        return look(f"your own {own} stays, but {verdict[1]}", f"unset it: labkit then sets {VARIABLE}=1")
    return fine(f"your own {own} stays")


def questions(here: Machine, trials: Trials) -> list[tuple[str, Callable[[], Finding]]]:
    """The checks that run ranks on this machine's GPUs, in order; none without a GPU."""
    if not here.gpus:
        return []
    if len(here.gpus) == 1:
        return [("GPU rank", lambda: one_gpu(trials))]
    return [
        ("GPU copies", lambda: copies(trials)),
        ("GPU all_reduce", lambda: all_reduce(trials)),
        ("GPU P2P", lambda: decision(trials, here, read_driver())),
    ]
