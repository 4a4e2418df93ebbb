"""Lets torchvision be imported if its compiled operators cannot be loaded.

PyPI has torchvision for CUDA only. With a CPU build of torch, its operators are missing, and
``import torchvision`` fails when it registers meta functions for two of them. This file declares
the two operators before that. Python imports it at startup, because its folder is on PYTHONPATH.

With Triton's interpreter, questions about the GPU are made answerable. This is done before the
verifier records torch: a target must not replace its functions.
"""

import os
import sys
from contextlib import nullcontext
from importlib.abc import MetaPathFinder
from types import SimpleNamespace


class _DeclareOperators(MetaPathFinder):
    """An import hook that finds no module, and declares the operators before they are needed."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations":
            import torch
            from torchvision.extension import _has_ops

            if not _has_ops():
                signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                for operator in ("nms", "qnms"):
                    torch.library.define(f"torchvision::{operator}", signature)


sys.meta_path.insert(0, _DeclareOperators())

if os.environ.get("TRITON_INTERPRET") == "1":
    import torch

    # a small GPU: few multiprocessors, so that each program has several rows to add up
    _properties = SimpleNamespace(
        multi_processor_count=4,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        major=8,
        minor=0,
        name="interpreted",
    )
    torch.cuda.device = lambda device=None: nullcontext()
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda device=None: _properties
