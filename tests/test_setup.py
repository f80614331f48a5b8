"""The files that set the workbook up agree with each other, and say in one sentence what a machine lacks."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
MODULES = sorted(ROOT.glob("labkit/**/*.py"))


def python(path, *, version="3.11", venv=True):
    """A stand-in for an interpreter: says yes or no to the two questions that the set-up asks."""
    answers = {"version_info <": tuple(map(int, version.split("."))) >= (3, 11), "ensurepip": venv}
    cases = [f'*"{question}"*) exit {0 if yes else 1} ;;' for question, yes in answers.items()]
    path.write_text("\n".join(["#!/bin/sh", 'case "$*" in', *cases, f"*) echo python{version}-venv ;;", "esac"]) + "\n")
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path):
    """A clone beside a PATH that holds only what every POSIX system has; `bare.run(**environment)` sets it up."""
    clone, programs = tmp_path / "clone with space", tmp_path / "bin"
    clone.mkdir()
    programs.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / ".ci", clone / ".ci")
    for name in ("sh", "cat", "cksum", "dirname", "grep", "rm", "tail", "uname"):
        (programs / name).symlink_to(shutil.which(name))

    class Bare:
        folder, bin = clone, programs

        def run(self, **environment):
            script = [str(programs / "sh"), str(clone / ".ci/setup.sh")]
            environment = {"PATH": str(programs), "PIP_RETRIES": "1", **environment}
            return subprocess.run(script, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    return Bare()


@pytest.mark.parametrize(
    "pythons, sentence",
    [
        ({}, "no Python 3.11 or newer was found; install one"),
        ({"python3": {"version": "3.10"}}, "no Python 3.11 or newer was found; install one"),
        ({"python3": {"version": "3.12", "venv": False}}, "sudo apt install python3.12-venv"),
        ({"python3": {"version": "3.9"}, "python3.13": {"version": "3.13", "venv": False}}, "python3.13 cannot make"),
    ],
)
def test_a_missing_piece_gets_one_sentence(bare, pythons, sentence):
    for name, kind in pythons.items():
        python(bare.bin / name, **kind)
    result = bare.run()
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and sentence in result.stderr


def test_native_windows_is_refused_in_one_sentence(bare):
    (bare.bin / "uname").unlink()
    (bare.bin / "uname").write_text("#!/bin/sh\necho MINGW64_NT-10.0\n")
    (bare.bin / "uname").chmod(0o755)
    result = bare.run()
    assert result.returncode == 1 and "WSL2" in result.stderr and len(result.stderr.splitlines()) == 1


def test_without_a_network_it_says_so_and_the_next_try_goes_on(bare):
    closed = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}
    outside = {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "VIRTUAL_ENV": "/nowhere", "PIP_USER": "1"}
    for _ in range(2):
        result = bare.run(PYTHON=sys.executable, **closed, **outside)
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1 and "the package index could not be reached" in result.stderr
        assert (bare.folder / ".venv/bin/python").exists() and not (bare.folder / ".venv/ready").exists()


def test_environments_name_the_same_packages():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == [
        f"python{PROJECT['requires-python']}",
        "pip",
        {"pip": ["-c constraints.txt", "-e .[test]"]},
    ]
    setup = (ROOT / ".ci/setup.sh").read_text()
    assert "-c constraints.txt -e '.[test]'" in setup and "version_info < (3, 11)" in setup


def test_every_dependency_is_pinned_to_one_plain_version():
    pins = dict(line.split("==") for line in CONSTRAINTS)
    direct = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
    assert set(direct) <= set(pins)
    assert all(re.fullmatch(r"[0-9.]+", version) for version in pins.values())


def test_make_has_the_targets_that_the_documents_name():
    result = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {line.split()[1] for line in result.stdout.splitlines()}
    assert {"setup", "lab", "test", "outputs", "bench", "clean"} <= named
    documents = [path.read_text() for path in ROOT.glob("*.md")]
    for target in re.findall(r"`make ([a-z]+)", " ".join(documents)):
        assert target in named


def test_packages_are_installed_whole():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {".".join(path.parent.relative_to(ROOT).parts) for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_and_functions_are_small(path):
    text = path.read_text()
    assert text.count("\n") <= 220
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions if node.end_lineno - node.lineno + 1 > 60}
    assert long == {}
