# Sourced by the scripts beside it: a virtual environment of their own with the operator built in it.
#
# The caller sets `script`, its name in messages, and `venv_name`, the folder of the environment in
# the checkout. Needs Python 3.10 to 3.12 (or PYTHON=/its/path) and a C++ compiler (or CXX=name).
# Logs lie in the environment. What is missing ends the caller with code 3 and one line.
# shellcheck shell=bash

readonly EXIT_MISSING=3
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2154
readonly root venv="$root/$venv_name"
readonly requirements_log="$venv_name/${script}_requirements.log"
readonly build_log="$venv_name/${script}_build.log" load_log="$venv_name/${script}_load.log"
readonly stamp="$venv/${script}_build"

fail() { # words of the message
    printf '%s: %s\n' "$script" "$*" >&2
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
                fail "$venv_name has Python $own; remove it to use PYTHON=$PYTHON"
            return
        fi
        printf '%s: %s does not work, making it anew\n' "$script" "$venv_name"
        rm -rf "$venv"
    fi
    printf '%s: making %s with %s\n' "$script" "$venv_name" "$("$1" --version)"
    "$1" -m venv "$venv" >/dev/null 2>&1 ||
        fail "$1 cannot make a virtual environment; install its venv package (e.g. python3-venv)"
}

install_requirements() { # file
    printf '%s: checking requirements (log: %s)\n' "$script" "$requirements_log"
    "$venv/bin/python" -m pip install --disable-pip-version-check -r "$1" \
        >"$root/$requirements_log" 2>&1 ||
        fail "requirements could not be installed; is the network reachable?" \
            "$(last_error "$requirements_log")"
}

# Our build says what is wrong in a line of its own; pip's last error only says that it failed.
last_error() { # log
    grep -oi 'setup_ops\.py: .*' "$root/$1" | tail -n 1 | grep . ||
        grep -i '^error' "$root/$1" | tail -n 1 | grep . || tail -n 1 "$root/$1"
}

checksum_of_sources() { # extra
    (cd "$root" && {
        "$venv/bin/python" --version 2>/dev/null
        printf '%s\n' "${1:-}"
        find custom_ops setup_ops.py pyproject.toml tools/build_backend.py -type f -print0 |
            LC_ALL=C sort -z | xargs -0 cksum
    } | cksum)
}

is_current() { # extra
    [[ -f "$stamp" && "$(<"$stamp")" == "$(checksum_of_sources "${1:-}")" ]]
}

check_compiler() { # extra
    local compiler="${CXX:-c++}"
    is_current "${1:-}" || command -v "${compiler%% *}" >/dev/null 2>&1 ||
        fail "no C++ compiler $compiler; install g++ or set CXX"
}

# Installs the checkout, and what pyproject.toml lists under the extra if one is named.
build() { # extra
    local sum extra="${1:-}"
    if is_current "$extra" && is_built; then
        return
    fi
    "$venv/bin/python" -c 'import paddle' >"$root/$load_log" 2>&1 ||
        fail "Paddle in $venv_name does not import ($(tail -n 1 "$root/$load_log"));" \
            "remove $venv_name and run again"
    printf '%s: building the operator (about a minute; log: %s)\n' "$script" "$build_log"
    rm -f "$stamp"
    sum="$(checksum_of_sources "$extra")"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-build-isolation \
        -e "$root${extra:+[$extra]}" >"$root/$build_log" 2>&1 ||
        fail "the operator could not be built, see $build_log: $(last_error "$build_log")"
    is_built ||
        fail "the operator was built but does not load: $(tail -n 1 "$root/$load_log")"
    printf '%s' "$sum" >"$stamp"
}

is_built() {
    (cd / && "$venv/bin/python" -c 'import paddle_flashmask; paddle_flashmask.load_ops()') \
        >"$root/$load_log" 2>&1
}
