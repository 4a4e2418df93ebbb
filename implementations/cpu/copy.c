/* A copy that bypasses the caches: unlike a usual one, it does not read the memory that it
 * overwrites. Called by copies.py. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "elements.h"
#include "threads.h"

#define PART_BYTES ((ptrdiff_t)1 << 18) /* per turn of a thread; trade-off: balance against turns */

struct copy {
    char *to;
    const char *from;
    parallel_function parallel;
    ptrdiff_t bytes;
    int threads;
};

struct work {
    const struct copy *copy;
    ptrdiff_t next;
};

static void copy_part(char *to, const char *from, ptrdiff_t bytes)
{
    ptrdiff_t i = -(uintptr_t)to % VECTOR_BYTES;
    if (i > bytes)
        i = bytes;
    memcpy(to, from, i);
    for (; i + VECTOR_BYTES <= bytes; i += VECTOR_BYTES)
        stream(to + i, from + i, VECTOR_BYTES);
    memcpy(to + i, from + i, bytes - i);
}

static void copy_work(void *data)
{
    struct work *work = data;
    const struct copy *copy = work->copy;
    ptrdiff_t first;
    while ((first = __atomic_fetch_add(&work->next, PART_BYTES, __ATOMIC_RELAXED)) < copy->bytes) {
        ptrdiff_t left = copy->bytes - first;
        copy_part(copy->to + first, copy->from + first, left < PART_BYTES ? left : PART_BYTES);
    }
    end_of_stream();
}

void streamed_copy(const struct copy *copy)
{
    struct work work = {.copy = copy};
    share(copy_work, &work, copy->threads, copy->parallel);
}
