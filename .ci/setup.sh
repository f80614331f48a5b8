#!/bin/sh
# Builds .venv out of nothing but Python >= 3.11 with venv, or finds it up to date. `make` calls it.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "setup: $1" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.14 python3.13 python3.12 python3.11
    fi
    for name in "$@"; do
        if new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer was found; install one (Debian, Ubuntu: sudo apt install python3 python3-venv; macOS: brew install python), or name it: PYTHON=/path/to/python3 make setup"
}

# Of the very environment in .venv: an own pip, no packages of the machine.
sound() {
    new_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1 &&
        grep -q 'include-system-site-packages = false' .venv/pyvenv.cfg
}

create() {
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        fail "$python cannot make virtual environments; install venv (Debian, Ubuntu: sudo apt install $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'))"
    "$python" -m venv --clear .venv || fail "$python could not create .venv in $(pwd)"
}

explain() {
    case $(cat .venv/errors.txt) in
    *"No space left on device"*) fail "the disk is full; PyTorch with CUDA and JupyterLab need about 7 GB" ;;
    *"after connection broken by"* | *NewConnectionError* | *NameResolutionError*)
        fail "the package index could not be reached; check the network, then run the same command again (details: .venv/errors.txt)" ;;
    *"No matching distribution found"*)
        fail "$(grep -m 1 -o 'No matching distribution found.*' .venv/errors.txt) and this Python ($(.venv/bin/python -V)) or system; try another: make clean, then PYTHON=python3.12 make setup" ;;
    esac
    tail -n 20 .venv/errors.txt >&2
    fail "pip failed, for the reason above"
}

case $(uname -s) in
MINGW* | MSYS* | CYGWIN*) fail "native Windows is not supported; use WSL2, where everything works as on Linux" ;;
esac

# What the caller has set must not reach into this environment.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER=0

wanted="$(pwd) $(cat pyproject.toml constraints.txt | cksum)"
[ "$(cat .venv/ready 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null && exit 0

case $(cat .venv/ready 2>/dev/null) in "$(pwd) "* | "") ;; *) rm -rf .venv ;; esac
sound || create
echo "Installing PyTorch, JupyterLab and the rest into .venv (minutes, the first time) ..."
rm -f .venv/ready
.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[test]' 2>.venv/errors.txt || explain
echo "$wanted" >.venv/ready
