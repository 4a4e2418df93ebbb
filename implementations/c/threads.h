/* Work of a call, shared by threads of the runtime that PyTorch has loaded: its threads, not more. */

/* GOMP_parallel of that OpenMP runtime. */
typedef void (*parallel)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

static void share(void (*function)(void *), void *work, int threads, parallel parallel)
{
    if (parallel && threads > 1)
        parallel(function, work, (unsigned)threads, 0);
    else
        function(work);
}
