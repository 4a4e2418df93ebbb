/* Vectors, and writes that bypass the caches. */

#pragma once

#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16 /* SSE2, NEON; elsewhere the compiler emulates it */
#endif

#define INLINE static inline __attribute__((always_inline))

/* Writes to an aligned address, bypassing the caches on x86. */
INLINE void stream(char *to, const void *v, const size_t size)
{
#if defined(__AVX512F__)
    if (size == 64) {
        __m512i all;
        memcpy(&all, v, size);
        _mm512_stream_si512((__m512i *)to, all);
        return;
    }
#endif
#if defined(__AVX__)
    if (size == 32) {
        __m256i all;
        memcpy(&all, v, size);
        _mm256_stream_si256((__m256i *)to, all);
        return;
    }
#endif
#if defined(__SSE2__)
    if (size == 16) {
        __m128i all;
        memcpy(&all, v, size);
        _mm_stream_si128((__m128i *)to, all);
        return;
    }
#endif
    memcpy(to, v, size);
}

/* Makes streamed writes visible to other threads. */
INLINE void end_of_stream(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
