"""launch: run any function on N ranks."""

import os
import pickle
import sys
import tempfile
import warnings
import zlib

from labkit import notices, peer_to_peer
from labkit.devices import default_world_size, place
from labkit.errors import RankError, Stopped
from labkit.interrupts import Interrupts
from labkit.live import Prints
from labkit.memory import Memory, RankMemory
from labkit.payload import pack_function
from labkit.server_link import ServerGone
from labkit.session import Session
from labkit.timeline import Span, Timeline
from labkit.traffic import TrafficTable
from labkit.views import RecordsView


class Run:
    """What N ranks did.

    .results    what the function returned on each rank, in rank order; tensors as CPU copies
    .records    dicts {"rank", "step", "time_s", …} of all that was logged
    .timeline   Timeline of the ranks' own time stamps
    .traffic    per rank {operation: Traffic}
    .memory     Memory: per rank the peak by kind; of a training it is taken when first asked for, in a run of its own
    .log        every line that the ranks printed, as text
    .placement  devices and cores that the ranks used
    """

    def __init__(self, placement):
        self.placement, self._log = placement, zlib.compress(b"")
        self.world_size = len(placement.devices)
        self.results, self.records = (), ()
        self.timeline, self.traffic = Timeline([]), TrafficTable()
        self._memory, self._take_account = Memory.of(()), None

    def __repr__(self):
        steps = len({record["step"] for record in self.records})
        return f"Run of {self.world_size} rank{'s' * (self.world_size > 1)}" + (f", {steps} steps" if steps else "")

    @property
    def memory(self):
        if self._take_account:
            self._memory, self._take_account = self._take_account(), None
        return self._memory

    @property
    def log(self):
        return zlib.decompress(self._log).decode()

    def _keep_log(self, file):
        file.seek(0)
        self._log = zlib.compress(file.read().encode(), level=1)

    def _fill(self, session):
        observed = [state.observed for state in session.states]
        self.records = tuple(sorted(session.records, key=lambda record: (record["step"], record["rank"])))
        self.timeline = Timeline([Span(*row) for one in observed for row in one.get("spans", ())])
        self.traffic = TrafficTable(one.get("traffic", {}) for one in observed)
        peaks = [one.get("peak_bytes", 0) for one in observed]
        on_cuda = self.placement.device_type == "cuda"
        rows = (RankMemory(rank, peak, peak, on_cuda=on_cuda) for rank, peak in enumerate(peaks))
        self._memory = Memory.of(rows, badge=self.placement.badge)
        dropped = sum(one.get("dropped", 0) for one in observed)
        if dropped:
            warnings.warn(f"the timeline lacks the last {dropped:,} spans; time fewer steps to see them all", stacklevel=4)


def launch(fn, *args, world_size=None, device=None, timeout=60, live=True, inline=False, share_device=False, **kwargs):
    """Runs fn(rank, *args, **kwargs) on `world_size` ranks (all devices if None) and returns a Run.

    `rank` is a labkit.Rank; torch.distributed is initialised and its plain calls reach the other ranks. fn travels by
    value and each run starts from clean processes: torch's seed is the same on all ranks (so are weights made without a
    seed of one's own), those of numpy and random differ by rank, and both repeat from run to run.

    device        "cuda", "cpu" or None: CUDA where there are enough GPUs, else CPU, one core a rank
    timeout       seconds without any progress (a record, a print, a collective, CPU or GPU work) that count as a hang
    live          show prints and logged numbers while the ranks run
    inline        run the only rank in this very process, for a debugger
    share_device  let ranks share GPUs, over gloo

    Raises RankError if a rank fails or hangs, Stopped (a KeyboardInterrupt) at Stop, TypeError or ValueError for a
    request that cannot be met, before anything starts.
    """
    return run_ranks(
        fn,
        args,
        kwargs,
        world_size=world_size,
        device=device,
        timeout=timeout,
        live=live,
        inline=inline,
        share_device=share_device,
        view=RecordsView() if live else None,
    )


def run_ranks(
    fn,
    args,
    kwargs,
    *,
    world_size=None,
    device=None,
    timeout=60,
    live=True,
    inline=False,
    share_device=False,
    view=None,
    largest=None,
    warn=True,
):
    """Does what `launch` says.

    `view` is shown the session while it runs, `largest` is for `place`, `warn` is False where speeds do not matter.
    """
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r} must be a number of seconds above 0")
    if inline and world_size not in (None, 1):
        raise ValueError(f"inline=True runs one rank in this process, not {world_size}; leave world_size out")
    if sys.platform == "win32":
        raise RuntimeError("labkit's ranks need Linux or macOS; on Windows use WSL2")
    if inline:
        return _run_inline(place(1, device), fn, args, kwargs)
    with Interrupts() as interrupts:
        if world_size is None:
            world_size = default_world_size(device)
        placement = place(world_size, device, share_device=share_device, largest=largest)
        for sentence in placement.warnings if warn else ():
            notices.warn(sentence, stacklevel=3)
        data = pack_function(fn, args, kwargs)
        run = _run(placement, data, interrupts, timeout=timeout, live=live, view=view or NoView())
        if interrupts.seen:
            raise Stopped("stopped when the ranks had ended", run=run)
    return run


def _run(placement, data, interrupts, *, timeout, live, view):
    run, failure = Run(placement), None
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        prints = Prints(run.world_size, log=log, live=live)
        session = Session(_plan(placement), timeout=timeout, prints=prints, view=view, interrupts=interrupts)
        try:
            session.run(data)
            run.results = tuple(pickle.loads(state.result) for state in session.states)
        except (RankError, Stopped, ServerGone) as error:
            failure = error
            error.run = run
            raise
        finally:
            run._fill(session)
            prints.close()
            log.writelines(state.failure["full"] for state in session.states if state.failure)
            run._keep_log(log)
            view.close(session, failure)
    return run


def _run_inline(placement, fn, args, kwargs):
    from labkit.inline import run_inline

    run = Run(placement)
    session, result = run_inline(fn, args, kwargs, _plan(placement))
    run.results = (result,)
    run._fill(session)
    return run


def _plan(placement):
    """Returns what every rank must know before the function is unpickled: the kernel's state at this moment."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError("this process's working directory no longer exists; os.chdir to one that does") from None
    world_size = len(placement.devices)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environ = dict(os.environ)
    environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    environ.update(peer_to_peer.environment(placement, environ, run_ranks))
    environ.update(
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        GLOO_SOCKET_IFNAME=loopback,
        OMP_NUM_THREADS="1",
    )
    return {
        "environ": environ,
        "cwd": cwd,
        "path": [os.path.abspath(entry) if entry else cwd for entry in sys.path],
        "argv": list(sys.argv),
        "world_size": world_size,
        "devices": placement.devices,
        "cores": placement.cores,
        "backend": placement.backend,
    }


class NoView:
    """Shows nothing."""

    def tick(self, session):
        return False

    def close(self, session, failure):
        pass
