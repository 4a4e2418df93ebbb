/* Elements in memory and the vectors they are computed with: float for all types but float64. */

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16 /* SSE2, NEON, and what compilers make of it elsewhere */
#endif

#define INLINE static inline __attribute__((always_inline))

/* Types of elements, numbered as c_recentred.py numbers them. */
enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };

typedef float vector_float __attribute__((vector_size(VECTOR_BYTES)));
typedef double vector_double __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t bits_float __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef float floats __attribute__((vector_size(VECTOR_BYTES / 2)));

INLINE ptrdiff_t size_of(int type)
{
    return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2;
}

/* Where the lanes of `mask` are set, `yes`, elsewhere `no`. */
INLINE bits_float chosen(bits_float mask, bits_float yes, bits_float no)
{
    return (mask & yes) | (~mask & no);
}

#if VECTOR_BYTES == 64 /* written out: gcc 12 makes several instructions of each of the two */
INLINE bits_float widened(halves h)
{
    return (bits_float)_mm512_cvtepu16_epi32((__m256i)h);
}
INLINE halves narrowed(bits_float bits)
{
    return (halves)_mm512_cvtepi32_epi16((__m512i)bits);
}
#else
INLINE bits_float widened(halves h)
{
    return __builtin_convertvector(h, bits_float);
}
INLINE halves narrowed(bits_float bits)
{
    return __builtin_convertvector(bits, halves);
}
#endif

INLINE halves rounded_to_bfloat16(vector_float v)
{
    bits_float bits = (bits_float)v;
    /* to nearest, ties to even: half a unit less one, and one more where the last digit is odd */
    bits_float rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    bits_float is_nan = (bits_float)(v != v);
    return narrowed(chosen(is_nan, bits >> 16 | 0x40, rounded));
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
    /* the exponent is that of float16 yet; a product makes it float's, of subnormal numbers too */
    bits_float finite = (bits_float)((vector_float)size * 0x1p112f);
    bits_float is_finite = (bits_float)((bits & 0x7c00) != 0x7c00);
    return (vector_float)((bits & 0x8000) << 16 | chosen(is_finite, finite, size | 0x7f800000));
}
INLINE halves rounded_to_float16(vector_float v)
{
    bits_float bits = (bits_float)v, size = bits & 0x7fffffff;
    /* normal: the exponent's offset goes from 127 to 15, and 13 digits go to nearest, ties to even */
    bits_float normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    /* subnormal: beside 0.5 a float has just the digits that float16 has there */
    bits_float subnormal = (bits_float)((vector_float)size + 0.5f) - 0x3f000000;
    bits_float found = chosen((bits_float)(size < 0x38800000), subnormal, normal);
    found = chosen((bits_float)(size >= 0x47800000), 0 * size + 0x7c00, found);
    found = chosen((bits_float)(size > 0x7f800000), 0 * size + 0x7e00, found);
    return narrowed((bits >> 16 & 0x8000) | found);
}
#endif

INLINE vector_float get_float(const float *from)
{
    vector_float v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE vector_double get_double(const double *from)
{
    vector_double v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void put_float(float *to, vector_float v)
{
    memcpy(to, &v, sizeof v);
}

INLINE void put_double(double *to, vector_double v)
{
    memcpy(to, &v, sizeof v);
}

/* The vector that starts with element i. */
INLINE vector_float load_float(const char *from, ptrdiff_t i, int type)
{
    if (type == FLOAT32)
        return get_float((const float *)from + i);
    halves h;
    memcpy(&h, from + 2 * i, sizeof h);
    if (type == FLOAT16)
        return widened_float16(h);
    return (vector_float)(widened(h) << 16);
}

/* From float64, and from parameters in float32: nothing else is computed with in double. */
INLINE vector_double load_double(const char *from, ptrdiff_t i, int type)
{
    if (type == FLOAT64)
        return get_double((const double *)from + i);
    floats f;
    memcpy(&f, (const float *)from + i, sizeof f);
    return __builtin_convertvector(f, vector_double);
}

INLINE void store_float(char *to, ptrdiff_t i, vector_float v, int type)
{
    if (type == FLOAT32) {
        put_float((float *)to + i, v);
        return;
    }
    halves h = type == FLOAT16 ? rounded_to_float16(v) : rounded_to_bfloat16(v);
    memcpy(to + 2 * i, &h, sizeof h);
}

INLINE void store_double(char *to, ptrdiff_t i, vector_double v, int type)
{
    if (type == FLOAT64) {
        put_double((double *)to + i, v);
        return;
    }
    floats f = __builtin_convertvector(v, floats);
    memcpy((float *)to + i, &f, sizeof f);
}
