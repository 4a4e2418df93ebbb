/* Backward of rows, in REAL. */

#define STEPS 8 /* the error bound of a tree allows this many roundings beyond log2(N) */

/* Rows whose gradients are computed together, so that they share one pass over the sums over rows. */
typedef struct {
    const char *x[ROWS_OF_GRADIENT], *dy[ROWS_OF_GRADIENT];
    char *dx[ROWS_OF_GRADIENT];
    NAME(statistics) at[ROWS_OF_GRADIENT];
    REAL *dweight, *dbias; /* over all rows so far; null if not needed */
    int streams;
} NAME(gradients);

/* Elements minus the higher part of the mean, unless it is 0. */
INLINE NAME(vector) NAME(centred)(const NAME(gradients) *rows, int row, ptrdiff_t i, const int type,
                                  const int has_high)
{
    NAME(vector) v = NAME(load)(rows->x[row], i, type);
    return has_high ? v - rows->at[row].high : v;
}

/* At element i of `count` rows: adds dy weight, and its product with the normalised x, to the sums of
 * each row; adds dy, and its product with the normalised x, to the sums over rows. */
INLINE void NAME(gradient_sums)(const NAME(gradients) *rows, const REAL *weight, ptrdiff_t i,
                                const NAME(mask) *mask, NAME(vector) *plain, NAME(vector) *along,
                                const int type, const int count, const int has_high)
{
    const NAME(vector) w = NAME(get)(weight + i);
    NAME(vector) product[ROWS_OF_GRADIENT], dy[ROWS_OF_GRADIENT];
    UNROLLED for (int row = 0; row < count; row++) {
        const NAME(statistics) at = rows->at[row];
        NAME(vector) v = NAME(centred)(rows, row, i, type, has_high);
        dy[row] = NAME(only)(NAME(load)(rows->dy[row], i, type), mask);
        /* beyond the row's end, 0 - mean may become infinite, and 0 times infinity is NaN */
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
                                 const int count, const int has_high)
{
    const NAME(vector) w = NAME(get)(weight + i);
    UNROLLED for (int row = 0; row < count; row++) {
        /* n is (x - high) rstd - low rstd; factors of the whole row are combined first */
        const NAME(statistics) at = rows->at[row];
        const REAL slope = at.rstd * along[row] * at.rstd;
        const REAL rest = at.rstd * (mean[row] - at.low * at.rstd * along[row]);
        NAME(vector) v = NAME(centred)(rows, row, i, type, has_high);
        NAME(vector) g = NAME(load)(rows->dy[row], i, type) * w;
        NAME(store)(rows->dx[row], i, g * at.rstd - (v * slope + rest), type, rows->streams);
    }
}

INLINE void NAME(backward_some)(const NAME(gradients) *rows, const REAL *weight,
                                const NAME(cut) *cut, const int type, const int count,
                                const int has_high)
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
            NAME(gradient_sums)(rows, weight, i, 0, plain, along, type, count, has_high);
        if (i == cut->whole)
            break;
        UNROLLED for (int row = 0; row < count; row++) {
            NAME(grow)(&plain_tree[row], grown, plain[row]);
            NAME(grow)(&along_tree[row], grown, along[row]);
        }
        grown++;
    }
    if (cut->tail >= 0)
        NAME(gradient_sums)(rows, weight, cut->tail, &cut->left, plain, along, type, count,
                            has_high);
    if (!rows->dx[0])
        return;
    UNROLLED for (int row = 0; row < count; row++) {
        mean[row] = NAME(felled)(&plain_tree[row], grown, plain[row]) * inverse;
        mean_along[row] = NAME(felled)(&along_tree[row], grown, along[row]) * inverse;
    }
    for (ptrdiff_t i = 0; i < cut->whole; i += LANES)
        NAME(gradient_write)(rows, weight, i, mean, mean_along, type, count, has_high);
    if (cut->tail >= 0)
        NAME(gradient_write)(rows, weight, cut->tail, mean, mean_along, type, count, has_high);
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
    int has_high = 0;
    for (int row = 0; row < count; row++)
        has_high |= rows.at[row].high != 0;
    if (has_high)
        NAME(backward_some)(&rows, weight, cut, type, count, 1);
    else
        NAME(backward_some)(&rows, weight, cut, type, count, 0);
    for (int row = 0; call->dx && cut->hidden < LANES && row < count; row++)
        memcpy(call->dx + (first + row) * bytes, rows.dx[row], bytes);
}

/* Backward of the rows of a part, and their share of dweight and dbias: `total` holds both, one after
 * the other, and so does the temporary array `block`. */
INLINE void NAME(backward_part)(const struct backward *call, const REAL *weight, REAL *total,
                                REAL *block, ptrdiff_t first, ptrdiff_t last, const int type)
{
    const NAME(cut) cut = NAME(cut_of)(call->hidden);
    for (ptrdiff_t i = first; i < last;) {
        const ptrdiff_t end = last - i > BLOCK_OF_ROWS ? i + BLOCK_OF_ROWS : last;
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

#undef STEPS

