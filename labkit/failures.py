"""An exception of a rank, described by plain strings, so that the kernel need not unpickle foreign classes."""

import contextlib
import re
import traceback

# torch appends the stack of its C++ code, with addresses that differ from run to run.
_CPP_STACKS = ("\nException raised from ", "\nC++ CapturedTraceback:", "\nframe #0:")
MESSAGE_CHARACTERS = 4_000
_TOLD = "Traceback (most recent call last):"
_TOLD_FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
_UNUSED = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+).*", re.DOTALL)


def failure(error):
    """Returns the message that a rank sends when its function raises `error`."""
    described = {"kind": "raised", "chain": _chain(error), "full": _full(error)}
    if isinstance(error, SystemExit):
        code = error.code
        described.update(kind="exited", code=code if isinstance(code, int) else int(code is not None))
        described["said"] = "" if code is None or isinstance(code, int) else _message(error)
    return described


def _chain(error):
    """Returns the error and what led to it, as dicts; `link` says how each of them led to the one before."""
    chain, link, seen = [], "", set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        chain.append({"link": link, "type": type(error).__name__, "message": _message(error), "frames": _frames(error)})
        link = "caused by" if error.__cause__ is not None else "while handling"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _message(error):
    try:
        text = str(error)
    except Exception as trouble:
        return f"(its message cannot be shown: {type(trouble).__name__})"
    for mark in _CPP_STACKS:
        text = text.partition(mark)[0]
    text = _with_parameter_names(_without_traceback(text.rstrip()), error)
    text = text.encode(errors="backslashreplace").decode()
    more = len(text) - MESSAGE_CHARACTERS
    return text if more <= 0 else f"{text[:MESSAGE_CHARACTERS]} … {more:,} more characters"


def _without_traceback(text):
    """Leaves out the traceback that another process, such as a loader worker, has put into the message."""
    head, told, rest = text.partition(_TOLD)
    if not told:
        return text
    lines = rest.splitlines()
    last_frame = max((at for at, line in enumerate(lines) if line.startswith(" ")), default=-1)
    return f"{head.partition(chr(10))[0].rstrip('. ')}: " + "\n".join(lines[last_frame + 1 :])


def _with_parameter_names(text, error):
    """Replaces what DDP says of unused parameters by their names: it knows them only with a slower debug level."""
    match = _UNUSED.search(text)
    if not match:
        return text
    for frame, _ in traceback.walk_tb(error.__traceback__):
        ddp = frame.f_locals.get("self")
        if hasattr(ddp, "reducer") and hasattr(ddp, "module"):
            names = [name for name, parameter in ddp.module.named_parameters() if parameter.requires_grad]
            unused = ", ".join(names[int(index)] for index in match[1].split())
            return f"{text[: match.start()]}Parameters that took no part in the loss: {unused}"
    return text


def _frames(error):
    frames = [(entry.filename, entry.lineno, entry.name) for entry in traceback.extract_tb(error.__traceback__)]
    with contextlib.suppress(Exception):
        # Where another process has put its traceback into the message, its frames go on from ours.
        frames += [(file, int(line), name) for file, line, name in _TOLD_FRAME.findall(str(error).partition(_TOLD)[2])]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 1, "<module>"))
    return frames


def _full(error):
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return f"{type(error).__name__}\n"
