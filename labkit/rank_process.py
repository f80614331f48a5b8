"""The life of one rank's process: from the fork to its result, in the kernel's environment but not in its fate."""

import contextlib
import ctypes
import datetime
import faulthandler
import io
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading

from labkit.channel import Channel
from labkit.failures import failure
from labkit.streams import close_others, open_streams, quiet

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DUMP_SIGNAL = signal.SIGUSR2
SEED = 0
GROUP_TIMEOUT_S = 24 * 3600  # longer than any of ours, so that labkit speaks first
_libc = ctypes.CDLL(None, use_errno=True)


def preload():
    """Imports in the fork server what ranks would otherwise import one by one."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch._dynamo  # noqa: F401  (the first optimizer step imports it)
    import torch.distributed._functional_collectives  # noqa: F401
    import torch.distributed.pipelining  # noqa: F401
    import torch.distributed.tensor  # noqa: F401
    import torch.nn.parallel  # noqa: F401
    import torch.utils.data  # noqa: F401

    import labkit  # noqa: F401
    from labkit import groups, memory_run, oracle, payload, race, rank, training  # noqa: F401

    torch.set_num_threads(1)


def prctl(option, value):
    """Calls Linux' prctl; elsewhere it does nothing."""
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)


def start_fresh(rank, descriptors, server_pid):
    """Starts a rank as a new Python process, for systems where forking after importing torch is not safe."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from labkit.rank_process import main; "
        f"main({rank}, {descriptors}, {server_pid})"
    )
    # The object is not kept: the server reaps the process by its id.
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=descriptors, start_new_session=True)
    process.returncode = 0
    return process.pid


def main(rank, descriptors, server_pid):
    """Becomes rank `rank`; never returns."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(DUMP_SIGNAL, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        os._exit(71)
    payload_fd, channel_fd, out_fd, err_fd, release_fd = descriptors
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    close_others({0, 1, 2, payload_fd, channel_fd, release_fd})
    open_streams()
    channel = Channel(channel_fd)
    try:
        _work(rank, payload_fd, channel)
    except BaseException as error:
        channel.send("failed", failure(error))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # Leaving now would look like a lost connection to the others: wait until the kernel has heard everyone.
    os.read(release_fd, 1)
    os._exit(0)


def _work(rank, payload_fd, channel):
    from labkit import fresh_imports
    from labkit.payload import pack_result

    # Read at an offset: the descriptor, and so its position, is shared with the other ranks.
    payload = io.BytesIO(os.pread(payload_fd, os.fstat(payload_fd).st_size, 0))
    plan = pickle.load(payload)
    _take_over(plan, rank)
    fresh_imports.install()
    handle = set_up(plan, rank, channel)
    fn, args, kwargs = pickle.load(payload)

    try:
        result = fn(handle, *args, **kwargs)
    except BaseException:
        handle.give_up()
        raise
    send_observations(handle, channel)
    channel.send_result(pack_result(result))


def _take_over(plan, rank):
    """Makes the kernel's environment, directory and import path, as they are at the call, this rank's own."""
    os.environ.clear()
    os.environ.update(plan["environ"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0")
    os.chdir(plan["cwd"])
    sys.path[:] = plan["path"]
    sys.argv[:] = plan["argv"]
    if sys.platform == "linux":
        # So that loader workers know classes of cells, on every Python.
        multiprocessing.set_start_method("fork", force=True)
    # Where loader workers put their sockets: in a folder that goes with the run, however they end.
    multiprocessing.current_process()._config["tempdir"] = plan["directory"]
    stacks = io.FileIO(os.path.join(plan["directory"], f"stack-{rank}"), "w")
    stacks.write(f"main {threading.main_thread().ident:x}\n".encode())
    faulthandler.enable(file=stacks)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True)
    if plan["cores"][rank] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan["cores"][rank])


def set_up(plan, rank, channel):
    """Chooses the device, initialises torch.distributed and returns the Rank."""
    import numpy
    import torch
    import torch.distributed as dist

    from labkit import groups
    from labkit.rank import Rank, control_group
    from labkit.recorder import Recorder
    from labkit.status import Status
    from labkit.watch import Watch

    torch.set_num_threads(1)
    device = torch.device(plan["devices"][rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(SEED)
    random.seed(SEED + rank)
    numpy.random.seed(SEED + rank)
    status = Status(os.path.join(plan["directory"], "status"), plan["world_size"])
    recorder = Recorder(rank, device)
    watch = Watch(rank, status, recorder)
    groups.watch_groups(watch)
    world_size, timeout = plan["world_size"], datetime.timedelta(seconds=GROUP_TIMEOUT_S)
    store, starts = dist.FileStore(os.path.join(plan["directory"], "store"), world_size), itertools.count()

    def start_group():
        # What an earlier group left in the store, before it was destroyed, must not be found again.
        own = dist.PrefixStore(f"{next(starts)}/", store)
        with quiet():
            torch_init(plan["backend"], store=own, rank=rank, world_size=world_size, timeout=timeout)

    torch_init = groups.accept_second_init(start_group, world_size)
    start_group()
    if device.type == "cuda":
        threading.Thread(target=watch.poll_device, daemon=True).start()
    return Rank(
        rank,
        world_size,
        device,
        recorder=recorder,
        status=status,
        send=channel.send,
        make_control_group=lambda: control_group(store, rank, world_size, watch, timeout),
    )


def send_observations(handle, channel):
    from labkit.memory import peak_bytes

    handle.flush()
    recorder = handle._recorder
    channel.send("observed", {
        "spans": recorder.rows(),
        "dropped": recorder.dropped,
        "traffic": recorder.counter.totals(),
        "peak_bytes": peak_bytes(handle.device),
    })
