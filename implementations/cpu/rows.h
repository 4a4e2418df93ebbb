/* Rows, and sums over them. Real is the type in which sums are formed.
 *
 * A row is read in steps of one vector, or of two that are converted together. The last step overlaps
 * the one before if necessary, and is masked so that a sum counts no element twice. A row shorter than
 * a step is computed in a buffer.
 *
 * Every sum is a tree: a lane adds up a few elements, then equal numbers of vectors are added to each
 * other, then the lanes. With n elements per lane, an addend undergoes at most n + log2(N / n) + 1
 * roundings.
 */

constexpr int LEVELS = 48; /* of a tree: more than a row can have */

/* How a row is cut into steps. */
template <class Real> struct Cut {
    ptrdiff_t hidden;   /* elements of a row */
    ptrdiff_t step;     /* elements of a step */
    ptrdiff_t padded;   /* elements of a row, rounded up to whole steps */
    ptrdiff_t whole;    /* elements in whole steps */
    ptrdiff_t tail;     /* where the last, overlapping step starts; negative if there is none */
    Mask<Real> left[2]; /* the lanes of its vectors that no other step contains */
};

/* The mean, as the sum of two numbers, and 1/sqrt(variance + eps). */
template <class Real> struct Statistics {
    Real high, low, rstd;
};

/* A partial sum: each level is empty or the sum of 2^level vectors. */
template <class Real> struct Tree {
    Vector<Real> level[LEVELS];
};

template <class Real> static Cut<Real> cut_of(ptrdiff_t hidden, const int vectors)
{
    const ptrdiff_t step = vectors * LANES<Real>;
    Cut<Real> cut = {.hidden = hidden, .step = step, .whole = hidden / step * step, .tail = -1};
    cut.padded = (hidden + step - 1) / step * step;
    ptrdiff_t rest = hidden - cut.whole;
    int is_short = hidden < step; /* its own elements come first in the buffer */
    if (rest)
        cut.tail = is_short ? 0 : hidden - step;
    for (ptrdiff_t i = 0; i < step; i++)
        cut.left[i % vectors][i / vectors] = (is_short ? i < rest : i >= step - rest) ? -1 : 0;
    return cut;
}

template <class Real> INLINE Vector<Real> only(Vector<Real> v, const Mask<Real> *mask)
{
    return mask ? (Vector<Real>)((Mask<Real>)v & *mask) : v;
}

/* Indices that rotate a vector of 2, 4, 8 or 16 lanes by `n`. */
#define FROM_2(n) (n) & 1, ((n) + 1) & 1
#define FROM_4(n) (n) & 3, ((n) + 1) & 3, ((n) + 2) & 3, ((n) + 3) & 3
#define FROM_8(n) \
    (n) & 7, ((n) + 1) & 7, ((n) + 2) & 7, ((n) + 3) & 7, \
    ((n) + 4) & 7, ((n) + 5) & 7, ((n) + 6) & 7, ((n) + 7) & 7
#define FROM_16(n) \
    (n) & 15, ((n) + 1) & 15, ((n) + 2) & 15, ((n) + 3) & 15, \
    ((n) + 4) & 15, ((n) + 5) & 15, ((n) + 6) & 15, ((n) + 7) & 15, \
    ((n) + 8) & 15, ((n) + 9) & 15, ((n) + 10) & 15, ((n) + 11) & 15, \
    ((n) + 12) & 15, ((n) + 13) & 15, ((n) + 14) & 15, ((n) + 15) & 15
#if defined(__clang__)
#define TURNED(v, bits, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define TURNED(v, bits, ...) __builtin_shuffle(v, bits{__VA_ARGS__})
#endif

/* The sum of all lanes, as a tree. */
INLINE float lanes_sum(vector_float v)
{
#if VECTOR_BYTES == 64
    v += TURNED(v, bits_float, FROM_16(8));
    v += TURNED(v, bits_float, FROM_16(4));
    v += TURNED(v, bits_float, FROM_16(2));
    v += TURNED(v, bits_float, FROM_16(1));
#elif VECTOR_BYTES == 32
    v += TURNED(v, bits_float, FROM_8(4));
    v += TURNED(v, bits_float, FROM_8(2));
    v += TURNED(v, bits_float, FROM_8(1));
#else
    v += TURNED(v, bits_float, FROM_4(2));
    v += TURNED(v, bits_float, FROM_4(1));
#endif
    return v[0];
}

INLINE double lanes_sum(vector_double v)
{
#if VECTOR_BYTES == 64
    v += TURNED(v, bits_double, FROM_8(4));
    v += TURNED(v, bits_double, FROM_8(2));
    v += TURNED(v, bits_double, FROM_8(1));
#elif VECTOR_BYTES == 32
    v += TURNED(v, bits_double, FROM_4(2));
    v += TURNED(v, bits_double, FROM_4(1));
#else
    v += TURNED(v, bits_double, FROM_2(1));
#endif
    return v[0];
}

/* Adds a vector; sums of equally many vectors are added to each other, as in a binary counter. */
template <class Real> INLINE void grow(Tree<Real> *tree, size_t grown, Vector<Real> sum)
{
    Vector<Real> *level = tree->level;
    for (; grown & 1; grown >>= 1)
        sum += *level++;
    *level = sum;
}

/* The sum of a tree and a last vector. */
template <class Real> INLINE Real felled(const Tree<Real> *tree, size_t grown, Vector<Real> sum)
{
    for (const Vector<Real> *level = tree->level; grown; grown >>= 1, level++)
        if (grown & 1)
            sum += *level;
    return lanes_sum(sum);
}
