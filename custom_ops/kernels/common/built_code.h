#pragma once

// What the kernels are compiled for, as the build says: sm_80+sm_90a+compute_90.

#define FLASHMASK_TEXT(words) #words
#define FLASHMASK_TEXT_OF(macro) FLASHMASK_TEXT(macro)

namespace flashmask {

#ifdef FLASHMASK_CODE
constexpr const char* kBuiltCode = FLASHMASK_TEXT_OF(FLASHMASK_CODE);
#else
constexpr const char* kBuiltCode = nullptr;
#endif

}  // namespace flashmask

#undef FLASHMASK_TEXT_OF
#undef FLASHMASK_TEXT
