"""Classes whose constructors take a configuration object, built from a size and an eps instead."""

from __future__ import annotations

from types import SimpleNamespace

from torch import Tensor, nn

__all__ = [
    "Autoformer",
    "CpmAnt",
    "Moshi",
    "PatchTSMixer",
    "SpeechBrain",
    "TorchTitan",
    "TorchTitanOffset",
]


class _Wrapped(nn.Module):
    """Calls the module that a subclass builds."""

    norm: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


class CpmAnt(_Wrapped):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        from transformers.models.cpmant.modeling_cpmant import CpmAntLayerNorm

        super().__init__()
        self.norm = CpmAntLayerNorm(SimpleNamespace(hidden_size=hidden_size, eps=eps))


class Autoformer(_Wrapped):
    def __init__(self, hidden_size: int) -> None:
        from transformers.models.autoformer.modeling_autoformer import AutoformerLayernorm

        super().__init__()
        self.norm = AutoformerLayernorm(SimpleNamespace(d_model=hidden_size))


class PatchTSMixer(_Wrapped):
    def __init__(self, hidden_size: int, eps: float = 1e-5) -> None:
        from transformers.models.patchtsmixer.modeling_patchtsmixer import PatchTSMixerNormLayer

        super().__init__()
        config = SimpleNamespace(norm_mlp="LayerNorm", d_model=hidden_size, norm_eps=eps)
        self.norm = PatchTSMixerNormLayer(config)


class Moshi(_Wrapped):
    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        from moshi.modules.conv import TransposedLayerNorm

        super().__init__()
        self.norm = TransposedLayerNorm(normalized_shape=normalized_shape, eps=eps)


class SpeechBrain(_Wrapped):
    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        from speechbrain.nnet.normalization import LayerNorm

        super().__init__()
        self.norm = LayerNorm(input_size=normalized_shape, eps=eps)


class TorchTitan(_Wrapped):
    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        from torchtitan.models.common.nn_modules import LayerNorm

        super().__init__()
        self.norm = LayerNorm(LayerNorm.Config(normalized_shape=normalized_shape, eps=eps))


class TorchTitanOffset(_Wrapped):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        from torchtitan.models.qwen3_5.model import OffsetRMSNorm

        super().__init__()
        self.norm = OffsetRMSNorm(OffsetRMSNorm.Config(dim=dim, eps=eps))
        nn.init.zeros_(self.norm.weight)
