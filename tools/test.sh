#!/usr/bin/env bash
# Build the plugin, run every check, then the tests: one command on a fresh machine.
#
#   bash tools/test.sh [arguments for pytest]
#
# The virtual environment is .venv, or $FLASHMASK_VENV; $PYTHON makes it (default: python3). Caches
# stay in it. Only the library of the editable build is written into the checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${FLASHMASK_VENV:-$PWD/.venv}"
python="$venv/bin/python"
requirements=tools/requirements-test.txt
export RUFF_CACHE_DIR="$venv/cache/ruff" MYPY_CACHE_DIR="$venv/cache/mypy"
export PYTHONPYCACHEPREFIX="$venv/cache/bytecode" HYPOTHESIS_STORAGE_DIRECTORY="$venv/cache/hypothesis"
export PIP_DISABLE_PIP_VERSION_CHECK=1

step() {
  local name="$1" start=$SECONDS
  shift
  echo "== $name"
  "$@" || {
    echo "tools/test.sh: FAILED at: $name" >&2
    exit 1
  }
  echo "   ($((SECONDS - start)) s)"
}

prepare() {
  [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$venv" || return 1
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "Python 3.10 or newer is needed; set PYTHON" >&2
    return 1
  }
  local wanted
  wanted="$(cat "$requirements" tools/quickstart/requirements.txt)"
  [ "$wanted" = "$(cat "$venv/installed.txt" 2>/dev/null)" ] && return 0
  "$python" -m pip install --quiet --requirement "$requirements" || return 1
  printf '%s' "$wanted" >"$venv/installed.txt"
}

build() {
  "$python" -W ignore -m pip install --quiet --no-build-isolation --no-deps --editable .
}

cpp_format() {
  git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' |
    xargs --no-run-if-empty "$venv/bin/clang-format" --dry-run -Werror
}

step "virtual environment" prepare
step "build" build
step "ruff check" "$venv/bin/ruff" check .
step "ruff format" "$venv/bin/ruff" format --check .
step "mypy" "$venv/bin/mypy"
step "clang-format" cpp_format
step "layers" "$python" tools/check_layers.py
step "warnings and clang-tidy" "$python" tools/check_warnings.py --tidy
step "spills of the CUDA kernels" "$python" tools/check_kernels.py
echo "== pytest"
exec "$python" -m pytest -o cache_dir="$venv/cache/pytest" -m "not gpu and not sm90a and not slow and not paddleformers" "$@"
