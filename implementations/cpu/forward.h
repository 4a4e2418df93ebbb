/* Forward of rows, in Real.
 *
 * One pass forms the mean and the mean square of a row. That is accurate if the mean is small compared
 * to the deviations; otherwise the row is read again and its mean subtracted. y is formed from the
 * deviations from `high`, which is 0 or that first mean, minus `low`, the mean of the deviations.
 */

constexpr int FORWARD_STEPS = 4;
/* The mean square must be at least this multiple of the square of `low`. With f roundings per sum, `low`
 * has an error of f u sqrt(mean square), which adds f u / 4 to the relative error of the variance: less
 * than the error bound of a tree with 8 elements per lane. */
constexpr int NEGLIGIBLE = 64;

/* A row that is read, its statistics, and where it is written. */
template <class Real> struct Row {
    const char *x;
    char *y;
    Statistics<Real> at;
    Real scale; /* of the elements, if they are read SCALED */
    int streams;
};

/* Weight and bias in one type. */
struct Affine {
    const char *weight, *bias;
    int type;
    ptrdiff_t tail; /* where the elements of the last step of a row are */
};

/* Sums of deviations, and of their squares. */
template <class Real> struct Sums {
    Vector<Real> deviations, squares;
};

/* How deviations are formed: relative to 0, to the higher part of the mean, or to both parts of it with
 * scaled elements; and whether what is written may be taken to be no NaN. */
enum Way { CENTRED = 1, SCALED = 2, NUMBERS = 4 };

template <class Real>
INLINE void deviations(Vector<Real> *v, const Row<Real> *row, ptrdiff_t i, const int type, const int way)
{
    const int vectors = together(type);
    load_together<Real>(v, row->x, i, type);
    UNROLLED for (int n = 0; n < vectors; n++)
        if (way & SCALED)
            v[n] = v[n] * row->scale - row->at.high - row->at.low;
        else if (way & CENTRED)
            v[n] -= row->at.high;
}

/* The elements of weight or bias for one step; they lie as those of x, or vector after vector. */
template <class Real>
INLINE void load_parameter(Vector<Real> *v, const char *from, ptrdiff_t i, const int from_type, const int type)
{
    const int vectors = together(type);
    if (from_type == type)
        load_together<Real>(v, from, i, type);
    else
        UNROLLED for (int n = 0; n < vectors; n++)
            v[n] = load<Real>(from, i + n * LANES<Real>, from_type);
}

/* One step at element i: adds to the sums of one row, and writes another, with the parameters at
 * element j; each row may be null. */
template <class Real> INLINE void step(const Row<Real> *read, const int reading, const Row<Real> *written,
                       const int writing, const Affine &affine, ptrdiff_t i, ptrdiff_t j,
                       const Mask<Real> *masks, Sums<Real> *sums, const int type, const int streams,
                       ptrdiff_t ahead)
{
    const int vectors = together(type);
    Vector<Real> v[2], weight[2], bias[2];
    if (read) {
        if (streams)
            __builtin_prefetch(read->x + i * size_of(type) + ahead, 0, 2);
        deviations(v, read, i, type, reading);
        UNROLLED for (int n = 0; n < vectors; n++) {
            const Vector<Real> each = held(only<Real>(v[n], masks ? masks + n : nullptr));
            sums[n].deviations += each;
            sums[n].squares += each * each;
        }
    }
    if (written) {
        const Statistics<Real> at = written->at;
        deviations(v, written, i, type, writing);
        load_parameter<Real>(weight, affine.weight, j, affine.type, type);
        load_parameter<Real>(bias, affine.bias, j, affine.type, type);
        UNROLLED for (int n = 0; n < vectors; n++) {
            v[n] = v[n] * at.rstd;
            if (!(writing & SCALED))
                v[n] -= at.low * at.rstd;
            v[n] = v[n] * weight[n] + bias[n];
        }
        store_together(written->y, i, v, type, (writing & NUMBERS ? NO_NAN : USUAL) | (streams ? STREAM : USUAL));
    }
}

template <class Real> INLINE void add_sums(Sums<Real> *to, const Sums<Real> *more)
{
    to->deviations += more->deviations;
    to->squares += more->squares;
}

/* A pass over two rows at once: one is written while the other is added up. With `streams`, writes bypass
 * the caches, and elements that are read `ahead` bytes later are fetched. */
template <class Real> INLINE void pass(const Row<Real> *read, const int reading, const Row<Real> *written,
                       const int writing, const Affine &affine,
                       const Cut<Real> *cut, Real *residual, Real *squares, const int type,
                       const int streams, ptrdiff_t ahead)
{
    const ptrdiff_t turn = UNROLL * LANES<Real>, turned = cut->whole - cut->whole % turn;
    const int vectors = together(type);
    Tree<Real> deviations_tree, squares_tree;
    Sums<Real> all = {}, rest[2] = {};
    size_t grown = 0;
    ptrdiff_t i = 0;
    while (i < turned) {
        Sums<Real> part[UNROLL];
        ptrdiff_t end = turned - i > FORWARD_STEPS * turn ? i + FORWARD_STEPS * turn : turned;
        UNROLLED for (int k = 0; k < UNROLL; k++)
            part[k] = Sums<Real>{};
        do {
            UNROLLED for (int k = 0; k < UNROLL; k += vectors) {
                const ptrdiff_t at = i + k * LANES<Real>;
                step<Real>(read, reading, written, writing, affine, at, at, nullptr, &part[k], type, streams, ahead);
            }
            i += turn;
        } while (i < end);
        UNROLLED for (int half = UNROLL / 2; half; half /= 2)
            UNROLLED for (int k = 0; k < half; k++)
                add_sums(&part[k], &part[k + half]);
        all = part[0];
        if (i == turned)
            break;
        if (read) {
            grow(&deviations_tree, grown, all.deviations);
            grow(&squares_tree, grown, all.squares);
        }
        grown++;
    }
    for (; i < cut->whole; i += vectors * LANES<Real>)
        step<Real>(read, reading, written, writing, affine, i, i, nullptr, rest, type, streams, ahead);
    if (cut->tail >= 0) /* writes some elements a second time */
        step<Real>(read, reading, written, writing, affine, cut->tail, affine.tail, cut->left, rest, type, streams,
                   ahead);
    if (read) {
        add_sums(&all, &rest[0]);
        if (vectors > 1)
            add_sums(&all, &rest[1]);
        *residual = felled(&deviations_tree, grown, all.deviations);
        *squares = felled(&squares_tree, grown, all.squares);
    }
}

/* A power of two that scales the elements, and their squares, into the range of Real. */
template <class Real> static Real scale_of(const char *x, const Cut<Real> *cut, double eps, int type)
{
    Real largest = 0;
    for (ptrdiff_t i = 0; i < cut->whole || cut->tail >= 0; i += cut->step) {
        int is_tail = i >= cut->whole;
        Vector<Real> v[2];
        load_together<Real>(v, x, is_tail ? cut->tail : i, type);
        for (ptrdiff_t lane = 0; lane < cut->step; lane++) {
            Real element = v[lane / LANES<Real>][lane % LANES<Real>], size = element < 0 ? -element : element;
            largest = size > largest ? size : largest; /* leaves NaN out */
        }
        if (is_tail)
            break;
    }
    int exponent;
    std::frexp(largest, &exponent);
    if (!(largest <= LARGEST<Real>) || (exponent < 0 && eps > 0))
        return 1; /* infinite; or so small that only eps matters */
    int most = EXPONENT<Real> - 2;
    return (Real)std::ldexp(1.0, exponent > most ? -most : exponent < -most ? most : -exponent);
}

/* A third pass, over scaled elements, for a row with a residual mean after two passes, or with squares
 * outside the range of Real. */
template <class Real> static OUTLINE void careful(Row<Real> *row, const Affine &affine,
                                  const Cut<Real> *cut, double eps, int type)
{
    const Real inverse = 1 / (Real)cut->hidden, scale = scale_of(row->x, cut, eps, type);
    Real residual, squares;
    row->scale = scale;
    row->at = Statistics<Real>{};
    for (int again = 0; again < 3; again++) {
        pass<Real>(row, SCALED, 0, 0, affine, cut, &residual, &squares, type, USUAL, 0);
        residual *= inverse;
        /* exactly high + low (Knuth, TAOCP 2, section 4.2.2, theorem B), the larger part in high */
        Real high = row->at.high, more = row->at.low + residual;
        row->at.high = high + more;
        Real of_more = row->at.high - high;
        row->at.low = (high - (row->at.high - of_more)) + (more - of_more);
    }
    double variance = (double)squares * inverse - (double)residual * residual;
    row->at.rstd = (Real)(1 / std::sqrt(variance + eps * scale * scale));
    pass<Real>(0, 0, row, SCALED, affine, cut, 0, 0, type, row->streams, 0);
    row->at = Statistics<Real>{row->at.high / scale, row->at.low / scale, row->at.rstd * scale};
}

/* Space for a row shorter than a step, so that whole vectors can be read and written. */
struct Buffer {
    char x[VECTOR_BYTES], y[VECTOR_BYTES];
};

template <class Real>
INLINE Row<Real> row_of(const Forward &call, const Cut<Real> *cut, ptrdiff_t i, Buffer *buffer, const int type)
{
    const ptrdiff_t size = size_of(type), bytes = call.hidden * size;
    Row<Real> row = {
        .x = call.x + i * call.x_stride * size,
        .y = call.y + i * bytes,
        .streams = is_streamed(call.y, call.rows, bytes, STREAM_BYTES),
    };
    if (call.hidden < cut->step) {
        memset(buffer->x, 0, VECTOR_BYTES);
        row.x = static_cast<char *>(memcpy(buffer->x, row.x, bytes));
        row.y = buffer->y;
    }
    return row;
}

/* Completes the statistics of a row from its sums; returns whether they are accurate enough. */
template <class Real> INLINE int complete(Row<Real> *row, Real residual, Real squares, Real inverse, Real eps)
{
    Real low = residual * inverse, square = squares * inverse;
    row->at.low = low;
    row->at.rstd = 1 / std::sqrt(square - low * low + eps);
    /* written so that NaN fails */
    return NEGLIGIBLE * low * low <= square && square <= LARGEST<Real> &&
           square + eps >= SMALLEST<Real>;
}

/* The statistics of a row from its sums, after a second pass if they are not accurate; returns whether
 * they are now. */
template <class Real>
INLINE int centre(Row<Real> *row, const Affine &affine, const Cut<Real> *cut, Real residual, Real squares, Real inverse,
                  Real eps, const int type)
{
    if (complete(row, residual, squares, inverse, eps))
        return 1;
    row->at.high = row->at.low;
    pass<Real>(row, CENTRED, 0, 0, affine, cut, &residual, &squares, type, USUAL, 0);
    return complete(row, residual, squares, inverse, eps);
}

/* Forward of several rows. Each is written while the next but one is added up: the statistics of the row
 * between them, a chain of operations that wait for each other, are computed meanwhile. */
template <class Real>
INLINE void forward_rows(const Forward &call, const Affine &affine, const Cut<Real> *cut, int is_finite,
                         ptrdiff_t first, ptrdiff_t last, const int type, const int usual)
{
    const Real inverse = 1 / (Real)cut->hidden, eps = (Real)call.eps;
    const ptrdiff_t bytes = cut->hidden * size_of(type);
    const ptrdiff_t ahead = bytes_ahead(bytes, call.x_stride * size_of(type), 1);
    Buffer buffers[3];
    Real residual, squares;
    Row<Real> row = row_of(call, cut, first, &buffers[0], type), next = row, third = row;
    pass<Real>(&row, 0, 0, 0, affine, cut, &residual, &squares, type, USUAL, 0);
    int is_good = centre(&row, affine, cut, residual, squares, inverse, eps, type), is_next_good = 1;
    if (first + 1 < last) {
        next = row_of(call, cut, first + 1, &buffers[1], type);
        pass<Real>(&next, 0, 0, 0, affine, cut, &residual, &squares, type, USUAL, 0);
    }
    for (ptrdiff_t i = first; i < last; i++) {
        if (i + 1 < last)
            is_next_good = centre(&next, affine, cut, residual, squares, inverse, eps, type);
        if (i + 2 >= last) {
            pass<Real>(0, 0, &row, CENTRED | usual, affine, cut, 0, 0, type, row.streams, 0);
        } else {
            third = row_of(call, cut, i + 2, &buffers[(i + 2 - first) % 3], type);
            if (row.at.high != 0)
                pass<Real>(&third, 0, &row, CENTRED | usual, affine, cut, &residual, &squares, type, row.streams, ahead);
            else if (row.streams)
                pass<Real>(&third, 0, &row, usual, affine, cut, &residual, &squares, type, STREAM, ahead);
            else
                pass<Real>(&third, 0, &row, usual, affine, cut, &residual, &squares, type, USUAL, 0);
        }
        if (!is_good || !is_finite) /* NaN may have been written as NUMBERS */
            careful(&row, affine, cut, call.eps, type);
        if (call.statistics)
            ((Statistics<Real> *)call.statistics)[i] = row.at;
        if (cut->hidden < cut->step)
            memcpy(call.y + i * bytes, row.y, bytes);
        row = next;
        next = third;
        is_good = is_next_good;
    }
}
