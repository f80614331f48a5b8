"""What a stage of a pipeline does, one small frozen value per step, and who hands what to whom.

The model is cut into stages × chunks parts of equal weight. Part `chunk * stages + stage` lives on `stage`; it takes
the activation of the part before it and the gradient of the part after it. With one chunk a part is a stage.
"""

import operator
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, repr=False)
class Operation:
    """One step of one stage; `micro_batch` and `chunk` count from 0, anything else is a ValueError."""

    micro_batch: int
    chunk: int = 0

    kind: ClassVar[str]  # a kind of Span
    letter: ClassVar[str]
    makes: ClassVar[str] = ""  # what it hands on: "activation" to the next part, "gradient" to the previous one

    def __post_init__(self):
        for name in ("micro_batch", "chunk"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=0))

    def __repr__(self):
        chunk = f", chunk={self.chunk}" if self.chunk else ""
        return f"{type(self).__name__}({self.micro_batch}{chunk})"


class Forward(Operation):
    """The activation that a part makes of the previous part's activation."""

    kind, letter, makes = "forward", "F", "activation"


class Backward(Operation):
    """The gradients of a part's input and of its weights, from the next part's gradient."""

    kind, letter, makes = "backward", "B", "gradient"


class BackwardInput(Operation):
    """The gradient of a part's input only: what the previous part waits for."""

    kind, letter, makes = "backward_input", "I", "gradient"


class BackwardWeight(Operation):
    """The gradient of a part's weights only: nobody waits for it."""

    kind, letter = "backward_weight", "W"


OPERATIONS = (Forward, Backward, BackwardInput, BackwardWeight)


def source(operation, stage, stages, chunks):
    """The (stage, chunk) whose activation or gradient `operation` on `stage` takes; None at an end of the pipeline."""
    return _part(operation, stage, stages, chunks, -1)


def target(operation, stage, stages, chunks):
    """The (stage, chunk) that takes what `operation` on `stage` makes; None at an end of the pipeline."""
    return _part(operation, stage, stages, chunks, +1)


def whole(name, value, least):
    """`value` as an int of at least `least`, else a ValueError that names it."""
    try:
        number = operator.index(None if isinstance(value, bool) else value)  # True is no count
    except TypeError:
        raise ValueError(f"{name} is {value!r}; pass a whole number, {least} or more") from None
    if number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}")
    return number


def _part(operation, stage, stages, chunks, step):
    if not operation.makes:
        return None
    along = step if operation.makes == "activation" else -step
    part = operation.chunk * stages + stage + along
    return (part % stages, part // stages) if 0 <= part < stages * chunks else None
