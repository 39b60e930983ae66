#!/usr/bin/env bash
# Build the kernels as a shared library without Paddle (the C door, custom_ops/capi).
#
#   bash tools/build_capi.sh [OUTPUT]        default: build/libflashmask_c.so
#
# FLASHMASK_ARCHS lists architectures, default "80 90a"; MAX_JOBS compilers at once; NVCC names nvcc.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output="${1:-build/libflashmask_c.so}"
objects="build/capi"
archs="${FLASHMASK_ARCHS:-80 90a}"
export NVCC="${NVCC:-nvcc}" COMMON="-std=c++17 -O3 -Icustom_ops"
gencode=""
for arch in $archs; do gencode+=" -gencode arch=compute_$arch,code=sm_$arch"; done
export gencode objects
rm -rf "$objects"
mkdir -p "$objects" "$(dirname "$output")"

compile() { # source
    local object
    object="$objects/$(tr / _ <<<"$1").o"
    case "$1" in
    *.cu) "$NVCC" -c "$1" -o "$object" $COMMON $gencode -Xcompiler -fPIC,-fvisibility=hidden ;;
    *) "${CXX:-g++}" -c "$1" -o "$object" $COMMON -fPIC -fvisibility=hidden -ffp-contract=off ;;
    esac
}
export -f compile
find custom_ops/core custom_ops/capi custom_ops/kernels \( -name '*.cc' -o -name '*.cu' \) |
    sort -r | xargs -P "${MAX_JOBS:-$(nproc)}" -I{} bash -c 'set -e; compile {}'
"$NVCC" -shared -o "$output" "$objects"/*.o -cudart static -Xlinker --exclude-libs,ALL
echo "built $output for $archs"
