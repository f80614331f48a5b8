"""Executes cells, one JSON string a line of stdin, in __main__, as a notebook's kernel does: Stop counts only in a cell."""

import ast
import json
import linecache
import os
import signal
import sys


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    namespace = vars(sys.modules["__main__"])
    replies = os.fdopen(int(sys.argv.pop()), "w")
    for number, line in enumerate(sys.stdin, 1):
        reply = {"error": None}
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            reply["value"] = execute(json.loads(line), f"<cell {number}>", namespace)
        except BaseException as error:
            reply.update(error=type(error).__name__, message=str(error), notes=getattr(error, "__notes__", []))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(json.dumps(reply, default=str), file=replies, flush=True)


def execute(source, filename, namespace):
    """Runs a cell and returns the value of its last expression."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(compile(source, filename, "exec"), namespace)
        return None
    exec(compile(ast.Module(statements, []), filename, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), filename, "eval"), namespace)


if __name__ == "__main__":
    main()
