#!/usr/bin/env bash
# Build the kernels and run the GPU tests: through the C door, and through the Paddle operator where
# paddlepaddle-gpu and the built plugin are there.
#
#   bash tools/gpu_test.sh [arguments for pytest]
#
# $PYTHON (default: python3) has torch, pytest, pytest-timeout and hypothesis. FLASHMASK_CAPI names a
# library of tools/build_capi.sh to take instead of building one. JOBS: processes that share the tests
# (default: 6, fewer on a small machine); tools/gpu_tests.py says more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${FLASHMASK_CAPI:-}" ]; then
  export FLASHMASK_CAPI="$PWD/build/libflashmask_c.so"
  bash tools/build_capi.sh "$FLASHMASK_CAPI"
fi
exec "${PYTHON:-python3}" tools/gpu_tests.py "$@"
