/* LayerNorm of rows. Included once for each type in which sums are formed: REAL, with MASK the signed
 * integer of its width. A row is read as vectors of LANES elements, whatever their type in memory.
 * What is left at its end is a vector that overlaps the one before, masked where a sum would count
 * an element twice; a row shorter than a vector is computed in a buffer.
 *
 * Every sum is a tree: a lane adds up STEPS elements, then equal numbers of vectors are added to each
 * other, then the lanes. So an addend meets at most STEPS + log2(N / STEPS) + 1 roundings.
 */

#define NAME(name) JOIN(name, REAL)
#define LANES ((ptrdiff_t)(VECTOR_BYTES / sizeof(REAL)))
#define STEPS 8   /* ours: as many roundings as the harness allows a tree beyond log2(N) */
#define LEVELS 48 /* of a tree: more than a row can have */
#define NEGLIGIBLE 256 /* ours: the residual mean then adds 1/16 of itself to the variance's error */

typedef REAL NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef MASK NAME(mask) __attribute__((vector_size(VECTOR_BYTES)));

/* How a row is cut into vectors. */
typedef struct {
    ptrdiff_t hidden; /* elements of a row */
    ptrdiff_t padded; /* those in vectors, the last of which need not be full */
    ptrdiff_t whole;  /* those in whole vectors */
    ptrdiff_t tail;   /* where the last, overlapping vector starts; negative if there is none */
    NAME(mask) left;  /* the lanes of that vector which no other holds */
} NAME(cut);

/* The mean, as the sum of two numbers, and 1/sqrt(variance + eps). */
typedef struct {
    REAL high, low, rstd;
} NAME(statistics);

/* A sum in the making: at each level nothing, or the sum of 2^level vectors. */
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

/* Adds a vector to those that stand for as many as it does: a binary counter. */
INLINE void NAME(grow)(NAME(tree) *tree, size_t grown, NAME(vector) sum)
{
    NAME(vector) *level = tree->level;
    for (; grown & 1; grown >>= 1)
        sum += *level++;
    *level = sum;
}

/* The sum of all that a tree has grown by, and of a last vector. */
INLINE REAL NAME(felled)(const NAME(tree) *tree, size_t grown, NAME(vector) sum)
{
    for (const NAME(vector) *level = tree->level; grown; grown >>= 1, level++)
        if (grown & 1)
            sum += *level;
    return NAME(lanes_sum)(sum);
}

/* --- forward ------------------------------------------------------------------------------------ */

/* A row that is read, what is known of it, and where it is written. */
typedef struct {
    const char *x;
    char *y;
    REAL *kept; /* its elements in REAL, in a pass that keeps them */
    NAME(statistics) at;
    REAL scale; /* of the elements, in a careful pass */
    int streams;
} NAME(row);

/* What a pass adds up: the elements of one row, the deviations of another from the higher part of
 * its mean, from both in a careful pass, and their squares. */
typedef struct {
    NAME(vector) elements, deviations, squares;
} NAME(sums);

/* How a pass goes about it: plainly; where elements are narrower than REAL, keeping them for the next
 * pass, and heeding no NaN; or scaling them, and taking both parts of the mean off. */
enum NAME(way) { NAME(PLAIN), NAME(KEEPING), NAME(CAREFUL) };

INLINE NAME(vector) NAME(deviations)(const NAME(row) *row, ptrdiff_t i, int type, int way)
{
    if (way == NAME(KEEPING))
        return NAME(get)(row->kept + i) - row->at.high;
    NAME(vector) v = NAME(load)(row->x, i, type);
    return way == NAME(CAREFUL) ? v * row->scale - row->at.high - row->at.low : v - row->at.high;
}

/* What a pass does at element i: adds up to two rows, and writes a third; each may be missing. */
INLINE void NAME(step)(const NAME(row) *summed, const NAME(row) *centred, const NAME(row) *written,
                       const REAL *weight, const REAL *bias, ptrdiff_t i, const NAME(mask) *mask,
                       NAME(sums) *sums, const int type, const int way)
{
    if (summed) {
        NAME(vector) v = NAME(load)(summed->x, i, type);
        if (way == NAME(KEEPING))
            NAME(put)(summed->kept + i, v);
        sums->elements += NAME(only)(v, mask);
    }
    if (centred) {
        NAME(vector) v = NAME(only)(NAME(deviations)(centred, i, type, way), mask);
        sums->deviations += v;
        sums->squares += v * v;
    }
    if (written) {
        NAME(statistics) at = written->at;
        NAME(vector) v = NAME(deviations)(written, i, type, way) * at.rstd;
        if (way != NAME(CAREFUL))
            v -= at.low * at.rstd;
        v = v * NAME(get)(weight + i) + NAME(get)(bias + i);
        NAME(store)(written->y, i, v, type,
                    (way == NAME(KEEPING) ? NO_NAN : USUAL) | (written->streams ? STREAM : USUAL));
    }
}

INLINE void NAME(add_sums)(NAME(sums) *to, const NAME(sums) *more)
{
    to->elements += more->elements;
    to->deviations += more->deviations;
    to->squares += more->squares;
}

/* A pass over up to three rows at once, so that none waits for the end of another's sums. */
INLINE void NAME(pass)(const NAME(row) *summed, const NAME(row) *centred, const NAME(row) *written,
                       const REAL *weight, const REAL *bias, const NAME(cut) *cut, REAL *sum,
                       REAL *residual, REAL *squares, const int type, const int way)
{
    const ptrdiff_t turn = UNROLL * LANES, turned = cut->whole - cut->whole % turn;
    NAME(tree) elements_tree, deviations_tree, squares_tree;
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
                NAME(step)(summed, centred, written, weight, bias, i + k * LANES, 0, &part[k],
                           type, way);
            i += turn;
        } while (i < end);
        UNROLLED for (int half = UNROLL / 2; half; half /= 2)
            UNROLLED for (int k = 0; k < half; k++)
                NAME(add_sums)(&part[k], &part[k + half]);
        all = part[0];
        if (i == turned)
            break;
        if (summed)
            NAME(grow)(&elements_tree, grown, all.elements);
        if (centred) {
            NAME(grow)(&deviations_tree, grown, all.deviations);
            NAME(grow)(&squares_tree, grown, all.squares);
        }
        grown++;
    }
    for (; i < cut->whole; i += LANES)
        NAME(step)(summed, centred, written, weight, bias, i, 0, &rest, type, way);
    if (cut->tail >= 0) /* writes some elements a second time */
        NAME(step)(summed, centred, written, weight, bias, cut->tail, &cut->left, &rest, type,
                   way);
    NAME(add_sums)(&all, &rest);
    if (summed)
        *sum = NAME(felled)(&elements_tree, grown, all.elements);
    if (centred) {
        *residual = NAME(felled)(&deviations_tree, grown, all.deviations);
        *squares = NAME(felled)(&squares_tree, grown, all.squares);
    }
}

/* A power of two that takes the elements, and their squares, into the range of REAL. */
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
        return 1; /* infinite; or so small that eps alone counts */
    int most = NAME(exponent) - 2;
    return (REAL)ldexp(1, exponent > most ? -most : exponent < -most ? most : -exponent);
}

/* The row whose mean is so far above its deviations that the first two passes leave some of it in
 * them, or whose squares leave the range of REAL: a third pass, over scaled elements. */
static OUTLINE void NAME(careful)(NAME(row) *row, const REAL *weight, const REAL *bias,
                                  const NAME(cut) *cut, double eps, int type)
{
    const REAL inverse = 1 / (REAL)cut->hidden, scale = NAME(scale_of)(row->x, cut, eps, type);
    REAL residual, squares;
    row->scale = scale;
    row->at = (NAME(statistics)){0};
    for (int pass = 0; pass < 3; pass++) {
        NAME(pass)(0, row, 0, 0, 0, cut, 0, &residual, &squares, type, NAME(CAREFUL));
        residual *= inverse;
        /* exactly high + low (Knuth, TAOCP 2, section 4.2.2, theorem B), the larger part in high */
        REAL high = row->at.high, more = row->at.low + residual;
        row->at.high = high + more;
        REAL of_more = row->at.high - high;
        row->at.low = (high - (row->at.high - of_more)) + (more - of_more);
    }
    double variance = (double)squares * inverse - (double)residual * residual;
    row->at.rstd = (REAL)(1 / sqrt(variance + eps * scale * scale));
    NAME(pass)(0, 0, row, weight, bias, cut, 0, 0, 0, type, NAME(CAREFUL));
    row->at = (NAME(statistics)){row->at.high / scale, row->at.low / scale, row->at.rstd * scale};
}

/* A row shorter than a vector lies here, so that a vector can be read and written. */
typedef struct {
    char x[VECTOR_BYTES], y[VECTOR_BYTES];
} NAME(buffer);

INLINE NAME(row) NAME(row_of)(const struct forward *call, ptrdiff_t i, NAME(buffer) *buffer,
                              const int type)
{
    const ptrdiff_t size = size_of(type), bytes = call->hidden * size;
    NAME(row) row = {
        .x = call->x + i * call->x_stride * size,
        .y = call->y + i * bytes,
        .streams = streams(call->y, call->rows, bytes),
    };
    if (buffer && call->hidden < LANES) {
        memset(buffer->x, 0, VECTOR_BYTES);
        row.x = memcpy(buffer->x, row.x, bytes);
        row.y = buffer->y;
    }
    return row;
}

/* Completes the statistics of a row; returns whether they are good enough. */
INLINE int NAME(complete)(NAME(row) *row, REAL residual, REAL squares, REAL inverse, REAL eps)
{
    REAL low = residual * inverse, square = squares * inverse;
    row->at.low = low;
    row->at.rstd = 1 / NAME(root)(square - low * low + eps);
    /* written so that NaN is not good enough */
    return NEGLIGIBLE * low * low <= square && square <= NAME(largest) &&
           square + eps >= NAME(smallest);
}

/* What is left to do for row i once it is written. */
INLINE void NAME(leave)(const struct forward *call, NAME(row) *row, ptrdiff_t i, int is_good,
                        const REAL *weight, const REAL *bias, const NAME(cut) *cut, const int type)
{
    const ptrdiff_t bytes = call->hidden * size_of(type);
    if (!is_good)
        NAME(careful)(row, weight, bias, cut, call->eps, type);
    if (call->statistics)
        ((NAME(statistics) *)call->statistics)[i] = row->at;
    if (call->hidden < LANES)
        memcpy(call->y + i * bytes, row->y, bytes);
}

/* Long rows, and few: one is written while the next is added up. */
INLINE void NAME(forward_far)(const struct forward *call, const REAL *weight, const REAL *bias,
                              const NAME(cut) *cut, ptrdiff_t first, ptrdiff_t last,
                              const int type)
{
    const REAL inverse = 1 / (REAL)cut->hidden, eps = (REAL)call->eps;
    REAL sum, residual, squares;
    NAME(buffer) buffers[2];
    NAME(row) row, next = NAME(row_of)(call, first, &buffers[0], type);
    NAME(pass)(&next, 0, 0, weight, bias, cut, &sum, 0, 0, type, NAME(PLAIN));
    for (ptrdiff_t i = first; i < last; i++) {
        row = next;
        row.at.high = sum * inverse;
        NAME(pass)(0, &row, 0, weight, bias, cut, 0, &residual, &squares, type, NAME(PLAIN));
        int is_good = NAME(complete)(&row, residual, squares, inverse, eps);
        if (i + 1 == last) {
            NAME(pass)(0, 0, &row, weight, bias, cut, 0, 0, 0, type, NAME(PLAIN));
        } else {
            next = NAME(row_of)(call, i + 1, &buffers[(i + 1 - first) % 2], type);
            NAME(pass)(&next, 0, &row, weight, bias, cut, &sum, 0, 0, type, NAME(PLAIN));
        }
        NAME(leave)(call, &row, i, is_good, weight, bias, cut, type);
    }
}

/* Rows of which the nearest cache holds several: one is written while the next one's deviations are
 * added up and the elements of the one after that, so that none waits for the end of a sum. Each is a
 * row behind the other; the first and the last turns do some for nothing. */
INLINE void NAME(forward_near)(const struct forward *call, const REAL *weight, const REAL *bias,
                               const NAME(cut) *cut, int is_finite, ptrdiff_t first,
                               ptrdiff_t last, const int type)
{
    const REAL inverse = 1 / (REAL)cut->hidden, eps = (REAL)call->eps;
    const int way = size_of(type) < (ptrdiff_t)sizeof(REAL) ? NAME(KEEPING) : NAME(PLAIN);
    ALIGNED REAL kept[3][way == NAME(KEEPING) ? NEAR_BYTES / sizeof(REAL) : 1];
    REAL sum, residual, squares;
    NAME(row) written = NAME(row_of)(call, first, 0, type), centred;
    written.kept = kept[1];
    centred = written;
    int is_good = 1;
    for (ptrdiff_t i = first; i < last + 2; i++) {
        NAME(row) summed = NAME(row_of)(call, i < last ? i : last - 1, 0, type);
        summed.kept = kept[(i - first) % 3];
        NAME(pass)(&summed, &centred, &written, weight, bias, cut, &sum, &residual, &squares, type,
                   way);
        if (i >= first + 2)
            NAME(leave)(call, &written, i - 2, is_good, weight, bias, cut, type);
        is_good = NAME(complete)(&centred, residual, squares, inverse, eps) && is_finite;
        summed.at.high = sum * inverse;
        written = centred;
        centred = summed;
    }
}

INLINE void NAME(forward_part)(const struct forward *call, const REAL *weight, const REAL *bias,
                               int is_finite, ptrdiff_t first, ptrdiff_t last, const int type)
{
    const NAME(cut) cut = NAME(cut_of)(call->hidden);
    if (last - first < FEW_ROWS || cut.hidden < LANES || cut.hidden * sizeof(REAL) > NEAR_BYTES)
        NAME(forward_far)(call, weight, bias, &cut, first, last, type);
    else
        NAME(forward_near)(call, weight, bias, &cut, is_finite, first, last, type);
}

/* --- backward ----------------------------------------------------------------------------------- */

/* Rows of which gradients are taken together, so that sums over rows are read and written once for
 * all of them. */
typedef struct {
    const char *x[ROWS_OF_GRADIENT], *dy[ROWS_OF_GRADIENT];
    char *dx[ROWS_OF_GRADIENT];
    NAME(statistics) at[ROWS_OF_GRADIENT];
    REAL *dweight, *dbias; /* of all rows so far; null where not wanted */
    int streams;
} NAME(gradients);

/* At element i of `count` rows: adds up dy weight and its product with the normalised x in each, and
 * dy and its product with that over all of them. */
INLINE void NAME(gradient_sums)(const NAME(gradients) *rows, const REAL *weight, ptrdiff_t i,
                                const NAME(mask) *mask, NAME(vector) *plain, NAME(vector) *along,
                                const int type, const int count)
{
    const NAME(vector) w = NAME(get)(weight + i);
    NAME(vector) product[ROWS_OF_GRADIENT], dy[ROWS_OF_GRADIENT];
    UNROLLED for (int row = 0; row < count; row++) {
        const NAME(statistics) at = rows->at[row];
        NAME(vector) v = NAME(load)(rows->x[row], i, type) - at.high;
        dy[row] = NAME(only)(NAME(load)(rows->dy[row], i, type), mask);
        /* beyond the row's end 0 - mean may be infinite once it is normalised, and 0 times that NaN */
        product[row] = NAME(only)(dy[row] * (v * at.rstd - at.low * at.rstd), mask);
        plain[row] += dy[row] * w;
        along[row] += product[row] * w;
    }
    if (!rows->dweight)
        return;
    UNROLLED for (int half = count / 2; half; half /= 2)
        UNROLLED for (int row = 0; row < half; row++) {
            product[row] += product[row + half];
            dy[row] += dy[row + half];
        }
    NAME(put)(rows->dweight + i, NAME(get)(rows->dweight + i) + product[0]);
    NAME(put)(rows->dbias + i, NAME(get)(rows->dbias + i) + dy[0]);
}

/* With n the normalised x and g = dy weight: dx = rstd (g - mean g - n mean(g n)). */
INLINE void NAME(gradient_write)(const NAME(gradients) *rows, const REAL *weight, ptrdiff_t i,
                                 const REAL *mean, const REAL *along, const int type,
                                 const int count)
{
    const NAME(vector) w = NAME(get)(weight + i);
    UNROLLED for (int row = 0; row < count; row++) {
        /* n is (x - high) rstd - low rstd: what is of the row is put together first */
        const NAME(statistics) at = rows->at[row];
        const REAL slope = at.rstd * along[row] * at.rstd;
        const REAL rest = at.rstd * (mean[row] - at.low * at.rstd * along[row]);
        NAME(vector) v = NAME(load)(rows->x[row], i, type) - at.high;
        NAME(vector) g = NAME(load)(rows->dy[row], i, type) * w;
        NAME(store)(rows->dx[row], i, g * at.rstd - (v * slope + rest), type, rows->streams);
    }
}

INLINE void NAME(backward_some)(const NAME(gradients) *rows, const REAL *weight,
                                const NAME(cut) *cut, const int type, const int count)
{
    const REAL inverse = 1 / (REAL)cut->hidden;
    NAME(tree) plain_tree[ROWS_OF_GRADIENT], along_tree[ROWS_OF_GRADIENT];
    NAME(vector) plain[ROWS_OF_GRADIENT], along[ROWS_OF_GRADIENT];
    REAL mean[ROWS_OF_GRADIENT], mean_along[ROWS_OF_GRADIENT];
    size_t grown = 0;
    for (ptrdiff_t i = 0;;) {
        const ptrdiff_t end = cut->whole - i > STEPS * LANES ? i + STEPS * LANES : cut->whole;
        UNROLLED for (int row = 0; row < count; row++)
            plain[row] = along[row] = (NAME(vector)){0};
        for (; i < end; i += LANES)
            NAME(gradient_sums)(rows, weight, i, 0, plain, along, type, count);
        if (i == cut->whole)
            break;
        UNROLLED for (int row = 0; row < count; row++) {
            NAME(grow)(&plain_tree[row], grown, plain[row]);
            NAME(grow)(&along_tree[row], grown, along[row]);
        }
        grown++;
    }
    if (cut->tail >= 0)
        NAME(gradient_sums)(rows, weight, cut->tail, &cut->left, plain, along, type, count);
    if (!rows->dx[0])
        return;
    UNROLLED for (int row = 0; row < count; row++) {
        mean[row] = NAME(felled)(&plain_tree[row], grown, plain[row]) * inverse;
        mean_along[row] = NAME(felled)(&along_tree[row], grown, along[row]) * inverse;
    }
    for (ptrdiff_t i = 0; i < cut->whole; i += LANES)
        NAME(gradient_write)(rows, weight, i, mean, mean_along, type, count);
    if (cut->tail >= 0)
        NAME(gradient_write)(rows, weight, cut->tail, mean, mean_along, type, count);
}

/* Backward of `count` rows from `first` on. */
INLINE void NAME(backward_rows)(const struct backward *call, const REAL *weight,
                                const NAME(cut) *cut, REAL *sums, ptrdiff_t first, const int type,
                                const int count)
{
    const ptrdiff_t size = size_of(type), bytes = cut->hidden * size;
    char buffer[3][ROWS_OF_GRADIENT][VECTOR_BYTES];
    NAME(gradients) rows = {
        .dweight = sums,
        .dbias = sums ? sums + cut->padded : 0,
        .streams = call->dx && streams(call->dx, call->rows, bytes) ? STREAM : USUAL,
    };
    UNROLLED for (int row = 0; row < count; row++) {
        rows.at[row] = ((const NAME(statistics) *)call->statistics)[first + row];
        rows.x[row] = call->x + (first + row) * call->x_stride * size;
        rows.dy[row] = call->dy + (first + row) * call->dy_stride * size;
        rows.dx[row] = call->dx ? call->dx + (first + row) * bytes : 0;
        if (cut->hidden < LANES) {
            memset(buffer[0][row], 0, VECTOR_BYTES);
            memset(buffer[1][row], 0, VECTOR_BYTES);
            rows.x[row] = memcpy(buffer[0][row], rows.x[row], bytes);
            rows.dy[row] = memcpy(buffer[1][row], rows.dy[row], bytes);
            rows.dx[row] = call->dx ? buffer[2][row] : 0;
        }
    }
    NAME(backward_some)(&rows, weight, cut, type, count);
    for (int row = 0; call->dx && cut->hidden < LANES && row < count; row++)
        memcpy(call->dx + (first + row) * bytes, rows.dx[row], bytes);
}

/* Backward of the rows of a part, and what they add to dweight and dbias: `total` holds both, one
 * after the other, as does `block`, which is for use here. */
INLINE void NAME(backward_part)(const struct backward *call, const REAL *weight, REAL *total,
                                REAL *block, ptrdiff_t first, ptrdiff_t last, const int type)
{
    const NAME(cut) cut = NAME(cut_of)(call->hidden);
    for (ptrdiff_t i = first; i < last;) {
        const ptrdiff_t end = last - i > STEPS * ROWS_OF_GRADIENT ? i + STEPS * ROWS_OF_GRADIENT : last;
        REAL *sums = i == first ? total : block;
        if (sums)
            memset(sums, 0, 2 * cut.padded * sizeof *sums);
        for (; i + ROWS_OF_GRADIENT <= end; i += ROWS_OF_GRADIENT)
            NAME(backward_rows)(call, weight, &cut, sums, i, type, ROWS_OF_GRADIENT);
        for (; i < end; i++)
            NAME(backward_rows)(call, weight, &cut, sums, i, type, 1);
        for (ptrdiff_t j = 0; sums != total && j < 2 * cut.padded; j++)
            total[j] += sums[j];
    }
}

/* --- parameters --------------------------------------------------------------------------------- */

/* A parameter in REAL, `missing` for each element if there is none, in whole vectors: where it is,
 * or in `room`. */
static const REAL *NAME(parameter)(const char *from, int type, ptrdiff_t hidden, REAL missing,
                                   REAL *room)
{
    if (from && size_of(type) == (ptrdiff_t)sizeof(REAL) && hidden >= LANES)
        return (const REAL *)from;
    for (ptrdiff_t i = 0; i < hidden; i += LANES) {
        char last[VECTOR_BYTES] = {0};
        NAME(vector) v = (NAME(vector)){0} + missing;
        if (from && i + LANES <= hidden)
            v = NAME(load)(from, i, type);
        else if (from)
            v = NAME(load)(memcpy(last, from + i * size_of(type), (hidden - i) * size_of(type)), 0, type);
        NAME(put)(room + i, v);
    }
    return room;
}

/* Rounds sums to a parameter's type. */
static void NAME(store_all)(char *to, const REAL *sums, ptrdiff_t hidden, int type)
{
    for (ptrdiff_t i = 0; i < hidden; i += LANES) {
        char last[VECTOR_BYTES];
        NAME(vector) v = NAME(get)(sums + i);
        if (i + LANES <= hidden) {
            NAME(store)(to, i, v, type, USUAL);
        } else {
            NAME(store)(last, 0, v, type, USUAL);
            memcpy(to + i * size_of(type), last, (hidden - i) * size_of(type));
        }
    }
}

/* Whether no element of a parameter is infinite or NaN: the product with 0 is then 0. */
INLINE int NAME(is_finite)(const REAL *parameter, ptrdiff_t hidden)
{
    NAME(vector) sum = {0};
    ptrdiff_t i = 0;
    for (; i + LANES <= hidden; i += LANES)
        sum += NAME(get)(parameter + i) * 0;
    for (; i < hidden; i++)
        sum[0] += parameter[i] * 0;
    return NAME(lanes_sum)(sum) == 0;
}

/* Adds the sums of all parts to each other, as a tree, and rounds them to the parameters' types. */
static void NAME(finish)(const struct backward *call, REAL *sums, ptrdiff_t parts)
{
    const ptrdiff_t columns = padded(call->hidden, LANES), width = 2 * columns;
    for (ptrdiff_t step = 1; step < parts; step *= 2)
        for (ptrdiff_t part = 0; part + step < parts; part += 2 * step)
            for (ptrdiff_t i = 0; i < width; i++)
                sums[part * width + i] += sums[(part + step) * width + i];
    if (call->dweight)
        NAME(store_all)(call->dweight, sums, call->hidden, call->weight_type);
    if (call->dbias)
        NAME(store_all)(call->dbias, sums + columns, call->hidden, call->bias_type);
}
