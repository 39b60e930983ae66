#pragma once

// C functions of the library for Python's ctypes: what the kernels did, and switches for tests.
// They need no Paddle and may be called from any thread.

#include <cstdint>

#if defined(__GNUC__)
#define FLASHMASK_EXPORT __attribute__((visibility("default")))
#else
#define FLASHMASK_EXPORT
#endif

extern "C" {

// counts: forward skipped, partial, full, then the same of the backward.
FLASHMASK_EXPORT void flashmask_tile_counts(int64_t counts[6]);
FLASHMASK_EXPORT void flashmask_reset_tile_counts();

// 0: compute every tile and mask it cell by cell; 1: skip dead tiles (the default).
FLASHMASK_EXPORT void flashmask_set_tile_skipping(int32_t on);

// 1: gradients of the Paddle operator have the same bits in every run; 0: on a GPU they need not
// (the default). Calls through flashmask_c.h say it in the call.
FLASHMASK_EXPORT void flashmask_set_deterministic(int32_t on);

// "auto", "portable", "avx2", "avx512" or "avx512_bf16". Returns null, or a message that lives
// until the next call from the same thread.
FLASHMASK_EXPORT const char* flashmask_set_cpu_isa(const char* name);
FLASHMASK_EXPORT const char* flashmask_cpu_isa();

// Names the only GPU kernels that may be used, "sm80" or "sm90a"; "auto": the best. Returns null,
// or a message that lives until the next call from the same thread.
FLASHMASK_EXPORT const char* flashmask_set_gpu_kernels(const char* name);

// Lets GPU kernels choose their tiles as if a block had so many bytes of shared memory at most, as
// it has on smaller devices (101376, 166912); INT32_MAX: what there is.
FLASHMASK_EXPORT void flashmask_limit_shared_memory(int32_t bytes);

// Lets GPU kernels work on fewer heads together, and begin long key blocks where others are at
// work, as if so many bytes of the L2 were theirs at most (0: one key head at a time); INT64_MAX:
// as usual. Ordered sums of sm80 do not ask.
FLASHMASK_EXPORT void flashmask_limit_section_bytes(int64_t bytes);

// Lets a backward on a GPU share key blocks among work items until there are so many; 0: never;
// negative: the default. Changes how much workspace a call wants.
FLASHMASK_EXPORT void flashmask_want_backward_items(int32_t items);

// One line per registered kernel; lives until the next call from the same thread.
FLASHMASK_EXPORT const char* flashmask_describe_kernels();

}  // extern "C"
