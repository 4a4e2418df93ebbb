/* LayerNorm of rows, forward and backward, with an error independent of a row's condition number.
 *
 * The mean of the deviations from the rounded mean, the residual mean, is subtracted as well: forward.h
 * says when and how. -ffast-math merges both subtractions and must not be used.
 * Built by build.py, called by operator.cpp.
 */

#include "kernels.h"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "elements.h"
#include "threads.h"

namespace {

constexpr size_t LINE_BYTES = 64; /* cache line; another size costs speed on a few machines */
constexpr ptrdiff_t NEAR_BYTES = 8192; /* longest converted parameter that is kept on the stack */
#if defined(__AVX512F__)
constexpr int UNROLL = 4; /* vectors whose sums do not wait for each other */
#else
constexpr int UNROLL = 2; /* registers are half as many */
#endif
/* measured with 1 and 2 MiB of L2 and 32 MiB of L3: results from about these sizes on took less time, that
 * of a forward also together with a reader of its result; a backward reads twice as much */
constexpr ptrdiff_t STREAM_BYTES = 8 << 20, STREAM_GRADIENT_BYTES = 4 << 20;
constexpr int ROWS_OF_GRADIENT = 2; /* rows that share one pass over the sums over rows; more exceed L1 */
constexpr ptrdiff_t BLOCK_OF_ROWS = 32;  /* rows that are added to the same sums one after the other */
constexpr ptrdiff_t PARTS_OF_ROWS = 128; /* rows with partial sums of their own */
/* How far ahead elements are fetched if rows are streamed: as far as the next rows, and at least so far;
 * a processor by itself fetches within a page only, and a row may be one. In longer rows it does well. */
constexpr ptrdiff_t AHEAD_BYTES = 4096, FETCHED_BYTES = 16384;
constexpr double GRAIN = 32768;          /* least elements per thread, as in PyTorch */

#define OUTLINE __attribute__((noinline))
#define ALIGNED __attribute__((aligned(LINE_BYTES)))
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* Elements of a row in whole vectors. */
template <class Real> constexpr ptrdiff_t padded(ptrdiff_t hidden)
{
    return (hidden + LANES<Real> - 1) / LANES<Real> * LANES<Real>;
}

/* Whether rows bypass the caches: together they have `least` bytes, and each starts at a cache line. */
bool is_streamed(const void *to, ptrdiff_t rows, ptrdiff_t bytes, ptrdiff_t least)
{
    return rows * bytes >= least && uintptr_t(to) % LINE_BYTES == 0 && bytes % LINE_BYTES == 0;
}

/* How far ahead elements are fetched, in bytes, if `rows` are read at a time. */
INLINE ptrdiff_t bytes_ahead(ptrdiff_t row, ptrdiff_t stride, int rows)
{
    const ptrdiff_t next = rows * stride;
    return row > FETCHED_BYTES ? 0 : next > rows * AHEAD_BYTES ? next : rows * AHEAD_BYTES;
}

template <class Real> constexpr Real LARGEST = FLT_MAX;
template <> constexpr double LARGEST<double> = DBL_MAX;
template <class Real> constexpr Real SMALLEST = FLT_MIN / (FLT_EPSILON * FLT_EPSILON); /* digits to spare for squares */
template <> constexpr double SMALLEST<double> = DBL_MIN / (DBL_EPSILON * DBL_EPSILON);
template <class Real> constexpr int EXPONENT = FLT_MAX_EXP;
template <> constexpr int EXPONENT<double> = DBL_MAX_EXP;

#include "rows.h"
#include "forward.h"
#include "backward.h"
#include "parameters.h"

/* --- a call ------------------------------------------------------------------------------------- */

/* What the threads of a call share. */
template <class Call> struct Work {
    const Call &call;
    const void *weight, *bias; /* in the type in which sums are formed, unless is_as_given */
    bool is_as_given;          /* whether both have the type of x */
    bool is_finite;            /* whether each element of both is finite, if that is asked */
    void *sums;                /* over the rows of each part, then of one block per thread */
    ptrdiff_t rows, parts, next_part, next_thread;
};

/* Takes the next part; returns whether there was one. */
template <class Call> bool take_part(Work<Call> &work, ptrdiff_t *part, ptrdiff_t *first, ptrdiff_t *last)
{
    *part = __atomic_fetch_add(&work.next_part, 1, __ATOMIC_RELAXED);
    *first = *part * work.rows;
    *last = *first + work.rows < work.call.rows ? *first + work.rows : work.call.rows;
    return *part < work.parts;
}

template <class Real, Element type> void forward_work(void *data)
{
    auto &work = *static_cast<Work<Forward> *>(data);
    const char *weight = static_cast<const char *>(work.weight), *bias = static_cast<const char *>(work.bias);
    constexpr Element wide = sizeof(Real) == sizeof(double) ? FLOAT64 : FLOAT32;
    const Cut<Real> cut = cut_of<Real>(work.call.hidden, together(type));
    ptrdiff_t part, first, last;
    while (take_part(work, &part, &first, &last))
        if (type != wide && work.is_as_given)
            forward_rows<Real>(work.call, {weight, bias, type, cut.tail}, &cut, true, first, last, type, 0);
        else
            forward_rows<Real>(work.call, {weight, bias, wide, type == BFLOAT16 ? cut.whole : cut.tail}, &cut,
                               work.is_finite, first, last, type, NUMBERS);
    end_of_stream();
}

template <class Real, Element type> void backward_work(void *data)
{
    auto &work = *static_cast<Work<Backward> *>(data);
    const ptrdiff_t width = 2 * padded<Real>(work.call.hidden);
    const ptrdiff_t thread = __atomic_fetch_add(&work.next_thread, 1, __ATOMIC_RELAXED);
    Real *sums = static_cast<Real *>(work.sums);
    ptrdiff_t part, first, last;
    while (take_part(work, &part, &first, &last))
        backward_part(work.call, static_cast<const Real *>(work.weight), sums ? sums + part * width : nullptr,
                      sums ? sums + (work.parts + thread) * width : nullptr, first, last, type);
    end_of_stream();
}

/* How many threads to use for this many elements, at most `threads`. */
int threads_for(double elements, int threads)
{
    const int worth = elements / GRAIN < threads ? int(elements / GRAIN) : threads;
    return GOMP_parallel && worth > 1 ? worth : 1;
}

/* Memory aligned to a cache line: vectors across two lines take twice as long. */
template <class Real> Real *aligned(ptrdiff_t count)
{
    const size_t size = (count * sizeof(Real) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return static_cast<Real *>(aligned_alloc(LINE_BYTES, size));
}

template <class Real, Element type> bool forward(const Forward &call)
{
    const Cut<Real> cut = cut_of<Real>(call.hidden, together(type));
    const ptrdiff_t width = cut.padded;
    Work<Forward> work = {.call = call, .weight = call.weight, .bias = call.bias, .is_finite = true};
    /* conversion pays from the third row on */
    work.is_as_given = call.rows <= 2 && call.hidden >= cut.step && call.weight && call.bias &&
                       call.weight_type == type && call.bias_type == type;
    /* not all calls allocate memory: it takes as long as a short row */
    ALIGNED Real near[2 * NEAR_BYTES / sizeof(Real)];
    const bool is_near = work.is_as_given || 2 * width * sizeof(Real) <= sizeof near;
    Real *room = is_near ? near : aligned<Real>(2 * width);
    if (!room)
        return false;
    if (!work.is_as_given) {
        const Real *weight = parameter<Real>(call.weight, call.weight_type, cut, 1, room);
        const Real *bias = parameter<Real>(call.bias, call.bias_type, cut, 0, room + width);
        work.weight = weight;
        work.bias = bias;
        if (type == BFLOAT16)
            work.is_finite = is_finite(weight, width) && is_finite(bias, width);
    }
    const int threads = threads_for(double(call.rows) * call.hidden, call.threads);
    /* several parts per thread: other programs may delay a thread */
    work.rows = threads == 1 ? call.rows : call.rows / (4 * threads) + 1;
    work.parts = (call.rows + work.rows - 1) / work.rows;
    share(forward_work<Real, type>, &work, threads);
    if (!is_near)
        free(room);
    return true;
}

template <class Real, Element type> bool backward(const Backward &call)
{
    const ptrdiff_t width = padded<Real>(call.hidden);
    const bool has_sums = call.dweight || call.dbias;
    const ptrdiff_t parts = (call.rows + PARTS_OF_ROWS - 1) / PARTS_OF_ROWS;
    int threads = threads_for(double(call.rows) * call.hidden, call.threads);
    if (threads > parts)
        threads = int(parts);
    Real *room = aligned<Real>(width * (has_sums ? 1 + 2 * (parts + threads) : 1));
    if (!room)
        return false;
    Work<Backward> work = {.call = call};
    work.rows = PARTS_OF_ROWS;
    work.parts = parts;
    Real *sums = has_sums ? room + width : nullptr;
    work.sums = sums;
    work.weight = parameter<Real>(call.weight, call.weight_type, cut_of<Real>(call.hidden, 1), 1, room);
    share(backward_work<Real, type>, &work, threads);
    if (has_sums)
        finish(call, sums, parts);
    free(room);
    return true;
}

} // namespace

bool run_forward(const Forward &call)
{
    switch (call.type) {
    case FLOAT64:
        return forward<double, FLOAT64>(call);
    case FLOAT32:
        return forward<float, FLOAT32>(call);
    case BFLOAT16:
        return forward<float, BFLOAT16>(call);
    default:
        return forward<float, FLOAT16>(call);
    }
}

bool run_backward(const Backward &call)
{
    switch (call.type) {
    case FLOAT64:
        return backward<double, FLOAT64>(call);
    case FLOAT32:
        return backward<float, FLOAT32>(call);
    case BFLOAT16:
        return backward<float, BFLOAT16>(call);
    default:
        return backward<float, FLOAT16>(call);
    }
}
