/* Runs a function in the threads of the OpenMP runtime that PyTorch has loaded. */

#pragma once

/* A second runtime would compete with PyTorch's threads, so that this is not compiled with -fopenmp. The
 * loader finds the function in a library that libtorch_cpu needs; it is null with other runtimes. */
extern "C" __attribute__((weak)) void GOMP_parallel(void (*work)(void *), void *data,
                                                    unsigned threads, unsigned flags);

static inline void share(void (*function)(void *), void *work, int threads)
{
    if (GOMP_parallel && threads > 1)
        GOMP_parallel(function, work, unsigned(threads), 0);
    else
        function(work);
}
