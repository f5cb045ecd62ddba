"""Gradients of CrypTen's that are replaced: its dropout draws masks from a common generator that does not
exist here, and some are wrong as they come."""

from __future__ import annotations

from typing import Any

from protocols.errors import Unavailable


def install(crypten: Any) -> None:
    """Replace, once per process, forward and backward steps of CrypTen's autograd."""
    registry = crypten.gradients.FUNCTION_REGISTRY
    registry["dropout"].forward = staticmethod(_dropout(crypten, whole_features=False))
    registry["_feature_dropout"].forward = staticmethod(_dropout(crypten, whole_features=True))
    for name in ("dropout", "_feature_dropout"):
        registry[name].backward = staticmethod(_dropout_backward)


def _dropout(crypten: Any, whole_features: bool) -> Any:
    """With a mask that nobody knows: a shared bit for each element, or for each feature map."""

    def forward(ctx: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if inplace:
            raise Unavailable("dropout in place with gradients")
        if not training or p == 0:
            return input.clone()
        size = list(input.size())
        size = size[:2] + [1] * len(size[2:]) if whole_features else size
        mask = crypten.rand(*size) >= p
        ctx.save_multiple_for_backward([mask, p])
        return _kept(input, mask, p)

    return forward


def _dropout_backward(ctx: Any, grad_output: Any) -> Any:
    if not ctx.saved_tensors:
        return grad_output  # nothing was dropped
    mask, p = ctx.saved_tensors
    return _kept(grad_output, mask, p)


def _kept(value: Any, mask: Any, p: float) -> Any:
    return value.mul(mask) if p == 1 else value.mul(mask).div(1.0 - p)
