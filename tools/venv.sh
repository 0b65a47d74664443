#!/usr/bin/env bash
# tools/venv.sh EXTRAS: make .venv if need be, and install this project into it with the pinned versions of constraints.txt.
# EXTRAS is a list such as `train,viz`. What is already there is reused: .venv/installed says for which pins and extras.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:?which extras?}; here=$PWD/.venv; stamp=.venv/installed
say() { printf '\n== %s\n' "$*"; }

able() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {     # the first Python of 3.11 or later; PYTHON=... decides
    local p
    for p in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do able "$p" && { echo "$p"; return; }; done
    echo "No Python >= 3.11 found${PYTHON:+ (PYTHON=$PYTHON)}. Install one, or name it: make ... PYTHON=/path/to/python3" >&2; return 1
}

fault() {           # says what is wrong with .venv; nothing if it can be used
    able .venv/bin/python || { echo 'its Python does not run, or is older than 3.11'; return; }
    grep -qF -e "$here" -e "$(readlink -f .venv)" .venv/bin/activate 2>/dev/null || { echo 'it was made in another folder'; return; }
    .venv/bin/python -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' || { echo 'it is not a virtual environment'; return; }
}

if [ -e .venv ] || [ -L .venv ]; then
    why=$(fault)
    if [ -n "$why" ]; then
        old=.venv.old.$(date +%Y%m%d-%H%M%S)
        say "The .venv that is here cannot be used: $why. Moving it to $old"
        mv .venv "$old"
    fi
fi
if [ ! -e .venv ]; then
    py=$(find_python); say "Making .venv with $("$py" --version)"
    "$py" -m venv .venv || { rm -rf .venv; echo "\`$py -m venv\` failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
fi
.venv/bin/python -m pip --version >/dev/null 2>&1 || { say 'Adding pip to .venv'; .venv/bin/python -m ensurepip --upgrade; }

key=$(cat constraints.txt pyproject.toml <(.venv/bin/python --version) | sha256sum | cut -c1-16)
had=; [ -f "$stamp" ] && read -r oldkey had < "$stamp" || oldkey=
whole=$(printf '%s\n' ${had//,/ } ${want//,/ } | sort -u | paste -sd,)
if [ "$key" = "$oldkey" ] && [ "$whole" = "$had" ]; then
    say ".venv is up to date [$had]"; exit
fi
quiet=-qq; [ -t 1 ] && quiet=
pip() { .venv/bin/python -m pip install $quiet --disable-pip-version-check --no-input ${PIP_ARGS:-} -c constraints.txt "$@"; }
say "Installing $(grep -o '^torch==.*' constraints.txt) into .venv (the largest part: some minutes)"
pip torch                       # by itself first, so that nothing else chooses its build
say "Installing diverse_rl[$whole] into .venv, versions from constraints.txt"
pip -e ".[$whole]"
echo "$key $whole" > "$stamp"
