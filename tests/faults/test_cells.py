"""Functions and classes need no file: they may stand in a cell, in a script that is piped in, or in a real notebook kernel."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import survivors
from kernels import START

DEFINITIONS = """
class Base(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 1)

class Net(Base):
    def __init__(self, width):
        super().__init__(width)
        self.scale = SCALE

    def forward(self, x):
        return self.scale * self.linear(x)

SCALE = 2.0
double = lambda x: 2 * x

def train(rank, width=3, *, of=double):
    net = torch.nn.parallel.DistributedDataParallel(Net(width))
    net(torch.ones(4, width)).mean().backward()
    return of(net.module.linear.bias.grad.item())
"""
WRONG = """
def helper(x):
    return x + missing

def wrong(rank):
    dist.barrier()
    return helper(rank.rank)

labkit.launch(wrong, world_size=2)
"""
ENDLESS = """
def endless(rank, moment):
    while True:
        moment.note()
        time.sleep(0.01)

"""


def test_definitions_of_cells(kernel):
    kernel.run(DEFINITIONS)
    assert kernel.run("labkit.launch(train, world_size=2).results") == [4.0, 4.0]
    kernel.run("SCALE = 3.0")
    assert kernel.run("labkit.launch(train, 5, world_size=2, of=lambda x: x + 0.5).results") == [3.5, 3.5]


def test_results_are_of_the_cells_own_classes(kernel):
    kernel.run("import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int")
    kernel.run("def fn(rank):\n    return Point(rank.rank)")
    assert kernel.run("labkit.launch(fn, world_size=2).results == (Point(0), Point(1))")


def test_an_error_shows_the_lines_of_the_cells(kernel):
    kernel.send(WRONG)
    reply = kernel.reply()
    assert (reply["error"], reply["message"]) == ("RankError", "rank 0 raised NameError: name 'missing' is not defined")
    (shown,) = reply["notes"]
    assert "line 3, in helper\n    return x + missing" in shown
    assert "line 7, in wrong\n    return helper(rank.rank)" in shown


def test_a_script_that_is_piped_in(tmp_path):
    script = f"{START}\n{DEFINITIONS}\nprint(labkit.launch(train, world_size=2).results, flush=True)\n{WRONG}"
    ran = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, cwd=tmp_path, env=with_paths())
    assert ran.stdout == "(4.0, 4.0)\n"
    assert ran.returncode == 1
    *_, error, _, in_wrong, in_helper, cause = ran.stderr.splitlines()
    assert error == "labkit.errors.RankError: rank 0 raised NameError: name 'missing' is not defined"
    assert re.fullmatch(r"  <stdin>, line \d+, in wrong", in_wrong) and re.fullmatch(r"  <stdin>, line \d+, in helper", in_helper)
    assert cause == "NameError: name 'missing' is not defined"


def with_paths():
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}


def test_a_real_notebook_kernel(moment, monkeypatch):
    """Jupyter's own client and kernel: prints, an error with the cell's line, and Stop that keeps the variables."""
    jupyter_client = pytest.importorskip("jupyter_client")
    monkeypatch.setenv("PYTHONPATH", with_paths()["PYTHONPATH"])
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3")
    survivors.KERNELS.add(manager.provisioner.pid)
    try:
        execute(client, START + DEFINITIONS + "\nkept = 41")
        shown = text_of(execute(client, "print(labkit.launch(train, world_size=2).results)"))
        assert shown == "(4.0, 4.0)\n"
        shown = text_of(execute(client, "run = labkit.launch(lambda rank: print('hi'), world_size=2)"))
        assert shown == "all 2 ranks: hi\n"

        error = next(content for kind, content in execute(client, WRONG) if kind == "error")
        assert (error["ename"], error["evalue"]) == ("RankError", "rank 0 raised NameError: name 'missing' is not defined")
        shown = "\n".join(error["traceback"])
        assert re.search(r"cell In\[\d\], line \d, in helper\n    return x \+ missing", shown)
        assert "session.py" not in shown and "launcher.py" not in shown

        client.execute(f"{ENDLESS}labkit.launch(endless, Moment({str(moment.path)!r}), world_size=2)")
        moment.wait()
        pressed_at = time.monotonic()
        manager.interrupt_kernel()
        error = next(content for kind, content in until_idle(client) if kind == "error")
        assert (error["ename"], error["traceback"]) == ("Stopped", ["stopped: all 2 ranks have ended"])
        survivors.assert_gone(pressed_at + survivors.GONE_S - time.monotonic())
        assert "42 (4.0, 4.0)" in text_of(execute(client, "print(kept + 1, labkit.launch(train, world_size=2).results)"))
    finally:
        survivors.KERNELS.discard(manager.provisioner.pid)
        client.stop_channels()
        manager.shutdown_kernel()
        survivors.assert_gone(survivors.GONE_S)


def execute(client, code):
    client.execute(code)
    return until_idle(client)


def until_idle(client):
    """Returns [(kind, content)] of all that a cell shows."""
    messages = []
    while True:
        message = client.get_iopub_msg(timeout=60)
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle" and messages:
            return messages
        if kind != "status":
            messages.append((kind, content))


def text_of(messages):
    return "".join(content["text"] for kind, content in messages if kind == "stream" and content["name"] == "stdout")
