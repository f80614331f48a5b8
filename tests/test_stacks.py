"""Which frames are the learner's, and what faulthandler's dumps say."""

import pytest

import labkit
from labkit.stacks import is_library, learners_frames, main_thread_frames

DUMP = """main 7f01
Fatal Python error: Aborted

Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 10 in run

Current thread 0x00007f01 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/x.py", line 2 in all_reduce
  File "/tmp/ipykernel_7/33.py", line 4 in inner cell
  File "/tmp/ipykernel_7/33.py", line 9 in train
"""
NEWER = """
Thread 0x00007f01 (most recent call first):
  File "/home/me/it's (here), line 3 in b.py", line 5 in train
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 10 in run
"""


@pytest.mark.parametrize(
    "path, library",
    [
        ("/usr/lib64/python3.12/os.py", True),
        ("/usr/lib/python3/dist-packages/numpy/a.py", True),
        ("/venv/lib/python3.13t/site-packages/torch/a.py", True),
        (labkit.__file__, True),
        ("<frozen runpy>", True),
        ("<stdin>", False),
        ("<cell 3>", False),
        ("/tmp/ipykernel_7/33.py", False),
        ("/usr/src/app/helper.py", False),
        ("/home/me/python3/helper.py", False),
    ],
)
def test_libraries(path, library):
    assert is_library(path) is library


def test_the_newest_dump_of_the_main_thread(tmp_path):
    path = tmp_path / "stack"
    path.write_text(DUMP)
    assert main_thread_frames(path) == [
        ("/tmp/ipykernel_7/33.py", 9, "train"),
        ("/tmp/ipykernel_7/33.py", 4, "inner cell"),
        ("/venv/lib/python3.11/site-packages/torch/x.py", 2, "all_reduce"),
    ]
    assert [name for _, _, name in learners_frames(main_thread_frames(path))] == ["train", "inner cell"]
    path.write_text(DUMP + NEWER)
    assert main_thread_frames(path) == [("/home/me/it's (here), line 3 in b.py", 5, "train")]


def test_no_dump(tmp_path):
    assert main_thread_frames(tmp_path / "missing") == []
    (tmp_path / "empty").touch()
    assert main_thread_frames(tmp_path / "empty") == []


def test_only_library_frames_are_shown_rather_than_none():
    frames = [(labkit.__file__, 1, "launch"), ("/usr/lib/python3.11/pickle.py", 2, "loads")]
    assert learners_frames(frames) == frames[1:]
