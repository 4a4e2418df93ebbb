/* A copy that bypasses the caches: unlike a usual one, it does not read the memory that it
 * overwrites. Called by copies.py. */

#include <cstdint>

#include "stream.h"
#include "threads.h"

#define PART_BYTES ((ptrdiff_t)1 << 18) /* per turn of a thread; trade-off: balance against turns */

namespace {

struct Copy {
    char *to;
    const char *from;
    ptrdiff_t bytes;
    int threads;
};

struct Work {
    const Copy *copy;
    ptrdiff_t next;
};

void copy_part(char *to, const char *from, ptrdiff_t bytes)
{
    ptrdiff_t i = -(uintptr_t)to % VECTOR_BYTES;
    if (i > bytes)
        i = bytes;
    memcpy(to, from, i);
    for (; i + VECTOR_BYTES <= bytes; i += VECTOR_BYTES)
        stream(to + i, from + i, VECTOR_BYTES);
    memcpy(to + i, from + i, bytes - i);
}

void copy_work(void *data)
{
    auto *work = static_cast<Work *>(data);
    const Copy *copy = work->copy;
    ptrdiff_t first;
    while ((first = __atomic_fetch_add(&work->next, PART_BYTES, __ATOMIC_RELAXED)) < copy->bytes) {
        ptrdiff_t left = copy->bytes - first;
        copy_part(copy->to + first, copy->from + first, left < PART_BYTES ? left : PART_BYTES);
    }
    end_of_stream();
}

} // namespace

extern "C" void streamed_copy(const Copy *copy)
{
    Work work = {.copy = copy};
    share(copy_work, &work, copy->threads);
}
