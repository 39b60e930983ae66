#!/usr/bin/env bash
# Run small GPU tests under each tool of compute-sanitizer; fails if one reports anything.
#
#   bash tools/sanitize.sh [TOOL ...]        default: memcheck racecheck initcheck synccheck
#
# Needs what tools/gpu_test.sh needs, and the library of the C door built (FLASHMASK_CAPI).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # an allocation for each tensor, so that its end is watched
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
failed=0
for tool in "$@"; do
  echo "== $tool"
  options=(--tool "$tool" --error-exitcode 9 --print-limit 20)
  # initcheck must see who wrote the inputs; the others look at our kernels only.
  [ "$tool" = initcheck ] || options+=(--kernel-name kernel_substring=flashmask)
  compute-sanitizer "${options[@]}" "${PYTHON:-python3}" -m pytest tests/gpu/test_c_door.py \
    tests/gpu/test_deterministic.py tests/gpu/test_few_rows.py -k fresh_memory -m gpu -q --no-header -p no:cacheprovider -W ignore || failed=1
done
exit "$failed"
