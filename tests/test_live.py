"""What ranks print becomes one text that does not depend on who was first, in terminals, kernels and under nbval."""

import io
import itertools
import json
import random
import subprocess
import sys
import time

import nbclient
import nbformat
import pytest

from labkit.live import Picture, Prints, in_notebook
from labkit.prints import BREAK_CHARACTERS, common_lines


def prints_of(*ranks, stream="stdout", chunk=None, order=None, **options):
    """Prints fed with each rank's text, in pieces of `chunk` bytes that arrive in a random order of ranks."""
    prints = Prints(len(ranks), live=False, **options)
    pieces = [(rank, text.encode()[at : at + (chunk or 10**9)]) for rank, text in enumerate(ranks) for at in starts(text, chunk)]
    for rank in order.sample([rank for rank, _ in pieces], len(pieces)) if order else [rank for rank, _ in pieces]:
        place = next(place for place, piece in enumerate(pieces) if piece[0] == rank)
        prints.feed(rank, stream, pieces.pop(place)[1])
    return prints


def starts(text, chunk):
    return range(0, len(text.encode()), chunk) if chunk else [0]


def test_lines_of_all_ranks_are_shown_once_and_others_in_rank_order():
    prints = prints_of("start\nloss 1\nend\n", "start\nloss 2\nend\n", "start\nend\nmine\n")
    assert prints.text() == "all 3 ranks: start\nrank 0: loss 1\nrank 1: loss 2\nall 3 ranks: end\nrank 2: mine\n"


def test_one_rank_is_tagged_too():
    assert prints_of("hello\n").text() == "rank 0: hello\n"


def test_text_does_not_depend_on_how_bytes_arrive():
    ranks = ["hé 1\r\nstep\nа 50%\rа 100%\nend", "hé 1\nstep\n\nend\n", "x\nstep\n€ 10%\r€ 20%\n日本語\n"]
    expected = prints_of(*ranks).text()
    assert expected.splitlines()[3:5] == ["all 3 ranks: step", "rank 0: а 100%"]
    for seed in range(200):
        order = random.Random(seed)
        assert prints_of(*ranks, chunk=order.choice([1, 2, 3, 5]), order=order).text() == expected


def test_common_lines_is_a_longest_common_subsequence():
    order = random.Random(0)
    for _ in range(500):
        left, right = (order.choices("abcd", k=order.randrange(10)) for _ in range(2))
        common = common_lines(left, right)
        assert is_subsequence(common, left) and is_subsequence(common, right)
        longer = itertools.combinations(left, len(common) + 1)
        assert not any(is_subsequence(candidate, right) for candidate in longer)


def is_subsequence(lines, whole):
    rest = iter(whole)
    return all(line in rest for line in lines)


def test_one_bar_stands_for_everyones_and_keeps_its_last_state():
    bar = "".join(f"\r{percent}%|##" for percent in (0, 50, 100))
    prints = prints_of(f"{bar}\nepoch\n", f"{bar}\nepoch\n", f"epoch\n{bar}")
    assert prints.text() == "rank 0: 100%|##\nall 3 ranks: epoch\n"
    assert prints_of("quiet\n", bar).text() == "rank 0: quiet\nrank 1: 100%|##\n"


def test_a_wiped_bar_and_cursor_moves_leave_nothing():
    assert prints_of("\r10%\r    \rdone\n").text() == "rank 0: done\n"
    assert prints_of("\r10%\r    \r\n").text() == ""
    assert prints_of("\x1b[Aup\x1b[31m red\x1b[0m\n").text() == "rank 0: up\x1b[31m red\x1b[0m\n"


def test_the_line_in_progress_is_shown_and_ended_by_close(capsys):
    prints = Prints(1)
    prints.feed(0, "stdout", b"half a")
    assert prints.text() == "rank 0: half a\n"
    prints.feed(0, "stdout", b" line")
    prints.close()
    prints.close()
    assert capsys.readouterr().out == "rank 0: half a line\n"


def test_invalid_bytes_and_blank_lines_are_kept():
    prints = Prints(1, live=False)
    prints.feed(0, "stdout", b"\xff\n\nend\n")
    assert prints.text() == "rank 0: �\nrank 0: \nrank 0: end\n"


def test_backend_chatter_is_in_the_log_only():
    log = io.StringIO()
    prints = prints_of("[Gloo] Rank 0 is connected to 1 peer ranks.\nmine\n", "mine\n", log=log)
    assert prints.text() == "all 2 ranks: mine\n"
    assert log.getvalue().splitlines() == ["rank 0: [Gloo] Rank 0 is connected to 1 peer ranks.", "rank 0: mine", "rank 1: mine"]


def test_long_texts_are_capped_with_the_number_of_lines_left_out():
    ranks = ["".join(f"{rank} {line}\n" for line in range(300)) for rank in range(2)]
    shown = prints_of(*ranks, limit_lines=10).text().splitlines()
    assert shown[:5] == [f"rank 0: 0 {line}" for line in range(5)]
    assert shown[5] == "… 590 more lines here; all of them are in the run's log …"
    assert shown[6:] == [f"rank 1: 1 {line}" for line in range(295, 300)]


def test_common_lines_beyond_the_cap_are_counted_for_every_rank():
    text = "".join(f"line {line}\n" for line in range(300))
    shown = prints_of(text, text, limit_lines=100).text().splitlines()
    assert len(shown) == 101 and shown[50].startswith("… 400 more lines")
    assert shown[49] == "all 2 ranks: line 49" and shown[51] == "all 2 ranks: line 250"


def test_long_lines_are_cut_and_endless_ones_broken():
    log = io.StringIO()
    prints = prints_of("x" * 10_000 + "\n", log=log)
    assert prints.text() == f"rank 0: {'x' * 2000} … 8,000 more characters\n"
    assert log.getvalue() == f"rank 0: {'x' * 10_000}\n"
    endless = prints_of("y" * (3 * BREAK_CHARACTERS), chunk=1000)
    assert len(endless.text().splitlines()) == 3


def test_hundred_thousand_lines_keep_little_memory_and_reach_the_log(tmp_path):
    with open(tmp_path / "run.log", "w") as log:
        prints = Prints(2, log=log, live=False)
        for start in range(0, 100_000, 1000):
            for rank in range(2):
                prints.feed(rank, "stdout", "".join(f"{rank} line {line}\n" for line in range(start, start + 1000)).encode())
        assert len(prints.text().splitlines()) == 201
    assert (tmp_path / "run.log").read_text().count("\n") == 200_000
    assert all(len(stream.head) + len(stream.tail) <= 400 for stream in prints._streams["stdout"])


def test_a_terminal_prints_each_line_once_and_stderr_apart(capsys):
    prints = Prints(2)
    prints.feed(0, "stdout", b"hello\n")
    prints.show(0.0)
    prints.feed(1, "stdout", b"hello\nown")
    prints.feed(1, "stderr", b"warning\n")
    prints.show(0.0)
    prints.show(0.2)
    assert capsys.readouterr() == ("", "")
    prints.show(0.3)
    assert capsys.readouterr() == ("all 2 ranks: hello\n", "rank 1: warning\n")
    prints.feed(1, "stdout", b" line\n")
    prints.show(10.0)
    prints.show(20.0)
    assert capsys.readouterr().out == "rank 1: own line\n"


def test_a_script_that_is_not_live_prints_the_merged_text_at_the_end(capsys):
    prints = prints_of("b\nend\n", "a\nend\n", stream="stderr", chunk=1, order=random.Random(0))
    prints.show(10.0)
    assert capsys.readouterr().err == ""
    prints.close()
    assert capsys.readouterr().err == "rank 0: b\nrank 1: a\nall 2 ranks: end\n"


def test_outside_notebooks_there_is_no_picture_and_no_ipython():
    code = """
import sys
from labkit.live import Picture, in_notebook
picture = Picture("x")
picture.update(None)
print(picture.due(1.0), in_notebook(), "IPython" in sys.modules)"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False False\n"
    assert not in_notebook() and not Picture("x").due(time.monotonic())


SETUP = """
import io, random, sys, time
from labkit.canvas import Drawing
from labkit.live import Picture, Prints
def run(prints, picture=None, *, warn=False):
    if warn: prints.feed(1, "stderr", b"a new warning\\n")
    pieces = [(rank, piece) for piece in (b"start\\n", b"50%\\r", b"100%\\n") for rank in (0, 1)] + [(1, b"mine\\n")]
    for number in sorted(range(7), key=lambda n: (pieces[n][0], n)) if random.random() < .5 else range(7):
        prints.feed(*pieces[number][:1], "stdout", pieces[number][1])
        prints.show(time.monotonic())
        if picture: picture.update(Drawing(100 + 10 * number))
        if random.random() < .5: time.sleep(.3)
    prints.close()
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A notebook with live prints and pictures, executed and stored; (path, notebook, the messages of its cells)."""
    cells = [SETUP, "run(Prints(2))", "run(Prints(2), warn=True)", "run(Prints(2), Picture('<a picture>'))", "Prints(2).close()"]
    held = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    held.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(held, record_timing=False, coalesce_streams=True).execute()
    path = tmp_path_factory.mktemp("live") / "live.ipynb"
    nbformat.write(held, path)
    return path, held


TEXT = "all 2 ranks: start\nrank 0: 100%\nrank 1: mine\n"


def test_a_notebook_keeps_the_final_text_as_one_block(notebook):
    _, held = notebook
    outputs = held.cells[1].outputs
    assert [output.output_type for output in outputs] in (["display_data", "stream"], ["stream"])
    assert outputs[-1].text == TEXT and all(output.data == {} for output in outputs[:-1])
    assert [output.text for output in held.cells[2].outputs if output.output_type == "stream"] == [
        TEXT,
        "rank 1: a new warning\n",
    ]
    assert held.cells[4].outputs == []


def test_a_notebook_keeps_the_last_picture_with_its_size(notebook):
    _, held = notebook
    pictures = [output for output in held.cells[3].outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1 and pictures[0].data["text/plain"] == "<a picture>"
    assert pictures[0].metadata["image/png"] == {"width": 900, "height": 160}


def test_strict_nbval_passes_whatever_the_order_and_sees_changed_text(notebook):
    path, held = notebook
    changed = json.loads(json.dumps(held))
    changed["cells"][1]["outputs"][-1]["text"] = "all 2 ranks: other\n"
    path.with_name("changed.ipynb").write_text(json.dumps(changed))
    # Warnings differ from version to version: stderr is left out, as in the workbook's own conftest.py.
    (path.parent / "conftest.py").write_text(
        "def pytest_collectstart(collector):\n    if hasattr(collector, 'skip_compare'): collector.skip_compare += ('stderr',)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider"]
    result = subprocess.run([*command, path.name, "changed.ipynb"], cwd=path.parent, capture_output=True, text=True)
    failed = [line.partition(" - ")[0] for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == ["FAILED changed.ipynb::Cell 1"] and "9 passed" in result.stdout
