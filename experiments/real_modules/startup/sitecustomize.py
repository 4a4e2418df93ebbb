"""Lets torchvision be imported where its compiled operators cannot be loaded.

PyPI has torchvision for CUDA only; beside a CPU build of torch its operators are missing, and
``import torchvision`` fails where it describes two of them. They are declared here just before.
Python imports this file when it starts, because the folder is on PYTHONPATH.
"""

import sys
from importlib.abc import MetaPathFinder


class _DeclareOperators(MetaPathFinder):
    """Finds no module; declares the operators when torchvision is about to describe them."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations":
            import torch
            from torchvision.extension import _has_ops

            if not _has_ops():
                signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                for operator in ("nms", "qnms"):
                    torch.library.define(f"torchvision::{operator}", signature)


sys.meta_path.insert(0, _DeclareOperators())
