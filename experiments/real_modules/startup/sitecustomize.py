"""Lets torchvision be imported if its compiled operators cannot be loaded.

PyPI has torchvision for CUDA only. With a CPU build of torch, its operators are missing, and
``import torchvision`` fails when it registers meta functions for two of them. This file declares
the two operators before that. Python imports it at startup, because its folder is on PYTHONPATH.
"""

import sys
from importlib.abc import MetaPathFinder


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
