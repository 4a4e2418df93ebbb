"""One family of fused GPU kernels, forward and backward, in Triton.

The four ``triton_*`` implementations share everything but how mean and variance are formed.
:mod:`layout` divides the work among programs, :mod:`launch` starts the kernels on tensors, and
:mod:`operators` registers operators for autograd and torch.compile. Only the kernel modules import
triton, and the first call of a kernel imports them.
"""
