#pragma once
// Whether a sanitizer is at work: then everything takes longer, freed memory is held back, and malloc is not glibc's.

namespace replay::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace replay::test
