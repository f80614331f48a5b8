"""Which Python and which packages there are, against those that the workbook was tested with."""

import platform
import re
from collections.abc import Callable
from importlib import metadata

from labkit.findings import Finding, broken, fine, look

LEAST_PYTHON = (3, 11)
TESTED = {
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "cloudpickle": "3.1.3",
    "jupyterlab": "4.6.6",
    "ipykernel": "7.4.0",
    "ipywidgets": "8.1.9",
    "matplotlib": "3.11.2",
}
INSTALL = "`make setup` installs what was tested"


def installed(name: str) -> str | None:
    """A package's version, None where it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def python_version(version: str | None = None) -> Finding:
    version = version or platform.python_version()
    if _numbers(version, 2) < LEAST_PYTHON:
        return broken(f"Python {version}", "the workbook needs Python 3.11 or newer")
    return fine(version)


def torch_version(version_of: Callable[[str], str | None] = installed) -> Finding:
    """Compares torch by its minor version: what the workbook uses of torch.distributed changes with it."""
    version, tested = version_of("torch"), TESTED["torch"]
    if version is None:
        return broken("missing", INSTALL)
    here, there = _numbers(version, 2), _numbers(tested, 2)
    if here < there:
        return look(f"{version} is older than {tested}, which was tested: some lessons may lack what they use", INSTALL)
    if here > there:
        return look(f"{version} is newer than {tested}, which was tested: it is expected to work", INSTALL)
    return fine(version)


def packages(version_of: Callable[[str], str | None] = installed) -> Finding:
    """Compares the other packages by their major versions, and names those that are missing."""
    versions = {name: version_of(name) for name in TESTED if name != "torch"}
    missing = [name for name, version in versions.items() if version is None]
    other = [
        f"{name} {version} (tested: {TESTED[name]})"
        for name, version in versions.items()
        if version is not None and _numbers(version, 1) != _numbers(TESTED[name], 1)
    ]
    if missing:
        found = "; ".join([f"missing: {', '.join(missing)}", *other])
        return look(f"{found}; ranks run, notebooks and pictures need them", INSTALL)
    if other:
        return look(f"other main versions than those tested: {', '.join(other)}", INSTALL)
    return fine(", ".join(f"{name} {version}" for name, version in versions.items()))


def _numbers(version: str, count: int) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:count])
