/* Calls of recentred.c, for C and C++. calls.py packs the same structures. */

#pragma once

#include <stddef.h>

#include "types.h"

/* Strides are elements from row to row; the elements of a row lie side by side. */
struct forward {
    const char *x, *weight, *bias; /* weight and bias may be null */
    char *y;
    void *statistics; /* null, or three numbers per row: the mean in two parts, and rstd */
    parallel_function parallel;
    ptrdiff_t rows, hidden, x_stride;
    double eps;
    int type, weight_type, bias_type, threads;
};

/* dx may be null, and so may dweight and dbias; if only one of the latter is, it is still computed. */
struct backward {
    const char *x, *dy, *weight;
    const void *statistics;
    char *dx, *dweight, *dbias;
    parallel_function parallel;
    ptrdiff_t rows, hidden, x_stride, dy_stride;
    int type, weight_type, bias_type, threads;
};

/* Both return 0, or 1 if there is not enough memory for temporary arrays. */
#ifdef __cplusplus
extern "C" {
#endif
int recentred_forward(const struct forward *call);
int recentred_backward(const struct backward *call);
#ifdef __cplusplus
}
#endif
