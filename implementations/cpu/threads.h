/* Work of a call, shared by threads of the runtime that PyTorch has loaded: its threads, not more. */

#include "types.h"

static void share(void (*function)(void *), void *work, int threads, parallel_function parallel)
{
    if (parallel && threads > 1)
        parallel(function, work, (unsigned)threads, 0);
    else
        function(work);
}
