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
readonly MAX_THREADS=8 # the model is too small for more
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root venv="$root/.venv"
readonly log="$venv/quickstart.log" stamp="$venv/quickstart_build"

fail() {
    printf 'quickstart: %s\n' "$1" >&2
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

make_venv() { # interpreter
    if [[ -e "$venv" || -L "$venv" ]]; then
        if is_usable "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
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
    printf 'quickstart: installing requirements (log: .venv/quickstart.log)\n'
    "$venv/bin/python" -m pip install --disable-pip-version-check \
        -r "$root/tools/quickstart/requirements.txt" >"$log" 2>&1 ||
        fail "requirements could not be installed; is the network reachable? $(last_error)"
}

last_error() {
    grep -i '^error' "$log" | tail -n 1 || tail -n 1 "$log"
}

checksum_of_sources() {
    (cd "$root" && {
        "$venv/bin/python" --version
        find custom_ops setup_ops.py pyproject.toml tools/build_backend.py -type f -print0 |
            LC_ALL=C sort -z | xargs -0 cksum
    } | cksum)
}

build() {
    local sum compiler="${CXX:-c++}"
    sum="$(checksum_of_sources)"
    if [[ -f "$stamp" && "$(<"$stamp")" == "$sum" ]] && is_built; then
        return
    fi
    command -v "${compiler%% *}" >/dev/null 2>&1 ||
        fail "no C++ compiler $compiler; install g++ or set CXX"
    printf 'quickstart: building the operator (about a minute)\n'
    rm -f "$stamp"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-build-isolation -e "$root" \
        >"$log" 2>&1 ||
        fail "the operator could not be built, see .venv/quickstart.log: $(last_error)"
    is_built || fail "the operator was built but does not load: $(tail -n 1 "$log")"
    printf '%s' "$sum" >"$stamp"
}

is_built() {
    (cd / && "$venv/bin/python" -c 'import paddle_flashmask; paddle_flashmask.load_ops()') \
        >"$log" 2>&1
}

# Paddle on a core that others use waits at every barrier: two threads on two busy cores took twice
# the time of one. So only idle cores count.
idle_cores() {
    local load idle
    read -r load _ </proc/loadavg
    idle=$(($(nproc) - ${load%.*}))
    ((idle >= 1)) || idle=1
    ((idle <= MAX_THREADS)) || idle=$MAX_THREADS
    printf '%s' "$idle"
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
    make_venv "$python"
    install_requirements
    build
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(idle_cores)}"
    exec "$venv/bin/python" -W 'ignore:No ccache found' "$root/tools/quickstart/train.py" "$@"
}

main "$@"
