#!/usr/bin/env bash
# Build the kernels as a shared library without Paddle (the C door, custom_ops/capi).
#
#   bash tools/build_capi.sh [OUTPUT]        default: build/libflashmask_c.so
#
# CUDA_HOME, FLASHMASK_ARCHS and CXX as in tools/cuda_build.py; MAX_JOBS: compilers at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output="${1:-build/libflashmask_c.so}"
objects="build/capi"
nvcc="$(python3 tools/cuda_build.py)"
export nvcc objects
rm -rf "$objects"
mkdir -p "$objects" "$(dirname "$output")"

compile() { # source
    local object
    object="$objects/$(tr / _ <<<"$1").o"
    case "$1" in
    *.cu) $nvcc -c "$1" -o "$object" ;;
    *) ${CXX:-c++} -c "$1" -o "$object" -std=c++17 -O3 -Icustom_ops -fPIC -fvisibility=hidden \
        -ffp-contract=off ;;
    esac
}
export -f compile
find custom_ops/core custom_ops/capi custom_ops/kernels \( -name '*.cc' -o -name '*.cu' \) |
    sort -r | xargs -P "${MAX_JOBS:-$(nproc)}" -I{} bash -c 'set -e; compile {}'
$nvcc -shared -o "$output" "$objects"/*.o -cudart static -Xlinker --exclude-libs,ALL
echo "built $output: $nvcc"
