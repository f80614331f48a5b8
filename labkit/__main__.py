"""`python -m labkit COMMAND`: each command is a module with `main(arguments) -> int`, imported only when asked for."""

import os
import sys
from importlib import import_module

COMMANDS = {
    "judge": ("labkit.runs.judgement", "show how well predictions of published training runs hold"),
    "predict": ("labkit.runs.command", "predict training runs from a CSV file of their configurations"),
    "doctor": ("labkit.doctor", "look at this machine the way labkit uses it, one line a finding"),
    "outputs": ("labkit.publish", "run notebooks in a clean kernel and store what they show"),
    "student": ("labkit.handout", "copy notebooks without outputs and solutions into a folder to hand out"),
}


def main(arguments: list[str]) -> int:
    """Hand the arguments to the named command; return its exit status (2 where there is no such command)."""
    name = arguments[0] if arguments else "--help"
    if name in COMMANDS:
        return import_module(COMMANDS[name][0]).main(arguments[1:])
    asked = name in ("-h", "--help")
    print(usage() if asked else f"python -m labkit: no command {name!r}\n{usage()}", file=sys.stdout if asked else sys.stderr)
    return 0 if asked and arguments else 2


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {name:10} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(["usage: python -m labkit COMMAND ...   (COMMAND --help says more)", *lines])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # `… | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
