"""What every fault test has, and what must hold after each of them."""

import os
import re
import shutil
import subprocess

import pytest
import survivors
from kernels import START, Kernel
from workers import Moment

import labkit
from labkit import process_table, server_link

ERROR_S = 3.0
NOT_THE_SAME_TWICE = re.compile(r"0x[0-9a-f]+|:\d{4,}|/tmp|/proc|\bpid\b|\d+\.\d+\.\d+\.\d+")


@pytest.fixture(scope="session", autouse=True)
def mark():
    survivors.set_mark()


@pytest.fixture(autouse=True)
def nothing_survives():
    """No rank, and nothing that a rank has started, may outlive its run."""
    yield
    survivors.assert_gone(within_s=0.5)
    if server_link._link is not None:
        assert process_table.children(server_link._link.process.pid) == []


@pytest.fixture(scope="session")
def kernel(mark, tmp_path_factory):
    """One kernel for all tests that leave it as it was; where the system permits it, its host name means nothing to anybody."""
    nameless = ["unshare", "--uts", "sh", "-c", 'hostname no-such-host && exec "$@"', "sh"]
    permitted = shutil.which("unshare") and not subprocess.run([*nameless, "true"], capture_output=True).returncode
    with Kernel(tmp_path_factory.mktemp("kernel"), prefix=nameless if permitted else ()) as kernel:
        kernel.run(START)
        yield kernel
        directory = kernel.run("labkit.server_link._link and labkit.server_link._link.directory")
        assert not directory or not [name for name in os.listdir(directory) if name.startswith("run-")]
    assert not directory or not os.path.exists(directory)


@pytest.fixture
def moment(tmp_path):
    return Moment(tmp_path / "moment")


@pytest.fixture
def fail(moment):
    """Returns a function that runs ranks which fail, checks the deadlines from the fault's own moment, and returns the error.

    The function under test gets the moment, to note it, after its rank. All ranks are gone when the error is raised.
    """

    def fail(fn, *args, world_size=2, timeout=30, late_s=0.0):
        with pytest.raises(labkit.RankError) as caught:
            labkit.launch(fn, moment, *args, world_size=world_size, timeout=timeout, live=False)
        age_s = moment.age_s()
        assert survivors.survivors() == set()
        assert age_s < late_s + ERROR_S
        error = caught.value
        assert isinstance(error.traceback, str)
        assert not NOT_THE_SAME_TWICE.search(str(error)), str(error)
        return error

    return fail
