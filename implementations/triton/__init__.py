"""One family of fused GPU kernels, forward and backward, written in Triton.

The four ``triton_*`` implementations share everything but how mean and variance are formed.
:mod:`layout` says what one program does, :mod:`launch` starts the kernels on tensors, and
:mod:`operators` makes an operator of them that autograd and torch.compile know. Only the modules
of kernels import triton, and they are imported when a kernel is first run.
"""
