/* Runs a function in the threads of the OpenMP runtime that PyTorch has loaded. */

#include "types.h"

static void share(void (*function)(void *), void *work, int threads, parallel_function parallel)
{
    if (parallel && threads > 1)
        parallel(function, work, (unsigned)threads, 0);
    else
        function(work);
}
