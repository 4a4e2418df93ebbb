/* Backward of rows, in Real. */

constexpr int BACKWARD_STEPS = 8; /* the error bound of a tree allows this many roundings beyond log2(N) */

/* Rows whose gradients are computed together, so that they share one pass over the sums over rows. */
template <class Real> struct Gradients {
    const char *x[ROWS_OF_GRADIENT], *dy[ROWS_OF_GRADIENT];
    char *dx[ROWS_OF_GRADIENT];
    Statistics<Real> at[ROWS_OF_GRADIENT];
    Real *dweight, *dbias; /* over all rows so far; null if not needed */
    int streams;
    ptrdiff_t x_ahead, dy_ahead; /* see bytes_ahead */
};

/* Elements minus the higher part of the mean, unless it is 0. */
template <class Real> INLINE Vector<Real> centred(const Gradients<Real> *rows, int row, ptrdiff_t i, const int type,
                                  const int has_high)
{
    Vector<Real> v = load<Real>(rows->x[row], i, type);
    return has_high ? v - rows->at[row].high : v;
}

/* At element i of `count` rows: adds dy weight, and its product with the normalised x, to the sums of
 * each row; adds dy, and its product with the normalised x, to the sums over rows. */
template <class Real> INLINE void gradient_sums(const Gradients<Real> *rows, const Real *weight, ptrdiff_t i,
                                const Mask<Real> *mask, Vector<Real> *plain, Vector<Real> *along,
                                const int type, const int count, const int has_high)
{
    const Vector<Real> w = get(weight + i);
    Vector<Real> product[ROWS_OF_GRADIENT], dy[ROWS_OF_GRADIENT];
    UNROLLED for (int row = 0; row < count; row++) {
        const Statistics<Real> at = rows->at[row];
        if (rows->streams) {
            __builtin_prefetch(rows->x[row] + i * size_of(type) + rows->x_ahead, 0, 2);
            __builtin_prefetch(rows->dy[row] + i * size_of(type) + rows->dy_ahead, 0, 2);
        }
        Vector<Real> v = centred(rows, row, i, type, has_high);
        dy[row] = only<Real>(load<Real>(rows->dy[row], i, type), mask);
        /* beyond the row's end, 0 - mean may become infinite, and 0 times infinity is NaN */
        product[row] = only<Real>(dy[row] * (v * at.rstd - at.low * at.rstd), mask);
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
    /* both are loaded first: a load waits for an earlier store if their addresses differ by whole pages */
    const Vector<Real> dweight = held(get(rows->dweight + i) + product[0]);
    const Vector<Real> dbias = held(get(rows->dbias + i) + dy[0]);
    put(rows->dweight + i, dweight);
    put(rows->dbias + i, dbias);
}

/* With n the normalised x and g = dy weight: dx = rstd (g - mean g - n mean(g n)). */
template <class Real> INLINE void gradient_write(const Gradients<Real> *rows, const Real *weight, ptrdiff_t i,
                                 const Real *mean, const Real *along, const int type,
                                 const int count, const int has_high)
{
    const Vector<Real> w = get(weight + i);
    UNROLLED for (int row = 0; row < count; row++) {
        /* n is (x - high) rstd - low rstd; factors of the whole row are combined first */
        const Statistics<Real> at = rows->at[row];
        const Real slope = at.rstd * along[row] * at.rstd;
        const Real rest = at.rstd * (mean[row] - at.low * at.rstd * along[row]);
        Vector<Real> v = centred(rows, row, i, type, has_high);
        Vector<Real> g = load<Real>(rows->dy[row], i, type) * w;
        store(rows->dx[row], i, g * at.rstd - (v * slope + rest), type, rows->streams);
    }
}

template <class Real> INLINE void backward_some(const Gradients<Real> *rows, const Real *weight,
                                const Cut<Real> *cut, const int type, const int count,
                                const int has_high)
{
    const Real inverse = 1 / (Real)cut->hidden;
    Tree<Real> plain_tree[ROWS_OF_GRADIENT], along_tree[ROWS_OF_GRADIENT];
    Vector<Real> plain[ROWS_OF_GRADIENT], along[ROWS_OF_GRADIENT];
    Real mean[ROWS_OF_GRADIENT], mean_along[ROWS_OF_GRADIENT];
    size_t grown = 0;
    for (ptrdiff_t i = 0;;) {
        const ptrdiff_t end = cut->whole - i > BACKWARD_STEPS * LANES<Real> ? i + BACKWARD_STEPS * LANES<Real> : cut->whole;
        UNROLLED for (int row = 0; row < count; row++)
            plain[row] = along[row] = Vector<Real>{};
        for (; i < end; i += LANES<Real>)
            gradient_sums<Real>(rows, weight, i, 0, plain, along, type, count, has_high);
        if (i == cut->whole)
            break;
        UNROLLED for (int row = 0; row < count; row++) {
            grow(&plain_tree[row], grown, plain[row]);
            grow(&along_tree[row], grown, along[row]);
        }
        grown++;
    }
    if (cut->tail >= 0)
        gradient_sums(rows, weight, cut->tail, cut->left, plain, along, type, count,
                            has_high);
    if (!rows->dx[0])
        return;
    UNROLLED for (int row = 0; row < count; row++) {
        mean[row] = felled(&plain_tree[row], grown, plain[row]) * inverse;
        mean_along[row] = felled(&along_tree[row], grown, along[row]) * inverse;
    }
    for (ptrdiff_t i = 0; i < cut->whole; i += LANES<Real>)
        gradient_write(rows, weight, i, mean, mean_along, type, count, has_high);
    if (cut->tail >= 0)
        gradient_write(rows, weight, cut->tail, mean, mean_along, type, count, has_high);
}

/* Backward of `count` rows from `first` on. */
template <class Real> INLINE void backward_rows(const Backward &call, const Real *weight,
                                const Cut<Real> *cut, Real *sums, ptrdiff_t first, const int type,
                                const int count)
{
    const ptrdiff_t size = size_of(type), bytes = cut->hidden * size;
    char buffer[3][ROWS_OF_GRADIENT][VECTOR_BYTES];
    Gradients<Real> rows = {
        .dweight = sums,
        .dbias = sums ? sums + cut->padded : 0,
        .streams = call.dx && is_streamed(call.dx, call.rows, bytes, STREAM_GRADIENT_BYTES) ? STREAM : USUAL,
        .x_ahead = bytes_ahead(bytes, call.x_stride * size, count),
        .dy_ahead = bytes_ahead(bytes, call.dy_stride * size, count),
    };
    UNROLLED for (int row = 0; row < count; row++) {
        rows.at[row] = ((const Statistics<Real> *)call.statistics)[first + row];
        rows.x[row] = call.x + (first + row) * call.x_stride * size;
        rows.dy[row] = call.dy + (first + row) * call.dy_stride * size;
        rows.dx[row] = call.dx ? call.dx + (first + row) * bytes : 0;
        if (cut->hidden < LANES<Real>) {
            memset(buffer[0][row], 0, VECTOR_BYTES);
            memset(buffer[1][row], 0, VECTOR_BYTES);
            rows.x[row] = static_cast<char *>(memcpy(buffer[0][row], rows.x[row], bytes));
            rows.dy[row] = static_cast<char *>(memcpy(buffer[1][row], rows.dy[row], bytes));
            rows.dx[row] = call.dx ? buffer[2][row] : 0;
        }
    }
    int has_high = 0;
    for (int row = 0; row < count; row++)
        has_high |= rows.at[row].high != 0;
    if (has_high)
        backward_some(&rows, weight, cut, type, count, 1);
    else
        backward_some(&rows, weight, cut, type, count, 0);
    for (int row = 0; call.dx && cut->hidden < LANES<Real> && row < count; row++)
        memcpy(call.dx + (first + row) * bytes, rows.dx[row], bytes);
}

/* Backward of the rows of a part, and their share of dweight and dbias: `total` holds both, one after
 * the other, and so does the temporary array `block`. */
template <class Real> INLINE void backward_part(const Backward &call, const Real *weight, Real *total,
                                Real *block, ptrdiff_t first, ptrdiff_t last, const int type)
{
    const Cut<Real> cut = cut_of<Real>(call.hidden, 1);
    for (ptrdiff_t i = first; i < last;) {
        const ptrdiff_t end = last - i > BLOCK_OF_ROWS ? i + BLOCK_OF_ROWS : last;
        Real *sums = i == first ? total : block;
        if (sums)
            memset(sums, 0, 2 * cut.padded * sizeof *sums);
        for (; i + ROWS_OF_GRADIENT <= end; i += ROWS_OF_GRADIENT)
            backward_rows(call, weight, &cut, sums, i, type, ROWS_OF_GRADIENT);
        for (; i < end; i++)
            backward_rows(call, weight, &cut, sums, i, type, 1);
        for (ptrdiff_t j = 0; sums != total && j < 2 * cut.padded; j++)
            total[j] += sums[j];
    }
}


