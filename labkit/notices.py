"""What labkit has to say beside a run, without the place that a Python warning names: a path on one machine."""

import warnings

from labkit.live import in_notebook, write

_said = set()


def warn(sentence, *, stacklevel):
    """A Python warning; in a notebook the sentence alone on stderr, once per kernel."""
    if not in_notebook():
        warnings.warn(sentence, stacklevel=stacklevel + 1)
    elif sentence not in _said:
        _said.add(sentence)
        write("stderr", f"{sentence}\n")
