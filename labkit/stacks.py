"""Where a rank stands: the stacks that faulthandler wrote, read back."""

import os
import re

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_LABKIT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib\d*[/\\]python3(\.\d+)?t?)[/\\]|^<frozen|^<string>")


def main_thread_frames(path):
    """Returns the newest dump of the rank's main thread as [(file, line, function)], innermost call last."""
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    main = lines[0].removeprefix("main ") if lines else ""
    frames, current = [], []
    for line in lines[1:]:
        match = _FRAME.match(line)
        if match:
            current.append((match["file"], int(match["line"]), match["name"]))
        elif "hread 0x" in line:
            # The header of a thread; only the main one holds the learner's code.
            current = []
            if re.search(rf"0x0*{main}\b", line):
                frames = current
    return frames[::-1]


def learners_frames(frames):
    """Drops the frames of labkit, torch and Python's own library, unless nothing else is there."""
    return [frame for frame in frames if not is_library(frame[0])] or [f for f in frames if not f[0].startswith(_LABKIT)]


def is_library(filename):
    return filename.startswith(_LABKIT) or bool(_LIBRARY.search(filename))
