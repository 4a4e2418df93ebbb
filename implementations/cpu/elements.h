/* Conversion between elements in memory and vectors: of double for float64, else of float. */

#include <cstdint>

#include "kernels.h"
#include "stream.h"

typedef float vector_float __attribute__((vector_size(VECTOR_BYTES)));
typedef double vector_double __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t mask_float __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t mask_double __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t bits_float __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t bits_double __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef float floats __attribute__((vector_size(VECTOR_BYTES / 2)));

/* Vectors of the type in which sums are formed, and masks of their lanes. */
template <class Real> struct VectorsOf;
template <> struct VectorsOf<float> {
    using Vector = vector_float;
    using Mask = mask_float;
};
template <> struct VectorsOf<double> {
    using Vector = vector_double;
    using Mask = mask_double;
};
template <class Real> using Vector = typename VectorsOf<Real>::Vector;
template <class Real> using Mask = typename VectorsOf<Real>::Mask;
template <class Real> constexpr ptrdiff_t LANES = VECTOR_BYTES / sizeof(Real);

INLINE ptrdiff_t size_of(int type)
{
    return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2;
}

/* `yes` in the lanes that are set in `mask`, `no` in the others. */
INLINE bits_float chosen(bits_float mask, bits_float yes, bits_float no)
{
    return (mask & yes) | (~mask & no);
}

/* Intrinsics where gcc 12 generates more instructions than necessary. */
#if VECTOR_BYTES == 64
INLINE bits_float widened(halves h)
{
    return (bits_float)_mm512_cvtepu16_epi32((__m256i)h);
}
INLINE halves narrowed(bits_float bits)
{
    return (halves)_mm512_cvtepi32_epi16((__m512i)bits);
}
INLINE bits_float with_nan(bits_float bits, vector_float v)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (bits_float)_mm512_mask_mov_epi32((__m512i)bits, is_nan, _mm512_set1_epi32(0x7fc00000));
}
INLINE bits_float with_one_where_odd(bits_float to, bits_float bits)
{
    __mmask16 is_odd = _mm512_test_epi32_mask((__m512i)bits, _mm512_set1_epi32(0x10000));
    return (bits_float)_mm512_mask_add_epi32((__m512i)to, is_odd, (__m512i)to, _mm512_set1_epi32(1));
}
#else
INLINE bits_float widened(halves h)
{
    return __builtin_convertvector(h, bits_float);
}
INLINE halves narrowed(bits_float bits)
{
#if defined(__AVX2__)
    __m256i all = (__m256i)bits;
    return (halves)_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
#else
    return __builtin_convertvector(bits, halves);
#endif
}
INLINE bits_float with_nan(bits_float bits, vector_float v)
{
    return chosen((bits_float)(v != v), 0 * bits + 0x7fc00000, bits);
}
INLINE bits_float with_one_where_odd(bits_float to, bits_float bits)
{
    return to + (bits >> 16 & 1);
}
#endif

/* To nearest, ties to even: adds half a unit less one, and one more if the last digit is odd. The
 * digits of bfloat16 are the upper half of each lane. */
INLINE bits_float rounded_to_bfloat16(vector_float v, int may_be_nan)
{
    bits_float bits = (bits_float)v;
    bits_float rounded = with_one_where_odd(bits + 0x7fff, bits);
    return may_be_nan ? with_nan(rounded, v) : rounded;
}

#if defined(__F16C__) && VECTOR_BYTES == 64
INLINE vector_float widened_float16(halves h)
{
    return (vector_float)_mm512_cvtph_ps((__m256i)h);
}
INLINE halves rounded_to_float16(vector_float v)
{
    return (halves)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__F16C__) && VECTOR_BYTES == 32
INLINE vector_float widened_float16(halves h)
{
    return (vector_float)_mm256_cvtph_ps((__m128i)h);
}
INLINE halves rounded_to_float16(vector_float v)
{
    return (halves)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}
#else
INLINE vector_float widened_float16(halves h)
{
    bits_float bits = widened(h);
    bits_float size = (bits & 0x7fff) << 13;
    /* the product converts the exponent from float16 to float, also for subnormal numbers */
    bits_float finite = (bits_float)((vector_float)size * 0x1p112f);
    bits_float is_finite = (bits_float)((bits & 0x7c00) != 0x7c00);
    return (vector_float)((bits & 0x8000) << 16 | chosen(is_finite, finite, size | 0x7f800000));
}
INLINE halves rounded_to_float16(vector_float v)
{
    bits_float bits = (bits_float)v, size = bits & 0x7fffffff;
    /* normal: the exponent's offset goes from 127 to 15, and 13 digits go to nearest, ties to even */
    bits_float normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    /* subnormal: next to 0.5, a float has exactly the digits of float16 */
    bits_float subnormal = (bits_float)((vector_float)size + 0.5f) - 0x3f000000;
    bits_float found = chosen((bits_float)(size < 0x38800000), subnormal, normal);
    found = chosen((bits_float)(size >= 0x47800000), 0 * size + 0x7c00, found);
    found = chosen((bits_float)(size > 0x7f800000), 0 * size + 0x7e00, found);
    return narrowed((bits >> 16 & 0x8000) | found);
}
#endif

template <class Real> INLINE Vector<Real> get(const Real *from)
{
    Vector<Real> v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void put(float *to, vector_float v)
{
    memcpy(to, &v, sizeof v);
}

INLINE void put(double *to, vector_double v)
{
    memcpy(to, &v, sizeof v);
}

/* The vector that starts with element i. */
template <class Real> INLINE Vector<Real> load(const char *from, ptrdiff_t i, int type);

template <> inline __attribute__((always_inline)) vector_float load<float>(const char *from, ptrdiff_t i, int type)
{
    if (type == FLOAT32)
        return get((const float *)from + i);
    halves h;
    memcpy(&h, from + 2 * i, sizeof h);
    if (type == FLOAT16)
        return widened_float16(h);
    return (vector_float)(widened(h) << 16);
}

/* From float64, or from parameters in float32; no other type is computed in double. */
template <> inline __attribute__((always_inline)) vector_double load<double>(const char *from, ptrdiff_t i, int type)
{
    if (type == FLOAT64)
        return get((const double *)from + i);
    floats f;
    memcpy(&f, (const float *)from + i, sizeof f);
    return __builtin_convertvector(f, vector_double);
}

/* How elements are stored. */
enum {
    USUAL = 0,
    NO_NAN = 1,  /* no NaN: rounding to bfloat16 is faster */
    STREAM = 2, /* bypassing the caches */
};

/* Rounds to nearest, ties to even. */
INLINE void store(char *to, ptrdiff_t i, vector_float v, int type, int how)
{
    to += i * size_of(type);
    if (type == FLOAT32) {
        if (how & STREAM)
            stream(to, &v, sizeof v);
        else
            memcpy(to, &v, sizeof v);
        return;
    }
    halves h = type == FLOAT16 ? rounded_to_float16(v) : narrowed(rounded_to_bfloat16(v, !(how & NO_NAN)) >> 16);
    if (how & STREAM)
        stream(to, &h, sizeof h);
    else
        memcpy(to, &h, sizeof h);
}

INLINE void store(char *to, ptrdiff_t i, vector_double v, int type, int how)
{
    to += i * size_of(type);
    if (type == FLOAT64) {
        if (how & STREAM)
            stream(to, &v, sizeof v);
        else
            memcpy(to, &v, sizeof v);
        return;
    }
    floats f = __builtin_convertvector(v, floats);
    memcpy(to, &f, sizeof f);
}

/* --- vectors that are converted together -------------------------------------------------------- */

/* bfloat16 is converted two vectors at a time: first the elements of even index, then the others. Each is
 * half of a lane, so that one shift or mask converts a vector. */
INLINE int together(int type)
{
    return type == BFLOAT16 ? 2 : 1;
}

/* The vectors that start with element i. */
template <class Real> INLINE void load_together(Vector<Real> *v, const char *from, ptrdiff_t i, int type)
{
    v[0] = load<Real>(from, i, type);
}

template <> inline __attribute__((always_inline)) void load_together<float>(vector_float *v, const char *from, ptrdiff_t i, int type)
{
    if (type != BFLOAT16) {
        v[0] = load<float>(from, i, type);
        return;
    }
    bits_float both;
    memcpy(&both, from + 2 * i, sizeof both);
    v[0] = (vector_float)(both << 16);
    v[1] = (vector_float)(both & 0xffff0000);
}

INLINE void store_together(char *to, ptrdiff_t i, const vector_double *v, int type, int how)
{
    store(to, i, v[0], type, how);
}

INLINE void store_together(char *to, ptrdiff_t i, const vector_float *v, int type, int how)
{
    if (type != BFLOAT16) {
        store(to, i, v[0], type, how);
        return;
    }
    const bits_float even = rounded_to_bfloat16(v[0], !(how & NO_NAN)) >> 16;
    const bits_float both = even | (rounded_to_bfloat16(v[1], !(how & NO_NAN)) & 0xffff0000);
    if (how & STREAM)
        stream(to + 2 * i, &both, sizeof both);
    else
        memcpy(to + 2 * i, &both, sizeof both);
}

/* Keeps a vector in a register: gcc may otherwise load it from memory for each use. */
template <class V> INLINE V held(V v)
{
#if defined(__SSE2__)
    asm("" : "+v"(v));
#endif
    return v;
}
