#!/usr/bin/env bash
# Installs the project into .venv, builds it, and trains a small model on packed data by SFT, DPO and
# reward modelling, each with flashmask_attention and with a dense mask; see
# tools/quickstart/train.py for what is compared.
#
#   bash tools/quickstart.sh [--stages sft,dpo,rm] [--steps N] [--seq-len N] [--batch-size N]
#                            [--seed N] [--output DIR] [FILE ...]
#
# Needs Python 3.10 to 3.12 (or PYTHON=/its/path) and a C++ compiler (or CXX=name). Network is used
# only for what .venv lacks. Exit codes: 0 all losses equal, 1 they differ, 2 a wrong argument or
# file, 3 something to install first.
set -euo pipefail

readonly EXIT_MISSING=3
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root venv="$root/.venv"
readonly requirements_log=.venv/quickstart_requirements.log
readonly build_log=.venv/quickstart_build.log load_log=.venv/quickstart_load.log
readonly stamp="$venv/quickstart_build"

fail() { # words of the message
    printf 'quickstart: %s\n' "$*" >&2
    exit "$EXIT_MISSING"
}

is_usable() { # interpreter
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
}

find_python() {
    local name
    if [[ -n "${PYTHON:-}" ]]; then
        is_usable "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.10, 3.11 or 3.12"
        printf '%s' "$PYTHON"
        return
    fi
    for name in python3.12 python3.11 python3.10 python3 python; do
        if is_usable "$name"; then
            printf '%s' "$name"
            return
        fi
    done
    fail "Python 3.10, 3.11 or 3.12 was not found; install one, or set PYTHON to its path"
}

version_of() { # interpreter
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

make_venv() { # interpreter
    local own
    if [[ -e "$venv" || -L "$venv" ]]; then
        if is_usable "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
            own="$(version_of "$venv/bin/python")"
            [[ -z "${PYTHON:-}" || "$own" == "$(version_of "$1")" ]] ||
                fail ".venv has Python $own; remove it to use PYTHON=$PYTHON"
            return
        fi
        printf 'quickstart: .venv does not work, making it anew\n'
        rm -rf "$venv"
    fi
    printf 'quickstart: making .venv with %s\n' "$("$1" --version)"
    "$1" -m venv "$venv" >/dev/null 2>&1 ||
        fail "$1 cannot make a virtual environment; install its venv package (e.g. python3-venv)"
}

install_requirements() {
    printf 'quickstart: checking requirements (log: %s)\n' "$requirements_log"
    "$venv/bin/python" -m pip install --disable-pip-version-check \
        -r "$root/tools/quickstart/requirements.txt" >"$root/$requirements_log" 2>&1 ||
        fail "requirements could not be installed; is the network reachable?" \
            "$(last_error "$requirements_log")"
}

# Our build says what is wrong in a line of its own; pip's last error only says that it failed.
last_error() { # log
    grep -oi 'setup_ops\.py: .*' "$root/$1" | tail -n 1 | grep . ||
        grep -i '^error' "$root/$1" | tail -n 1 | grep . || tail -n 1 "$root/$1"
}

checksum_of_sources() {
    (cd "$root" && {
        "$venv/bin/python" --version 2>/dev/null
        find custom_ops setup_ops.py pyproject.toml tools/build_backend.py -type f -print0 |
            LC_ALL=C sort -z | xargs -0 cksum
    } | cksum)
}

is_current() {
    [[ -f "$stamp" && "$(<"$stamp")" == "$(checksum_of_sources)" ]]
}

check_compiler() {
    local compiler="${CXX:-c++}"
    is_current || command -v "${compiler%% *}" >/dev/null 2>&1 ||
        fail "no C++ compiler $compiler; install g++ or set CXX"
}

build() {
    local sum
    if is_current && is_built; then
        return
    fi
    "$venv/bin/python" -c 'import paddle' >"$root/$load_log" 2>&1 ||
        fail "Paddle in .venv does not import ($(tail -n 1 "$root/$load_log"));" \
            "remove .venv and run again"
    printf 'quickstart: building the operator (about a minute; log: %s)\n' "$build_log"
    rm -f "$stamp"
    sum="$(checksum_of_sources)"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-build-isolation -e "$root" \
        >"$root/$build_log" 2>&1 ||
        fail "the operator could not be built, see $build_log: $(last_error "$build_log")"
    is_built ||
        fail "the operator was built but does not load: $(tail -n 1 "$root/$load_log")"
    printf '%s' "$sum" >"$stamp"
}

is_built() {
    (cd / && "$venv/bin/python" -c 'import paddle_flashmask; paddle_flashmask.load_ops()') \
        >"$root/$load_log" 2>&1
}

main() {
    local python
    python="$(find_python)"
    for argument in "$@"; do
        if [[ "$argument" == -h || "$argument" == --help ]]; then
            exec "$python" "$root/tools/quickstart/train.py" --help
        fi
    done
    "$python" "$root/tools/quickstart/train.py" --check-only "$@"
    check_compiler
    make_venv "$python"
    install_requirements
    build
    exec "$venv/bin/python" "$root/tools/quickstart/train.py" "$@"
}

main "$@"
