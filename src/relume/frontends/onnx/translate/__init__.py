"""Translators, one file per family of ONNX operators. Importing this package fills `calls.TRANSLATORS`."""

from __future__ import annotations

from relume.frontends.onnx.translate import (
    activation,
    along,
    control,
    convolution,
    einsum,
    elementwise,
    index,
    linalg,
    losses,
    movement,
    normalization,
    pooling,
    quant,
    reduce,
    resize,
    sampling,
    shape,
    transposed,
    trigonometry,
    variadic,
)

__all__ = [
    "activation",
    "along",
    "control",
    "convolution",
    "elementwise",
    "index",
    "einsum",
    "linalg",
    "losses",
    "movement",
    "normalization",
    "pooling",
    "quant",
    "reduce",
    "resize",
    "sampling",
    "shape",
    "transposed",
    "trigonometry",
    "variadic",
]
