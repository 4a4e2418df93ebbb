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
    Real *kept; /* its elements in Real, once they have been read */
    Statistics<Real> at;
    Real scale; /* of the elements, if they are read SCALED */
    int streams;
};

/* Weight and bias, whole vectors in one type. */
struct Affine {
    const char *weight, *bias;
    int type;
};

/* Sums of deviations, and of their squares. */
template <class Real> struct Sums {
    Vector<Real> deviations, squares;
};

/* How deviations are formed: from the elements in memory or the kept ones, and relative to 0, to the
 * higher part of the mean, or to both parts of it with scaled elements. */
enum Way { KEEP = 1, KEPT = 2, CENTRED = 4, SCALED = 8 };

template <class Real> INLINE Vector<Real> deviations(const Row<Real> *row, ptrdiff_t i, const int type, const int way)
{
    Vector<Real> v = way & KEPT ? get(row->kept + i) : load<Real>(row->x, i, type);
    if (way & KEEP)
        put(row->kept + i, v);
    if (way & SCALED)
        return v * row->scale - row->at.high - row->at.low;
    return way & CENTRED ? v - row->at.high : v;
}

/* One pass at element i: adds to the sums of one row, and writes another; each may be null. */
template <class Real> INLINE void step(const Row<Real> *read, const int reading, const Row<Real> *written,
                       const int writing, const Affine &affine, ptrdiff_t i,
                       const Mask<Real> *mask, Sums<Real> *sums, const int type)
{
    if (read) {
        Vector<Real> v = only<Real>(deviations(read, i, type, reading), mask);
        sums->deviations += v;
        sums->squares += v * v;
    }
    if (written) {
        Statistics<Real> at = written->at;
        Vector<Real> v = deviations(written, i, type, writing) * at.rstd;
        if (!(writing & SCALED))
            v -= at.low * at.rstd;
        v = v * load<Real>(affine.weight, i, affine.type) + load<Real>(affine.bias, i, affine.type);
        /* kept elements are written with NO_NAN; forward_rows corrects rows where that is wrong */
        store(written->y, i, v, type,
                    (writing & KEPT ? NO_NAN : USUAL) | (written->streams ? STREAM : USUAL));
    }
}

template <class Real> INLINE void add_sums(Sums<Real> *to, const Sums<Real> *more)
{
    to->deviations += more->deviations;
    to->squares += more->squares;
}

/* A pass over two rows at once: one is written while the other is added up. */
template <class Real> INLINE void pass(const Row<Real> *read, const int reading, const Row<Real> *written,
                       const int writing, const Affine &affine,
                       const Cut<Real> *cut, Real *residual, Real *squares, const int type)
{
    const ptrdiff_t turn = UNROLL * LANES<Real>, turned = cut->whole - cut->whole % turn;
    Tree<Real> deviations_tree, squares_tree;
    Sums<Real> all = {}, rest = {};
    size_t grown = 0;
    ptrdiff_t i = 0;
    while (i < turned) {
        Sums<Real> part[UNROLL];
        ptrdiff_t end = turned - i > FORWARD_STEPS * turn ? i + FORWARD_STEPS * turn : turned;
        UNROLLED for (int k = 0; k < UNROLL; k++)
            part[k] = Sums<Real>{};
        do {
            UNROLLED for (int k = 0; k < UNROLL; k++)
                step<Real>(read, reading, written, writing, affine, i + k * LANES<Real>, 0,
                           &part[k], type);
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
    for (; i < cut->whole; i += LANES<Real>)
        step<Real>(read, reading, written, writing, affine, i, 0, &rest, type);
    if (cut->tail >= 0) /* writes some elements a second time */
        step<Real>(read, reading, written, writing, affine, cut->tail, &cut->left, &rest, type);
    if (read) {
        add_sums(&all, &rest);
        *residual = felled(&deviations_tree, grown, all.deviations);
        *squares = felled(&squares_tree, grown, all.squares);
    }
}

/* A power of two that scales the elements, and their squares, into the range of Real. */
template <class Real> static Real scale_of(const char *x, const Cut<Real> *cut, double eps, int type)
{
    Real largest = 0;
    for (ptrdiff_t i = 0; i < cut->whole || cut->tail >= 0; i += LANES<Real>) {
        int is_tail = i >= cut->whole;
        Vector<Real> v = load<Real>(x, is_tail ? cut->tail : i, type);
        for (ptrdiff_t lane = 0; lane < LANES<Real>; lane++) {
            Real size = v[lane] < 0 ? -v[lane] : v[lane];
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
        pass<Real>(row, SCALED, 0, 0, affine, cut, &residual, &squares, type);
        residual *= inverse;
        /* exactly high + low (Knuth, TAOCP 2, section 4.2.2, theorem B), the larger part in high */
        Real high = row->at.high, more = row->at.low + residual;
        row->at.high = high + more;
        Real of_more = row->at.high - high;
        row->at.low = (high - (row->at.high - of_more)) + (more - of_more);
    }
    double variance = (double)squares * inverse - (double)residual * residual;
    row->at.rstd = (Real)(1 / std::sqrt(variance + eps * scale * scale));
    pass<Real>(0, 0, row, SCALED, affine, cut, 0, 0, type);
    row->at = Statistics<Real>{row->at.high / scale, row->at.low / scale, row->at.rstd * scale};
}

/* Space for a row shorter than a vector, so that a whole vector can be read and written. */
struct Buffer {
    char x[VECTOR_BYTES], y[VECTOR_BYTES];
};

template <class Real>
INLINE Row<Real> row_of(const Forward &call, ptrdiff_t i, Buffer *buffer, Real *kept, const int type)
{
    const ptrdiff_t size = size_of(type), bytes = call.hidden * size;
    Row<Real> row = {
        .x = call.x + i * call.x_stride * size,
        .y = call.y + i * bytes,
        .kept = kept,
        .streams = is_streamed(call.y, call.rows, bytes),
    };
    if (call.hidden < LANES<Real>) {
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

/* Forward of several rows; each is written while the next is added up. */
template <class Real> INLINE void forward_rows(const Forward &call, const Affine &affine,
                               const Cut<Real> *cut, int is_finite, ptrdiff_t first,
                               ptrdiff_t last, const int type, Real *const *kept)
{
    const int keeps = kept != nullptr;
    const Real inverse = 1 / (Real)cut->hidden, eps = (Real)call.eps;
    const ptrdiff_t bytes = cut->hidden * size_of(type);
    const int reading = keeps ? KEEP : 0, again = keeps ? KEPT : 0;
    const int centred = again | CENTRED;
    Buffer buffers[2];
    Real residual, squares;
    Row<Real> row, next = row_of(call, first, &buffers[0], keeps ? kept[0] : nullptr, type);
    pass<Real>(&next, reading, 0, 0, affine, cut, &residual, &squares, type);
    for (ptrdiff_t i = first; i < last; i++) {
        const int turn = (i + 1 - first) % 2;
        row = next;
        int is_good = complete(&row, residual, squares, inverse, eps);
        if (!is_good) {
            row.at.high = row.at.low;
            pass<Real>(&row, centred, 0, 0, affine, cut, &residual, &squares, type);
            is_good = complete(&row, residual, squares, inverse, eps);
        }
        if (i + 1 == last) {
            pass<Real>(0, 0, &row, centred, affine, cut, 0, 0, type);
        } else {
            next = row_of(call, i + 1, &buffers[turn], keeps ? kept[turn] : nullptr, type);
            if (row.at.high == 0)
                pass<Real>(&next, reading, &row, again, affine, cut, &residual, &squares, type);
            else
                pass<Real>(&next, reading, &row, centred, affine, cut, &residual, &squares, type);
        }
        if (!is_good || !is_finite) /* NaN may have been written with NO_NAN */
            careful(&row, affine, cut, call.eps, type);
        if (call.statistics)
            ((Statistics<Real> *)call.statistics)[i] = row.at;
        if (cut->hidden < LANES<Real>)
            memcpy(call.y + i * bytes, row.y, bytes);
    }
}

template <class Real>
INLINE void forward_part(const Forward &call, const Affine &affine, int is_finite,
                         ptrdiff_t first, ptrdiff_t last, const int type)
{
    const Cut<Real> cut = cut_of<Real>(call.hidden);
    const int is_narrow = size_of(type) < ptrdiff_t(sizeof(Real));
    const int is_converted = affine.type != type;
    if (is_narrow && is_converted && cut.hidden >= LANES<Real> &&
        cut.hidden * ptrdiff_t(sizeof(Real)) <= NEAR_BYTES) {
        ALIGNED char room[2 * (NEAR_BYTES + PAGE_BYTES)];
        /* modulo a page, the weight is a quarter after the first row, the second row a half, and the bias,
         * if it is in the same room as the weight, three quarters */
        const uintptr_t apart = uintptr_t(affine.weight) - uintptr_t(room) - PAGE_BYTES / 4;
        char *start = room + apart % PAGE_BYTES / LINE_BYTES * LINE_BYTES;
        Real *const kept[] = {(Real *)start, (Real *)(start + NEAR_BYTES + PAGE_BYTES / 2)};
        forward_rows(call, affine, &cut, is_finite, first, last, type, kept);
    } else {
        forward_rows<Real>(call, affine, &cut, 1, first, last, type, nullptr);
    }
}
