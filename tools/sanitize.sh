#!/usr/bin/env bash
# Run small GPU tests under each tool of compute-sanitizer; fails if one reports anything.
#
#   bash tools/sanitize.sh [TOOL ...]        default: memcheck racecheck initcheck synccheck
#
# Needs what tools/gpu_test.sh needs, and the library of the C door built (FLASHMASK_CAPI). For
# racecheck another library is built, in which each lane of a warp arrives at barriers (see
# custom_ops/kernels/sm90a/warp_arrivals.h); FLASHMASK_RACECHECK_CAPI names one that is there already,
# or that of FLASHMASK_CAPI to see what racecheck says of the kernels as they are.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # an allocation for each tensor, so that its end is watched
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck

racecheck_library() { # sets FLASHMASK_CAPI
  if [ -z "${FLASHMASK_RACECHECK_CAPI:-}" ]; then
    FLASHMASK_RACECHECK_CAPI="$PWD/build/libflashmask_c_racecheck.so"
    NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} -DFLASHMASK_EVERY_LANE_ARRIVES" \
      bash tools/build_capi.sh "$FLASHMASK_RACECHECK_CAPI" || return 1
  fi
  export FLASHMASK_CAPI="$FLASHMASK_RACECHECK_CAPI"
}

check() { # tool
  local options=(--tool "$1" --error-exitcode 9 --print-limit 20)
  # initcheck must see who wrote the inputs; the others look at our kernels only. It does not see what
  # the copy engine writes, as shares of key blocks are.
  [ "$1" != initcheck ] || export FLASHMASK_TEST_SHARING=off
  [ "$1" = initcheck ] || options+=(--kernel-name kernel_substring=flashmask)
  [ "$1" != racecheck ] || racecheck_library || return 1
  compute-sanitizer "${options[@]}" "${PYTHON:-python3}" -m pytest tests/gpu/test_c_door.py \
    tests/gpu/test_deterministic.py tests/gpu/test_few_rows.py -k fresh_memory -m gpu -q --no-header -p no:cacheprovider -W ignore
}

failed=0
for tool in "$@"; do
  echo "== $tool"
  (check "$tool") || failed=1 # in a shell of its own: racecheck's library is for it alone
done
exit "$failed"
