"""Whether an exercise was begun: what still stands where an answer belongs."""

import ast
import dis
import functools
import inspect
import textwrap
import types

# A body of `...`, `pass`, `return None` or a docstring compiles to these, on every version of Python.
IDLE_OPERATIONS = {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "MAKE_CELL", "EXTENDED_ARG"}
CONSTANT_OPERATIONS = {"LOAD_CONST", "LOAD_CONST_IMMORTAL", "LOAD_COMMON_CONSTANT", "RETURN_CONST", "RETURN_VALUE"}


def is_stub(answer):
    """Whether nothing was filled in: `...` or None, text without letters, a function or class that does nothing.

    Of a container that holds for one entry, but a None among others is an answer (an idle slot of a schedule).
    """
    entries = list(entries_of(answer))
    return any(map(is_empty, entries)) or (bool(entries) and all(entry is None for entry in entries))


def entries_of(answer):
    """The entries of nested containers, or the answer itself."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, (list, tuple, set, frozenset)):
        for entry in answer:
            yield from entries_of(entry)
    else:
        yield answer


def is_empty(entry):
    if isinstance(entry, str):
        return entry.strip() in ("", "...")
    if isinstance(entry, type):
        methods = methods_of(entry)
        return all(map(does_nothing, methods)) if methods else all(name.startswith("__") for name in vars(entry))
    function = function_of(entry)
    return entry is ... or (function is not None and does_nothing(function))


def gap_in(answer):
    """Where a `...` or an empty helper still stands in a function that was begun: (file name, line) or a name, else None."""
    functions = methods_of(answer) if isinstance(answer, type) else [function_of(answer)]
    for function in filter(None, functions):
        found = ellipsis_in(function) or empty_helper(function)
        if found:
            return found
    return None


def function_of(answer):
    """The Python function behind a function, method, partial or decorated function; None for anything else."""
    while isinstance(answer, (functools.partial, types.MethodType)):
        answer = answer.func if isinstance(answer, functools.partial) else answer.__func__
    answer = inspect.unwrap(answer) if callable(answer) else None
    return answer if isinstance(answer, types.FunctionType) else None


def methods_of(cls):
    return [one for one in vars(cls).values() if isinstance(one, types.FunctionType)]


def does_nothing(function):
    """Whether the body only returns None or `...`, or only raises NotImplementedError."""
    operations = [one for one in dis.get_instructions(function) if one.opname not in IDLE_OPERATIONS]
    names = {one.opname for one in operations}
    if names <= CONSTANT_OPERATIONS:
        return all(one.argval in (None, ...) for one in operations if "CONST" in one.opname)
    returns = any(name.startswith("RETURN") for name in names)
    return not returns and function.__code__.co_names == ("NotImplementedError",)


def ellipsis_in(function):
    """(file name, line) of the first `...` that stands as a statement of its own."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    gaps = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Expr) and is_ellipsis(node.value)]
    return (function.__code__.co_filename, first + min(gaps) - 1) if gaps else None


def is_ellipsis(node):
    return isinstance(node, ast.Constant) and node.value is ...


def empty_helper(function):
    """The name of a function that does nothing and that this one uses, from the same cells."""
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if isinstance(helper, types.FunctionType) and helper.__module__ == function.__module__ and does_nothing(helper):
            return name
    return None
