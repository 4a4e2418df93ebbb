/* Calls of kernels.cpp. */

#pragma once

#include <cstddef>

/* Types of elements. */
enum Element { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };

/* Strides are elements from row to row; the elements of a row lie side by side. */
struct Forward {
    const char *x, *weight, *bias; /* weight and bias may be null */
    char *y;
    void *statistics; /* null, or three numbers per row: the mean in two parts, and rstd */
    ptrdiff_t rows, hidden, x_stride;
    double eps;
    Element type, weight_type, bias_type;
    int threads;
};

/* dx may be null, and so may dweight and dbias; if only one of the latter is, it is still computed. */
struct Backward {
    const char *x, *dy, *weight;
    const void *statistics;
    char *dx, *dweight, *dbias;
    ptrdiff_t rows, hidden, x_stride, dy_stride;
    Element type, weight_type, bias_type;
    int threads;
};

/* Both return false if there is not enough memory for temporary arrays. */
bool run_forward(const Forward &call);
bool run_backward(const Backward &call);
