/* Forward of rows, in REAL.
 *
 * One pass forms the mean and the mean square of a row. That is accurate if the mean is small compared
 * to the deviations; otherwise the row is read again and its mean subtracted. y is formed from the
 * deviations from `high`, which is 0 or that first mean, minus `low`, the mean of the deviations.
 */

#define STEPS 4
/* The mean square must be at least this multiple of the square of `low`. With f roundings per sum, `low`
 * has an error of f u sqrt(mean square), which adds f u / 4 to the relative error of the variance: less
 * than the error bound of a tree with STEPS of 8. */
#define NEGLIGIBLE 64

/* A row that is read, its statistics, and where it is written. */
typedef struct {
    const char *x;
    char *y;
    REAL *kept; /* its elements in REAL, once they have been read */
    NAME(statistics) at;
    REAL scale; /* of the elements, if they are read SCALED */
    int streams;
} NAME(row);

/* Sums of deviations, and of their squares. */
typedef struct {
    NAME(vector) deviations, squares;
} NAME(sums);

/* How deviations are formed: from the elements in memory or the kept ones, and relative to 0, to the
 * higher part of the mean, or to both parts of it with scaled elements. */
enum NAME(way) { NAME(KEEP) = 1, NAME(KEPT) = 2, NAME(CENTRED) = 4, NAME(SCALED) = 8 };

INLINE NAME(vector) NAME(deviations)(const NAME(row) *row, ptrdiff_t i, const int type, const int way)
{
    NAME(vector) v = way & NAME(KEPT) ? NAME(get)(row->kept + i) : NAME(load)(row->x, i, type);
    if (way & NAME(KEEP))
        NAME(put)(row->kept + i, v);
    if (way & NAME(SCALED))
        return v * row->scale - row->at.high - row->at.low;
    return way & NAME(CENTRED) ? v - row->at.high : v;
}

/* One pass at element i: adds to the sums of one row, and writes another; each may be null. */
INLINE void NAME(step)(const NAME(row) *read, const int reading, const NAME(row) *written,
                       const int writing, const REAL *weight, const REAL *bias, ptrdiff_t i,
                       const NAME(mask) *mask, NAME(sums) *sums, const int type)
{
    if (read) {
        NAME(vector) v = NAME(only)(NAME(deviations)(read, i, type, reading), mask);
        sums->deviations += v;
        sums->squares += v * v;
    }
    if (written) {
        NAME(statistics) at = written->at;
        NAME(vector) v = NAME(deviations)(written, i, type, writing) * at.rstd;
        if (!(writing & NAME(SCALED)))
            v -= at.low * at.rstd;
        v = v * NAME(get)(weight + i) + NAME(get)(bias + i);
        /* kept elements are written with NO_NAN; forward_rows corrects rows where that is wrong */
        NAME(store)(written->y, i, v, type,
                    (writing & NAME(KEPT) ? NO_NAN : USUAL) | (written->streams ? STREAM : USUAL));
    }
}

INLINE void NAME(add_sums)(NAME(sums) *to, const NAME(sums) *more)
{
    to->deviations += more->deviations;
    to->squares += more->squares;
}

/* A pass over two rows at once: one is written while the other is added up. */
INLINE void NAME(pass)(const NAME(row) *read, const int reading, const NAME(row) *written,
                       const int writing, const REAL *weight, const REAL *bias,
                       const NAME(cut) *cut, REAL *residual, REAL *squares, const int type)
{
    const ptrdiff_t turn = UNROLL * LANES, turned = cut->whole - cut->whole % turn;
    NAME(tree) deviations_tree, squares_tree;
    NAME(sums) all = {0}, rest = {0};
    size_t grown = 0;
    ptrdiff_t i = 0;
    while (i < turned) {
        NAME(sums) part[UNROLL];
        ptrdiff_t end = turned - i > STEPS * turn ? i + STEPS * turn : turned;
        UNROLLED for (int k = 0; k < UNROLL; k++)
            part[k] = (NAME(sums)){0};
        do {
            UNROLLED for (int k = 0; k < UNROLL; k++)
                NAME(step)(read, reading, written, writing, weight, bias, i + k * LANES, 0,
                           &part[k], type);
            i += turn;
        } while (i < end);
        UNROLLED for (int half = UNROLL / 2; half; half /= 2)
            UNROLLED for (int k = 0; k < half; k++)
                NAME(add_sums)(&part[k], &part[k + half]);
        all = part[0];
        if (i == turned)
            break;
        if (read) {
            NAME(grow)(&deviations_tree, grown, all.deviations);
            NAME(grow)(&squares_tree, grown, all.squares);
        }
        grown++;
    }
    for (; i < cut->whole; i += LANES)
        NAME(step)(read, reading, written, writing, weight, bias, i, 0, &rest, type);
    if (cut->tail >= 0) /* writes some elements a second time */
        NAME(step)(read, reading, written, writing, weight, bias, cut->tail, &cut->left, &rest, type);
    if (read) {
        NAME(add_sums)(&all, &rest);
        *residual = NAME(felled)(&deviations_tree, grown, all.deviations);
        *squares = NAME(felled)(&squares_tree, grown, all.squares);
    }
}

/* A power of two that scales the elements, and their squares, into the range of REAL. */
static REAL NAME(scale_of)(const char *x, const NAME(cut) *cut, double eps, int type)
{
    REAL largest = 0;
    for (ptrdiff_t i = 0; i < cut->whole || cut->tail >= 0; i += LANES) {
        int is_tail = i >= cut->whole;
        NAME(vector) v = NAME(load)(x, is_tail ? cut->tail : i, type);
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            REAL size = v[lane] < 0 ? -v[lane] : v[lane];
            largest = size > largest ? size : largest; /* leaves NaN out */
        }
        if (is_tail)
            break;
    }
    int exponent;
    frexp(largest, &exponent);
    if (!(largest <= NAME(largest)) || (exponent < 0 && eps > 0))
        return 1; /* infinite; or so small that only eps matters */
    int most = NAME(exponent) - 2;
    return (REAL)ldexp(1, exponent > most ? -most : exponent < -most ? most : -exponent);
}

/* A third pass, over scaled elements, for a row with a residual mean after two passes, or with squares
 * outside the range of REAL. */
static OUTLINE void NAME(careful)(NAME(row) *row, const REAL *weight, const REAL *bias,
                                  const NAME(cut) *cut, double eps, int type)
{
    const REAL inverse = 1 / (REAL)cut->hidden, scale = NAME(scale_of)(row->x, cut, eps, type);
    REAL residual, squares;
    row->scale = scale;
    row->at = (NAME(statistics)){0};
    for (int pass = 0; pass < 3; pass++) {
        NAME(pass)(row, NAME(SCALED), 0, 0, 0, 0, cut, &residual, &squares, type);
        residual *= inverse;
        /* exactly high + low (Knuth, TAOCP 2, section 4.2.2, theorem B), the larger part in high */
        REAL high = row->at.high, more = row->at.low + residual;
        row->at.high = high + more;
        REAL of_more = row->at.high - high;
        row->at.low = (high - (row->at.high - of_more)) + (more - of_more);
    }
    double variance = (double)squares * inverse - (double)residual * residual;
    row->at.rstd = (REAL)(1 / sqrt(variance + eps * scale * scale));
    NAME(pass)(0, 0, row, NAME(SCALED), weight, bias, cut, 0, 0, type);
    row->at = (NAME(statistics)){row->at.high / scale, row->at.low / scale, row->at.rstd * scale};
}

/* Space for a row shorter than a vector, so that a whole vector can be read and written. */
typedef struct {
    char x[VECTOR_BYTES], y[VECTOR_BYTES];
} NAME(buffer);

INLINE NAME(row) NAME(row_of)(const struct forward *call, ptrdiff_t i, NAME(buffer) *buffer,
                              REAL *kept, const int type)
{
    const ptrdiff_t size = size_of(type), bytes = call->hidden * size;
    NAME(row) row = {
        .x = call->x + i * call->x_stride * size,
        .y = call->y + i * bytes,
        .kept = kept,
        .streams = streams(call->y, call->rows, bytes),
    };
    if (call->hidden < LANES) {
        memset(buffer->x, 0, VECTOR_BYTES);
        row.x = memcpy(buffer->x, row.x, bytes);
        row.y = buffer->y;
    }
    return row;
}

/* Completes the statistics of a row from its sums; returns whether they are accurate enough. */
INLINE int NAME(complete)(NAME(row) *row, REAL residual, REAL squares, REAL inverse, REAL eps)
{
    REAL low = residual * inverse, square = squares * inverse;
    row->at.low = low;
    row->at.rstd = 1 / NAME(root)(square - low * low + eps);
    /* written so that NaN fails */
    return NEGLIGIBLE * low * low <= square && square <= NAME(largest) &&
           square + eps >= NAME(smallest);
}

/* Forward of several rows; each is written while the next is added up. */
INLINE void NAME(forward_rows)(const struct forward *call, const REAL *weight, const REAL *bias,
                               const NAME(cut) *cut, int is_finite, ptrdiff_t first,
                               ptrdiff_t last, const int type, const int keeps)
{
    const REAL inverse = 1 / (REAL)cut->hidden, eps = (REAL)call->eps;
    const ptrdiff_t bytes = cut->hidden * size_of(type);
    const int reading = keeps ? NAME(KEEP) : 0, again = keeps ? NAME(KEPT) : 0;
    const int centred = again | NAME(CENTRED);
    ALIGNED REAL kept[2][keeps ? NEAR_BYTES / sizeof(REAL) : 1];
    NAME(buffer) buffers[2];
    REAL residual, squares;
    NAME(row) row, next = NAME(row_of)(call, first, &buffers[0], kept[0], type);
    NAME(pass)(&next, reading, 0, 0, 0, 0, cut, &residual, &squares, type);
    for (ptrdiff_t i = first; i < last; i++) {
        const int turn = (i + 1 - first) % 2;
        row = next;
        int is_good = NAME(complete)(&row, residual, squares, inverse, eps);
        if (!is_good) {
            row.at.high = row.at.low;
            NAME(pass)(&row, centred, 0, 0, 0, 0, cut, &residual, &squares, type);
            is_good = NAME(complete)(&row, residual, squares, inverse, eps);
        }
        if (i + 1 == last) {
            NAME(pass)(0, 0, &row, centred, weight, bias, cut, 0, 0, type);
        } else {
            next = NAME(row_of)(call, i + 1, &buffers[turn], kept[turn], type);
            if (row.at.high == 0)
                NAME(pass)(&next, reading, &row, again, weight, bias, cut, &residual, &squares, type);
            else
                NAME(pass)(&next, reading, &row, centred, weight, bias, cut, &residual, &squares, type);
        }
        if (!is_good || !is_finite) /* NaN may have been written with NO_NAN */
            NAME(careful)(&row, weight, bias, cut, call->eps, type);
        if (call->statistics)
            ((NAME(statistics) *)call->statistics)[i] = row.at;
        if (cut->hidden < LANES)
            memcpy(call->y + i * bytes, row.y, bytes);
    }
}

INLINE void NAME(forward_part)(const struct forward *call, const REAL *weight, const REAL *bias,
                               int is_finite, ptrdiff_t first, ptrdiff_t last, const int type)
{
    const NAME(cut) cut = NAME(cut_of)(call->hidden);
    const int is_narrow = size_of(type) < (ptrdiff_t)sizeof(REAL);
    if (is_narrow && cut.hidden >= LANES && cut.hidden * sizeof(REAL) <= NEAR_BYTES)
        NAME(forward_rows)(call, weight, bias, &cut, is_finite, first, last, type, 1);
    else
        NAME(forward_rows)(call, weight, bias, &cut, 1, first, last, type, 0);
}

#undef STEPS
#undef NEGLIGIBLE
