/* LayerNorm of rows, forward and backward, with an error independent of a row's condition number.
 *
 * The mean of the deviations from the rounded mean, the residual mean, is subtracted as well: forward.h
 * says when and how. -ffast-math merges both subtractions and must not be used.
 * Built by build.py, called by calls.py.
 */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "elements.h"
#include "recentred.h"
#include "threads.h"

#define LINE_BYTES 64 /* cache line; another size costs speed on a few machines */
#define NEAR_BYTES 8192 /* largest row that is kept in the type of the sums: a few fit in L1 */
#if defined(__AVX512F__)
#define UNROLL 4 /* vectors whose sums do not wait for each other */
#else
#define UNROLL 2 /* registers are half as many */
#endif
/* measured with 2 MiB of L2: from about here on a call took less time, also together with a reader of
 * its result */
#define STREAM_BYTES (8 << 20)
#define ROWS_OF_GRADIENT 2 /* rows that share one pass over the sums over rows; more exceed L1 */
#define BLOCK_OF_ROWS 32   /* rows that are added to the same sums one after the other */
#define PARTS_OF_ROWS 128  /* rows with partial sums of their own */
#define GRAIN 32768        /* least elements per thread, as in PyTorch */

#define OUTLINE __attribute__((noinline))
#define ALIGNED __attribute__((aligned(LINE_BYTES)))
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define JOIN_(name, real) name##_##real
#define JOIN(name, real) JOIN_(name, real)

/* Elements of a row in whole vectors. */
static ptrdiff_t padded(ptrdiff_t hidden, ptrdiff_t lanes)
{
    return (hidden + lanes - 1) / lanes * lanes;
}

/* Whether rows bypass the caches: they would not stay in them, and each starts at a cache line. */
static int streams(const void *to, ptrdiff_t rows, ptrdiff_t bytes)
{
    return rows * bytes >= STREAM_BYTES && (uintptr_t)to % LINE_BYTES == 0 && bytes % LINE_BYTES == 0;
}

#define root_float sqrtf
#define root_double sqrt
#define largest_float FLT_MAX
#define largest_double DBL_MAX
#define smallest_float (FLT_MIN / (FLT_EPSILON * FLT_EPSILON)) /* digits to spare for squares */
#define smallest_double (DBL_MIN / (DBL_EPSILON * DBL_EPSILON))
#define exponent_float FLT_MAX_EXP
#define exponent_double DBL_MAX_EXP

#define REAL float
#define MASK int32_t
#include "rows.h"
#include "forward.h"
#include "backward.h"
#include "parameters.h"
#undef REAL
#undef MASK
#define REAL double
#define MASK int64_t
#include "rows.h"
#include "forward.h"
#include "backward.h"
#include "parameters.h"

/* --- a call ------------------------------------------------------------------------------------- */

/* What the threads of a call share. */
struct work {
    const struct forward *forward;
    const struct backward *backward;
    const void *weight, *bias; /* in the type in which sums are formed */
    int is_finite;             /* whether each element of both is finite */
    void *sums;                /* over the rows of each part, then of one block per thread */
    ptrdiff_t rows, parts, next_part, next_thread;
};

static void forward_work(void *data)
{
    struct work *work = data;
    const struct forward *call = work->forward;
    ptrdiff_t part;
    while ((part = __atomic_fetch_add(&work->next_part, 1, __ATOMIC_RELAXED)) < work->parts) {
        ptrdiff_t first = part * work->rows, last = first + work->rows;
        if (last > call->rows)
            last = call->rows;
        if (call->type == FLOAT64)
            forward_part_double(call, work->weight, work->bias, work->is_finite, first, last, FLOAT64);
        else if (call->type == FLOAT32)
            forward_part_float(call, work->weight, work->bias, work->is_finite, first, last, FLOAT32);
        else if (call->type == BFLOAT16)
            forward_part_float(call, work->weight, work->bias, work->is_finite, first, last, BFLOAT16);
        else
            forward_part_float(call, work->weight, work->bias, work->is_finite, first, last, FLOAT16);
    }
    end_of_stream();
}

static void backward_work(void *data)
{
    struct work *work = data;
    const struct backward *call = work->backward;
    ptrdiff_t thread = __atomic_fetch_add(&work->next_thread, 1, __ATOMIC_RELAXED), part;
    while ((part = __atomic_fetch_add(&work->next_part, 1, __ATOMIC_RELAXED)) < work->parts) {
        ptrdiff_t first = part * work->rows, last = first + work->rows;
        if (last > call->rows)
            last = call->rows;
        if (call->type == FLOAT64) {
            ptrdiff_t width = 2 * padded(call->hidden, VECTOR_BYTES / sizeof(double));
            double *sums = work->sums;
            backward_part_double(call, work->weight, sums ? sums + part * width : 0,
                                 sums ? sums + (work->parts + thread) * width : 0, first, last,
                                 FLOAT64);
            continue;
        }
        ptrdiff_t width = 2 * padded(call->hidden, VECTOR_BYTES / sizeof(float));
        float *sums = work->sums;
        float *total = sums ? sums + part * width : 0;
        float *block = sums ? sums + (work->parts + thread) * width : 0;
        if (call->type == FLOAT32)
            backward_part_float(call, work->weight, total, block, first, last, FLOAT32);
        else if (call->type == BFLOAT16)
            backward_part_float(call, work->weight, total, block, first, last, BFLOAT16);
        else
            backward_part_float(call, work->weight, total, block, first, last, FLOAT16);
    }
    end_of_stream();
}

/* How many threads to use for this many elements, at most `threads`. */
static int threads_for(double elements, int threads, parallel_function parallel)
{
    int worth = elements / GRAIN < threads ? (int)(elements / GRAIN) : threads;
    return parallel && worth > 1 ? worth : 1;
}

/* Memory aligned to a cache line: vectors across two lines take twice as long. */
static void *aligned(size_t size)
{
    return aligned_alloc(LINE_BYTES, (size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
}

int recentred_forward(const struct forward *call)
{
    const ptrdiff_t width = padded(call->hidden, VECTOR_BYTES / sizeof(float));
    const size_t size = call->type == FLOAT64 ? sizeof(double) : sizeof(float);
    char *room = aligned(2 * width * size);
    if (!room)
        return 1;
    struct work work = {.forward = call};
    if (call->type == FLOAT64) {
        work.weight = parameter_double(call->weight, call->weight_type, call->hidden, 1, (double *)room);
        work.bias = parameter_double(call->bias, call->bias_type, call->hidden, 0, (double *)room + width);
    } else {
        work.weight = parameter_float(call->weight, call->weight_type, call->hidden, 1, (float *)room);
        work.bias = parameter_float(call->bias, call->bias_type, call->hidden, 0, (float *)room + width);
    }
    work.is_finite = call->type != BFLOAT16 || (is_finite_float(work.weight, call->hidden) &&
                                                is_finite_float(work.bias, call->hidden));
    int threads = threads_for((double)call->rows * call->hidden, call->threads, call->parallel);
    /* several parts per thread: other programs may delay a thread */
    work.rows = threads == 1 ? call->rows : call->rows / (4 * threads) + 1;
    work.parts = (call->rows + work.rows - 1) / work.rows;
    share(forward_work, &work, threads, call->parallel);
    free(room);
    return 0;
}

int recentred_backward(const struct backward *call)
{
    const ptrdiff_t width = padded(call->hidden, VECTOR_BYTES / sizeof(float));
    const size_t size = call->type == FLOAT64 ? sizeof(double) : sizeof(float);
    const int has_sums = call->dweight || call->dbias;
    const ptrdiff_t parts = (call->rows + PARTS_OF_ROWS - 1) / PARTS_OF_ROWS;
    int threads = threads_for((double)call->rows * call->hidden, call->threads, call->parallel);
    if (threads > parts)
        threads = (int)parts;
    char *room = aligned(width * size * (has_sums ? 1 + 2 * (parts + threads) : 1));
    if (!room)
        return 1;
    struct work work = {.backward = call, .rows = PARTS_OF_ROWS, .parts = parts};
    if (has_sums)
        work.sums = room + width * size;
    if (call->type == FLOAT64)
        work.weight = parameter_double(call->weight, call->weight_type, call->hidden, 1, (double *)room);
    else
        work.weight = parameter_float(call->weight, call->weight_type, call->hidden, 1, (float *)room);
    share(backward_work, &work, threads, call->parallel);
    if (has_sums && call->type == FLOAT64)
        finish_double(call, work.sums, parts);
    else if (has_sums)
        finish_float(call, work.sums, parts);
    free(room);
    return 0;
}
