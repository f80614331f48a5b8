"""What travels with a function to the ranks, by the names that the learner gave it."""

import collections
import dis
import functools
import inspect
import pickle
import types

import torch

_DEEP = 8  # how far a name is followed into containers and objects


def captures(fn, args, kwargs):
    """Yields (name, value) of all that travels with fn: arguments, closures, defaults and the globals it uses.

    Functions and classes that travel by value are followed; each value comes once.
    """
    queue = collections.deque([*_arguments(fn, args), *kwargs.items(), (name_of(fn), fn)])
    seen = set()
    while queue:
        name, value = queue.popleft()
        if id(value) in seen or isinstance(value, types.ModuleType):
            continue
        seen.add(id(value))
        inside = list(_inside(value))
        if not inside:
            yield name, value
        queue.extend(inside)


def name_of(fn):
    """The name that the learner gave it; of a functools.partial, its function's."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]


def culprit(name, value, can_travel):
    """Follows a value that cannot travel to the part that is the reason; returns (its name, it)."""
    for _ in range(_DEEP):
        part = next(((n, v) for n, v in _parts(name, value) if not can_travel(v)), None)
        if part is None:
            break
        name, value = part
    return name, value


def _arguments(fn, args):
    try:
        names = [p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    except (TypeError, ValueError):
        names = []
    return [(names[at] if at < len(names) else f"argument {at + 1}", value) for at, value in enumerate(args)]


def _inside(value):
    """Yields what is captured by a function, a class, a bound method or a functools.partial; nothing for other values."""
    if isinstance(value, types.MethodType):
        yield name_of(type(value.__self__)), value.__self__
        value = value.__func__
    if isinstance(value, type) and _by_value(value):
        yield from ((f"{value.__name__}.{n}", v) for n, v in vars(value).items() if not n.startswith("__"))
        yield from ((n, v) for n, v in vars(value).items() if isinstance(v, types.FunctionType) and n.startswith("__"))
        yield from ((name_of(base), base) for base in value.__bases__ if _by_value(base))
    if hasattr(value, "func") and hasattr(value, "keywords"):
        yield from [(name_of(value.func), value.func), *value.keywords.items()]
        yield from ((f"argument {at + 1}", argument) for at, argument in enumerate(value.args))
    if isinstance(value, types.FunctionType) and _by_value(value):
        yield from zip(value.__code__.co_freevars, map(_contents, value.__closure__ or ()))
        yield from ((name, value.__globals__[name]) for name in _global_names(value.__code__) if name in value.__globals__)
        defaults = [p for p in inspect.signature(value).parameters.values() if p.default is not p.empty]
        yield from ((parameter.name, parameter.default) for parameter in defaults)


def _by_value(value):
    if value.__module__ == "__main__":
        return True
    try:
        pickle.dumps(value)
    except Exception:
        return True
    return False


def _contents(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _global_names(code):
    names = [one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return names


def _parts(name, value):
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{at}]", part) for at, part in enumerate(value)]
    if isinstance(value, (type, types.FunctionType, torch.Tensor)) or not hasattr(value, "__dict__"):
        return []
    return [(f"{name}.{key}", part) for key, part in vars(value).items()]
