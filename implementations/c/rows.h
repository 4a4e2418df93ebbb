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

INLINE REAL NAME(lanes_sum)(NAME(vector) v)
{
    REAL lane[LANES];
    memcpy(lane, &v, sizeof v);
    UNROLLED for (ptrdiff_t half = LANES / 2; half; half /= 2)
        UNROLLED for (ptrdiff_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
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

/* What a pass over rows adds up. */
enum NAME(pass) {
    NAME(ELEMENTS),
    NAME(DEVIATIONS), /* from the higher part of the mean, and their squares */
    NAME(CAREFUL),    /* of scaled elements from both parts of the mean, and their squares */
};

/* Rows that are read, what is known of them, and where they are written. */
typedef struct {
    const char *x[ROWS_AT_ONCE];
    char *y[ROWS_AT_ONCE];
    const REAL *weight, *bias;
    NAME(statistics) at[ROWS_AT_ONCE];
    REAL scale; /* of the elements, in a careful pass */
} NAME(rows);

INLINE void NAME(add)(const NAME(rows) *rows, int row, ptrdiff_t j, const NAME(mask) *mask,
                      NAME(vector) *sum, NAME(vector) *squares, const int type, const int pass)
{
    NAME(vector) v = NAME(load)(rows->x[row], j, type);
    if (pass == NAME(CAREFUL))
        v *= rows->scale;
    if (pass != NAME(ELEMENTS))
        v -= rows->at[row].high;
    if (pass == NAME(CAREFUL))
        v -= rows->at[row].low;
    v = NAME(only)(v, mask);
    *sum += v;
    if (pass != NAME(ELEMENTS))
        *squares += v * v;
}

INLINE void NAME(write)(const NAME(rows) *rows, ptrdiff_t j, const int type, const int count,
                        const int pass)
{
    NAME(vector) w = NAME(get)(rows->weight + j), b = NAME(get)(rows->bias + j);
    UNROLLED for (int row = 0; row < count; row++) {
        NAME(statistics) at = rows->at[row];
        NAME(vector) v = NAME(load)(rows->x[row], j, type);
        if (pass == NAME(CAREFUL))
            v *= rows->scale;
        v = (v - at.high) * at.rstd - at.low * at.rstd;
        NAME(store)(rows->y[row], j, v * w + b, type);
    }
}

/* Sums over elements `first` to `last` of `count` rows, one or more turns of UNROLL vectors. Where there is
 * `written`, those of other rows are written meanwhile: neither waits for memory that the other does
 * not use. */
INLINE void NAME(turns)(const NAME(rows) *rows, const NAME(rows) *written, ptrdiff_t first,
                        ptrdiff_t last, NAME(vector) *sum, NAME(vector) *squares, const int type,
                        const int count, const int pass)
{
    NAME(vector) s[ROWS_AT_ONCE][UNROLL], q[ROWS_AT_ONCE][UNROLL];
    UNROLLED for (int k = 0; k < UNROLL; k++)
        UNROLLED for (int row = 0; row < count; row++)
            s[row][k] = q[row][k] = (NAME(vector)){0};
    do {
        UNROLLED for (int k = 0; k < UNROLL; k++) {
            UNROLLED for (int row = 0; row < count; row++)
                NAME(add)(rows, row, first + k * LANES, 0, &s[row][k], &q[row][k], type, pass);
            if (written)
                NAME(write)(written, first + k * LANES, type, count, NAME(DEVIATIONS));
        }
        first += UNROLL * LANES;
    } while (first < last);
    UNROLLED for (int half = UNROLL / 2; half; half /= 2)
        UNROLLED for (int k = 0; k < half; k++)
            UNROLLED for (int row = 0; row < count; row++) {
                s[row][k] += s[row][k + half];
                q[row][k] += q[row][k + half];
            }
    UNROLLED for (int row = 0; row < count; row++) {
        sum[row] = s[row][0];
        squares[row] = q[row][0];
    }
}

/* Sums over `count` rows, while others are written. */
INLINE void NAME(sums)(const NAME(rows) *rows, const NAME(rows) *written, const NAME(cut) *cut,
                       REAL *sum, REAL *squares, const int type, const int count, const int pass)
{
    const ptrdiff_t turn = UNROLL * LANES, turned = cut->whole - cut->whole % turn;
    NAME(tree) sum_tree[ROWS_AT_ONCE], squares_tree[ROWS_AT_ONCE];
    NAME(vector) s[ROWS_AT_ONCE], q[ROWS_AT_ONCE], rest[ROWS_AT_ONCE], rest_squares[ROWS_AT_ONCE];
    size_t grown = 0;
    ptrdiff_t i = 0;
    for (; turned - i > STEPS * turn; i += STEPS * turn, grown++) {
        NAME(turns)(rows, written, i, i + STEPS * turn, s, q, type, count, pass);
        UNROLLED for (int row = 0; row < count; row++) {
            NAME(grow)(&sum_tree[row], grown, s[row]);
            if (pass != NAME(ELEMENTS))
                NAME(grow)(&squares_tree[row], grown, q[row]);
        }
    }
    UNROLLED for (int row = 0; row < count; row++)
        s[row] = q[row] = rest[row] = rest_squares[row] = (NAME(vector)){0};
    if (i < turned)
        NAME(turns)(rows, written, i, turned, s, q, type, count, pass);
    for (i = turned; i < cut->whole; i += LANES) {
        UNROLLED for (int row = 0; row < count; row++)
            NAME(add)(rows, row, i, 0, &rest[row], &rest_squares[row], type, pass);
        if (written)
            NAME(write)(written, i, type, count, NAME(DEVIATIONS));
    }
    if (cut->tail >= 0) {
        UNROLLED for (int row = 0; row < count; row++)
            NAME(add)(rows, row, cut->tail, &cut->left, &rest[row], &rest_squares[row], type, pass);
        if (written)
            NAME(write)(written, cut->tail, type, count, NAME(DEVIATIONS));
    }
    UNROLLED for (int row = 0; row < count; row++) {
        sum[row] = NAME(felled)(&sum_tree[row], grown, s[row] + rest[row]);
        if (pass != NAME(ELEMENTS))
            squares[row] = NAME(felled)(&squares_tree[row], grown, q[row] + rest_squares[row]);
    }
}

INLINE void NAME(write_all)(const NAME(rows) *rows, const NAME(cut) *cut, const int type,
                            const int count, const int pass)
{
    for (ptrdiff_t i = 0; i < cut->whole; i += LANES)
        NAME(write)(rows, i, type, count, pass);
    if (cut->tail >= 0)
        NAME(write)(rows, cut->tail, type, count, pass); /* some elements a second time */
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
static OUTLINE NAME(statistics) NAME(careful_row)(const NAME(rows) *plain, int row,
                                                  const NAME(cut) *cut, double eps, int type)
{
    NAME(rows) rows = {.weight = plain->weight, .bias = plain->bias};
    rows.x[0] = plain->x[row];
    rows.y[0] = plain->y[row];
    rows.scale = NAME(scale_of)(rows.x[0], cut, eps, type);
    NAME(statistics) *at = &rows.at[0];
    REAL inverse = 1 / (REAL)cut->hidden, residual, squares;
    for (int pass = 0; pass < 3; pass++) {
        NAME(sums)(&rows, 0, cut, &residual, &squares, type, 1, NAME(CAREFUL));
        residual *= inverse;
        /* exactly high + low (Knuth, TAOCP 2, section 4.2.2, theorem B), the larger part in high */
        REAL high = at->high, more = at->low + residual;
        at->high = high + more;
        REAL of_more = at->high - high;
        at->low = (high - (at->high - of_more)) + (more - of_more);
    }
    double variance = (double)squares * inverse - (double)residual * residual;
    at->rstd = (REAL)(1 / sqrt(variance + eps * rows.scale * rows.scale));
    NAME(write_all)(&rows, cut, type, 1, NAME(CAREFUL));
    return (NAME(statistics)){at->high / rows.scale, at->low / rows.scale, at->rstd * rows.scale};
}

/* Rows of elements shorter than a vector lie here, so that a vector can be read and written. */
typedef struct {
    char x[ROWS_AT_ONCE][VECTOR_BYTES], y[ROWS_AT_ONCE][VECTOR_BYTES];
} NAME(buffer);

INLINE void NAME(place)(NAME(rows) *rows, NAME(buffer) *buffer, const struct forward *call,
                        ptrdiff_t first, const int type, const int count)
{
    const ptrdiff_t size = size_of(type), bytes = call->hidden * size;
    UNROLLED for (int row = 0; row < count; row++) {
        rows->x[row] = call->x + (first + row) * call->x_stride * size;
        rows->y[row] = call->y + (first + row) * bytes;
        if (call->hidden < LANES) {
            memset(buffer->x[row], 0, VECTOR_BYTES);
            rows->x[row] = memcpy(buffer->x[row], rows->x[row], bytes);
            rows->y[row] = buffer->y[row];
        }
    }
}

/* Forward of rows `first` to `last`, `count` at once; returns the first of those that are left. */
INLINE ptrdiff_t NAME(forward_rows)(const struct forward *call, const REAL *weight,
                                    const REAL *bias, ptrdiff_t first, ptrdiff_t last,
                                    const int type, const int count)
{
    const NAME(cut) cut = NAME(cut_of)(call->hidden);
    const REAL inverse = 1 / (REAL)cut.hidden, eps = (REAL)call->eps;
    const ptrdiff_t bytes = cut.hidden * size_of(type);
    REAL sum[ROWS_AT_ONCE], squares[ROWS_AT_ONCE];
    NAME(buffer) buffers[2];
    NAME(rows) rows, next = {.weight = weight, .bias = bias};
    if (first + count > last)
        return first;
    NAME(place)(&next, &buffers[0], call, first, type, count);
    NAME(sums)(&next, 0, &cut, sum, squares, type, count, NAME(ELEMENTS));
    for (int turn = 1;; turn = !turn) {
        rows = next;
        UNROLLED for (int row = 0; row < count; row++)
            rows.at[row].high = sum[row] * inverse;
        NAME(sums)(&rows, 0, &cut, sum, squares, type, count, NAME(DEVIATIONS));
        int is_plain[ROWS_AT_ONCE];
        UNROLLED for (int row = 0; row < count; row++) {
            REAL low = sum[row] * inverse, square = squares[row] * inverse;
            rows.at[row].low = low;
            rows.at[row].rstd = 1 / NAME(root)(square - low * low + eps);
            /* written so that NaN is not plain */
            is_plain[row] = NEGLIGIBLE * low * low <= square && square <= NAME(largest) &&
                            square + eps >= NAME(smallest);
        }
        const int is_last = first + 2 * count > last;
        if (is_last) {
            NAME(write_all)(&rows, &cut, type, count, NAME(DEVIATIONS));
        } else {
            NAME(place)(&next, &buffers[turn], call, first + count, type, count);
            NAME(sums)(&next, &rows, &cut, sum, squares, type, count, NAME(ELEMENTS));
        }
        UNROLLED for (int row = 0; row < count; row++) {
            if (!is_plain[row])
                rows.at[row] = NAME(careful_row)(&rows, row, &cut, call->eps, type);
            if (call->statistics)
                ((NAME(statistics) *)call->statistics)[first + row] = rows.at[row];
            if (cut.hidden < LANES)
                memcpy(call->y + (first + row) * bytes, rows.y[row], bytes);
        }
        first += count;
        if (is_last)
            return first;
    }
}

INLINE void NAME(forward_part)(const struct forward *call, const REAL *weight, const REAL *bias,
                               ptrdiff_t first, ptrdiff_t last, const int type)
{
    if (ROWS_AT_ONCE > 1)
        first = NAME(forward_rows)(call, weight, bias, first, last, type, ROWS_AT_ONCE);
    NAME(forward_rows)(call, weight, bias, first, last, type, 1);
}

/* --- backward ----------------------------------------------------------------------------------- */

/* With n the normalised x and g = dy weight, dx = rstd (g - mean g - n mean(g n)); dy n and dy of
 * all rows add up to dweight and dbias. */
INLINE void NAME(backward_some)(const struct backward *call, const NAME(cut) *cut,
                                const REAL *weight, REAL *dweight, REAL *dbias, ptrdiff_t first,
                                ptrdiff_t last, const int type, const int count)
{
    const REAL inverse = 1 / (REAL)cut->hidden;
    const ptrdiff_t size = size_of(type), row_bytes = cut->hidden * size;
    const char *x[ROWS_OF_GRADIENT], *dy[ROWS_OF_GRADIENT];
    char *dx[ROWS_OF_GRADIENT];
    char buffer[3][ROWS_OF_GRADIENT][VECTOR_BYTES];
    const int is_short = cut->hidden < LANES;
    const ptrdiff_t ahead = first + 2 * count <= last ? count : 0;
    NAME(statistics) at[ROWS_OF_GRADIENT];
    UNROLLED for (int row = 0; row < count; row++) {
        at[row] = ((const NAME(statistics) *)call->statistics)[first + row];
        x[row] = call->x + (first + row) * call->x_stride * size;
        dy[row] = call->dy + (first + row) * call->dy_stride * size;
        dx[row] = call->dx + (first + row) * row_bytes;
        if (is_short) {
            memset(buffer[0][row], 0, VECTOR_BYTES);
            memset(buffer[1][row], 0, VECTOR_BYTES);
            x[row] = memcpy(buffer[0][row], x[row], row_bytes);
            dy[row] = memcpy(buffer[1][row], dy[row], row_bytes);
            dx[row] = buffer[2][row];
        }
    }
    NAME(tree) plain_tree[ROWS_OF_GRADIENT], along_tree[ROWS_OF_GRADIENT];
    REAL mean[ROWS_OF_GRADIENT], along[ROWS_OF_GRADIENT];
    ptrdiff_t i = 0;
    for (size_t grown = 0;; grown++) {
        NAME(vector) p[ROWS_OF_GRADIENT] = {0}, a[ROWS_OF_GRADIENT] = {0};
        ptrdiff_t end = i + STEPS * LANES;
        int is_last = end >= cut->whole;
        if (is_last)
            end = cut->tail >= 0 ? cut->whole + 1 : cut->whole;
        for (; i < end; i += LANES) {
            int is_tail = i == cut->whole;
            ptrdiff_t j = is_tail ? cut->tail : i;
            NAME(vector) w = NAME(get)(weight + j), n[ROWS_OF_GRADIENT], d[ROWS_OF_GRADIENT];
            UNROLLED for (int row = 0; row < count; row++) {
                d[row] = NAME(load)(dy[row], j, type);
                if (is_tail)
                    d[row] = NAME(only)(d[row], &cut->left);
                n[row] = NAME(load)(x[row], j, type) - at[row].high;
                n[row] = n[row] * at[row].rstd - at[row].low * at[row].rstd;
                NAME(vector) g = d[row] * w;
                p[row] += g;
                a[row] += g * n[row];
                n[row] *= d[row];
            }
            if (!dweight)
                continue;
            UNROLLED for (int half = count / 2; half; half /= 2)
                UNROLLED for (int row = 0; row < half; row++) {
                    n[row] += n[row + half];
                    d[row] += d[row + half];
                }
            NAME(put)(dweight + j, NAME(get)(dweight + j) + n[0]);
            NAME(put)(dbias + j, NAME(get)(dbias + j) + d[0]);
        }
        UNROLLED for (int row = 0; row < count; row++) {
            if (is_last) {
                mean[row] = NAME(felled)(&plain_tree[row], grown, p[row]) * inverse;
                along[row] = NAME(felled)(&along_tree[row], grown, a[row]) * inverse;
            } else {
                NAME(grow)(&plain_tree[row], grown, p[row]);
                NAME(grow)(&along_tree[row], grown, a[row]);
            }
        }
        if (is_last)
            break;
    }
    if (!call->dx)
        return;
    for (i = 0; i < cut->whole || cut->tail >= 0; i += LANES) {
        int is_tail = i >= cut->whole;
        ptrdiff_t j = is_tail ? cut->tail : i;
        NAME(vector) w = NAME(get)(weight + j);
        UNROLLED for (int row = 0; row < count; row++) {
            /* n is (x - high) rstd - low rstd: what is of the row is put together first */
            REAL rstd = at[row].rstd, slope = rstd * along[row] * rstd;
            REAL rest = rstd * (mean[row] - at[row].low * rstd * along[row]);
            NAME(vector) g = NAME(load)(dy[row], j, type) * w;
            NAME(vector) v = NAME(load)(x[row], j, type) - at[row].high;
            NAME(store)(dx[row], j, g * rstd - (v * slope + rest), type);
            __builtin_prefetch(x[row] + ahead * call->x_stride * size + j * size);
            __builtin_prefetch(dy[row] + ahead * call->dy_stride * size + j * size);
        }
        if (is_tail)
            break;
    }
    UNROLLED for (int row = 0; row < count; row++)
        if (is_short)
            memcpy(call->dx + (first + row) * row_bytes, dx[row], row_bytes);
}

/* Backward of the rows of a part, and what they add to dweight and dbias: `total` holds both, one
 * after the other, as does `block`, which is for use here. */
INLINE void NAME(backward_part)(const struct backward *call, const REAL *weight, REAL *total,
                                REAL *block, ptrdiff_t first, ptrdiff_t last, const int type)
{
    const NAME(cut) cut = NAME(cut_of)(call->hidden);
    const ptrdiff_t columns = padded(call->hidden, LANES);
    const ptrdiff_t rows_of_block = STEPS * ROWS_OF_GRADIENT;
    for (ptrdiff_t start = first; start < last; start += rows_of_block) {
        ptrdiff_t row = start, end = last - start > rows_of_block ? start + rows_of_block : last;
        REAL *into = start == first ? total : block;
        if (into)
            memset(into, 0, 2 * columns * sizeof *into);
        REAL *into_bias = into ? into + columns : 0;
        for (; row + ROWS_OF_GRADIENT <= end; row += ROWS_OF_GRADIENT)
            NAME(backward_some)(call, &cut, weight, into, into_bias, row, last, type,
                                ROWS_OF_GRADIENT);
        for (; row < end; row++)
            NAME(backward_some)(call, &cut, weight, into, into_bias, row, last, type, 1);
        for (ptrdiff_t i = 0; into != total && i < 2 * columns; i++)
            total[i] += into[i];
    }
}

/* --- parameters --------------------------------------------------------------------------------- */

/* Copies a vector's worth of elements from memory that may end before, and back. */
INLINE NAME(vector) NAME(load_some)(const char *from, ptrdiff_t i, ptrdiff_t count, int type)
{
    char whole[VECTOR_BYTES] = {0};
    memcpy(whole, from + i * size_of(type), (count < LANES ? count : LANES) * size_of(type));
    return NAME(load)(whole, 0, type);
}

INLINE void NAME(store_some)(char *to, ptrdiff_t i, ptrdiff_t count, NAME(vector) v, int type)
{
    char whole[VECTOR_BYTES];
    NAME(store)(whole, 0, v, type);
    memcpy(to + i * size_of(type), whole, (count < LANES ? count : LANES) * size_of(type));
}

/* A parameter in REAL, `missing` for each element if there is none, in whole vectors: where it is,
 * or in `room`. */
static const REAL *NAME(parameter)(const char *from, int type, ptrdiff_t hidden, REAL missing,
                                   REAL *room)
{
    if (from && size_of(type) == sizeof(REAL) && hidden >= LANES)
        return (const REAL *)from;
    for (ptrdiff_t i = 0; i < hidden; i += LANES)
        NAME(put)(room + i, from ? NAME(load_some)(from, i, hidden - i, type)
                                 : (NAME(vector)){0} + missing);
    return room;
}

/* Adds the sums of all parts to each other, as a tree, and rounds them to the parameters' types. */
static void NAME(finish)(const struct backward *call, REAL *sums, ptrdiff_t parts)
{
    const ptrdiff_t columns = padded(call->hidden, LANES), width = 2 * columns;
    for (ptrdiff_t step = 1; step < parts; step *= 2)
        for (ptrdiff_t part = 0; part + step < parts; part += 2 * step)
            for (ptrdiff_t i = 0; i < width; i++)
                sums[part * width + i] += sums[(part + step) * width + i];
    for (ptrdiff_t i = 0; i < call->hidden; i += LANES) {
        ptrdiff_t left = call->hidden - i;
        if (call->dweight)
            NAME(store_some)(call->dweight, i, left, NAME(get)(sums + i), call->weight_type);
        if (call->dbias)
            NAME(store_some)(call->dbias, i, left, NAME(get)(sums + columns + i), call->bias_type);
    }
}
