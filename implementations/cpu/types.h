/* Types shared by callers and kernels. */

#pragma once

/* Types of elements, numbered as calls.py numbers them. */
enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };

/* GOMP_parallel of the OpenMP runtime that PyTorch has loaded. */
typedef void (*parallel_function)(void (*work)(void *), void *data, unsigned threads, unsigned flags);
