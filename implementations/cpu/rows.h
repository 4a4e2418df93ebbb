/* Rows, and sums over them. Included once per type in which sums are formed, as are forward.h,
 * backward.h and parameters.h: REAL is that type, and MASK the signed integer of its width.
 *
 * A row is read as vectors of LANES elements, for every type in memory. The last vector overlaps the
 * one before if necessary, and is masked so that a sum counts no element twice. A row shorter than a
 * vector is computed in a buffer.
 *
 * Every sum is a tree: a lane adds up a few elements (STEPS), then equal numbers of vectors are added
 * to each other, then the lanes. An addend undergoes at most STEPS + log2(N / STEPS) + 1 roundings.
 */

#define NAME(name) JOIN(name, REAL)
#define LANES ((ptrdiff_t)(VECTOR_BYTES / sizeof(REAL)))
#define LEVELS 48 /* of a tree: more than a row can have */

typedef REAL NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef MASK NAME(mask) __attribute__((vector_size(VECTOR_BYTES)));

/* How a row is cut into vectors. */
typedef struct {
    ptrdiff_t hidden; /* elements of a row */
    ptrdiff_t padded; /* rounded up to whole vectors */
    ptrdiff_t whole;  /* elements in whole vectors */
    ptrdiff_t tail;   /* where the last, overlapping vector starts; negative if there is none */
    NAME(mask) left;  /* the lanes of that vector that no other vector contains */
} NAME(cut);

/* The mean, as the sum of two numbers, and 1/sqrt(variance + eps). */
typedef struct {
    REAL high, low, rstd;
} NAME(statistics);

/* A partial sum: each level is empty or the sum of 2^level vectors. */
typedef struct {
    NAME(vector) level[LEVELS];
} NAME(tree);

static NAME(cut) NAME(cut_of)(ptrdiff_t hidden)
{
    NAME(cut) cut = {.hidden = hidden, .whole = hidden / LANES * LANES, .tail = -1};
    cut.padded = padded(hidden, LANES);
    ptrdiff_t rest = hidden - cut.whole;
    int is_short = hidden < LANES; /* its own elements come first in the buffer */
    if (rest)
        cut.tail = is_short ? 0 : hidden - LANES;
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        cut.left[lane] = (is_short ? lane < rest : lane >= LANES - rest) ? -1 : 0;
    return cut;
}

INLINE NAME(vector) NAME(only)(NAME(vector) v, const NAME(mask) *mask)
{
    return mask ? (NAME(vector))((NAME(mask))v & *mask) : v;
}

/* Adds a vector; sums of equally many vectors are added to each other, as in a binary counter. */
INLINE void NAME(grow)(NAME(tree) *tree, size_t grown, NAME(vector) sum)
{
    NAME(vector) *level = tree->level;
    for (; grown & 1; grown >>= 1)
        sum += *level++;
    *level = sum;
}

/* The sum of a tree and a last vector. */
INLINE REAL NAME(felled)(const NAME(tree) *tree, size_t grown, NAME(vector) sum)
{
    for (const NAME(vector) *level = tree->level; grown; grown >>= 1, level++)
        if (grown & 1)
            sum += *level;
    return NAME(lanes_sum)(sum);
}
