"""Constants of machines that know where they come from, and how to make a machine with other ones."""

import dataclasses
from dataclasses import dataclass, field, fields

READ, DERIVED, ESTIMATED, FITTED, MEASURED = "read", "derived", "estimated", "fitted", "measured"
ORIGINS = (READ, DERIVED, ESTIMATED, FITTED, MEASURED, "given")


@dataclass(frozen=True)
class Source:
    """Where a constant comes from: read in a source, derived from read ones, estimated, fitted to runs, measured, given."""

    origin: str
    text: str

    def __post_init__(self):
        if self.origin not in ORIGINS:
            raise ValueError(f"origin {self.origin!r} is unknown; use one of {', '.join(ORIGINS)}")


GIVEN = Source("given", "set by the caller")


@dataclass(frozen=True, kw_only=True)
class Constants:
    """A part of a machine. Its fields are its constants; `origins` says of each where it comes from.

    `with_` also reaches the constants of the parts inside, by their plain names.
    """

    name: str
    origins: dict = field(default_factory=dict, hash=False, compare=False, repr=False)

    def with_(self, *, source=GIVEN, **changes):
        """The same machine with other constants, all from one `source`; a ValueError for a name that it does not have."""
        own = {name: value for name, value in changes.items() if name in self._names()}
        others = {name: value for name, value in changes.items() if name not in own}
        inner = {} if not others else self._changed_parts(others, source)
        origins = self.origins | {name: source for name in own if name != "name"}
        return dataclasses.replace(self, **own, **inner, origins=origins)

    def known(self):
        """The names of all constants, those of the parts inside included."""
        return self._names() + tuple(name for part in self.parts().values() for name in part.known() if name != "name")

    def parts(self):
        """{field: part} of the fields that are Constants themselves."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Constants)}

    def _names(self):
        return tuple(one.name for one in fields(self) if one.name != "origins")

    def _changed_parts(self, changes, source):
        inner, left = {}, dict(changes)
        for name, part in self.parts().items():
            known = part.known()
            mine = {key: left.pop(key) for key in list(left) if key in known}
            if mine:
                inner[name] = part.with_(source=source, **mine)
        if left:
            raise ValueError(f"{self.name} has no constant {', '.join(map(repr, left))}; it has {', '.join(self.known())}")
        return inner


def sources(part):
    """A table of a machine's constants as text: value, origin and source of each, parts inside last."""
    lines = [part.name]
    for one in fields(part):
        if one.name in ("name", "origins", *part.parts()):
            continue
        source = part.origins.get(one.name)
        origin, text = (source.origin, source.text) if source else ("default", "a choice of this model")
        lines += [f"  {name:<34} {value:>12}  {origin:<10} {text}" for name, value in _rows(one.name, getattr(part, one.name))]
    return "\n\n".join(["\n".join(lines), *(sources(one) for one in part.parts().values())])


def _rows(name, value):
    """(name, text) of a constant, one for each entry of a table."""
    if isinstance(value, dict):
        return [(f"{name} {key}", _told(rate)) for key, rate in value.items()]
    if isinstance(value, tuple):
        return [(f"{name} {key:.3g}", _told(share)) for key, share in value]
    return [(name, _told(value))]


def _told(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
