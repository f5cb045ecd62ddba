"""Replacements for some of CrypTen's gradients.

Its dropout draws masks from a common generator that does not exist here. Others are wrong: `pos_pow`, `norm` along
a dimension, items taken twice, `var` and batch norm with `unbiased` the wrong way round, a polynomial that changes
its caller's coefficients. That of a matrix product is right, but multiplies for factors that need no gradient and
truncates each product alone.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from protocols.errors import Unavailable
from protocols.ring import FRACTION_BITS
from protocols.session import binding_tensors

if TYPE_CHECKING:
    from protocols.session.runtime import Session

PRODUCT_BITS, GRADIENT_BITS = 24, 20
"""Most fractional bits of products in a graph, and of gradients: sums of 2^16 products of both fit a truncation."""
_crypten: Any = None
_current: Callable[[], Session]


def install(crypten: Any, current: Callable[[], Session]) -> None:
    """Replace, once per process, forward and backward steps of CrypTen's autograd."""
    global _crypten, _current
    _crypten, _current = crypten, current
    registry = crypten.gradients.FUNCTION_REGISTRY
    steps: dict[str, dict[str, Any]] = {
        "dropout": {"forward": _dropout, "backward": _dropout_backward},
        "_feature_dropout": {"forward": _feature_dropout, "backward": _dropout_backward},
        "__getitem__": {"backward": _item_backward},
        "matmul": {"forward": _matmul, "backward": _matmul_backward(registry["matmul"].backward)},
        "sigmoid": {"backward": _sigmoid_backward(registry["sigmoid"].backward)},
        "norm": {"backward": _norm_backward},
        "pow": {"forward": _pow, "backward": _pow_backward},
        "pos_pow": {"backward": _pos_pow_backward},
        "polynomial": {"backward": _polynomial_backward},
        "var": {"forward": _var, "backward": _var_backward},
        "batchnorm": {"forward": _batch_norm(registry["batchnorm"].forward)},
        "cosine_similarity": {"forward": _cosine(registry["cosine_similarity"].forward)},
    }
    for name, replaced in steps.items():
        for step, function in replaced.items():
            setattr(registry[name], step, staticmethod(function))


def _dropout(ctx: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _masked(ctx, input, tuple(input.size()), p, training, inplace)


def _feature_dropout(ctx: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    size = tuple(input.size())
    return _masked(ctx, input, size[:2] + (1,) * len(size[2:]), p, training, inplace)


def _masked(ctx: Any, input: Any, size: tuple[int, ...], p: float, training: bool, inplace: bool) -> Any:
    """Apply a mask that nobody knows: a shared bit for each element, or for each feature map."""
    if inplace:
        raise Unavailable("dropout in place with gradients")
    if not training or p == 0:
        return input.clone()
    mask = _crypten.rand(size) >= p
    ctx.save_multiple_for_backward([mask, p])
    return _kept(input, mask, p)


def _dropout_backward(ctx: Any, grad_output: Any) -> Any:
    if not ctx.saved_tensors:
        return grad_output  # nothing was dropped
    mask, p = ctx.saved_tensors
    return _kept(grad_output, mask, p)


def _kept(value: Any, mask: Any, p: float) -> Any:
    return value.mul(mask) if p == 1 else value.mul(mask).div(1.0 - p)


def _item_backward(ctx: Any, grad_output: Any) -> Any:
    """An element that was taken twice gets both gradients."""
    size, index = ctx.saved_tensors
    places = torch.arange(size.numel()).reshape(size)[index].reshape(-1)
    zeros = grad_output.new(torch.zeros(size.numel()))
    return zeros.index_add(0, places, grad_output.reshape(-1)).view(size)


def _matmul(ctx: Any, input: Any, other: Any) -> Any:
    """A product of long fractions comes back to PRODUCT_BITS: in a graph nothing else would rescale it."""
    ctx.save_multiple_for_backward([input, other])
    found = input.matmul(other)
    if (_needs(input) or _needs(other)) and binding_tensors.is_long(binding_tensors.inner_of(found)):
        return found.rescale(PRODUCT_BITS)
    return found


def _matmul_backward(general: Callable[..., Any]) -> Any:
    def backward(ctx: Any, grad_output: Any) -> Any:
        """Gradients of the factors that need one: two rounds, for one factor or for both.

        They have the fraction of the gradient that came, if that is from the usual one to GRADIENT_BITS. A pinned
        factor opens nothing of its own. general: for vectors, batches and public factors.
        """
        left, right = ctx.saved_tensors
        shared = all(isinstance(one, _crypten.mpc.MPCTensor) for one in (left, right))
        if not shared or any(one.dim() != 2 or one.ptype != _crypten.mpc.arithmetic for one in (left, right)):
            return general(ctx, grad_output)
        whole, bits = grad_output.exact(), _bits_of_gradients(grad_output)
        found = [
            whole.matmul(right.t()) if _needs(left) else None,
            left.t().matmul(whole) if _needs(right) else None,
        ]
        _current().flush()
        return tuple(None if one is None else one.rescale(bits) for one in found)

    return backward


def _sigmoid_backward(general: Callable[..., Any]) -> Any:
    def backward(ctx: Any, grad_output: Any) -> Any:
        """general: for gradients of the usual fraction."""
        if not binding_tensors.is_long(binding_tensors.inner_of(grad_output)):
            return general(ctx, grad_output)
        (chance,) = ctx.saved_tensors
        slope = chance.mul(chance.neg().add(1.0))
        return grad_output.mul(slope).rescale(_bits_of_gradients(grad_output))

    return backward


def _bits_of_gradients(grad_output: Any) -> int:
    bits = binding_tensors.bits_in(grad_output)
    return bits if FRACTION_BITS <= bits <= GRADIENT_BITS else FRACTION_BITS


def _needs(value: Any) -> bool:
    return bool(getattr(value, "requires_grad", False))


def _norm_backward(ctx: Any, grad_output: Any) -> Any:
    input, norm, p, dim, keepdim = ctx.saved_tensors
    if not keepdim and dim is not None:
        grad_output = grad_output.unsqueeze(dim)
        norm = norm if p == float("inf") else norm.unsqueeze(dim)
    if p == float("inf"):
        sign, argmax = input, norm
        return grad_output.mul(argmax).mul(sign)
    if p == 1:
        return grad_output.mul(input.sign())
    if p in (2, "fro"):
        return grad_output.mul(input.div(norm))
    sign = input.sign()
    return grad_output.mul(input.mul(sign).div(norm).pos_pow(p - 1).mul(sign))


def _pow(ctx: Any, input: Any, power: Any) -> Any:
    ctx.save_multiple_for_backward([input, power])
    return input.pow(power)


def _pow_backward(ctx: Any, grad_output: Any) -> Any:
    input, power = ctx.saved_tensors
    return grad_output.mul(0) if power == 0 else input.pow(power - 1).mul(power).mul(grad_output)


def _pos_pow_backward(ctx: Any, grad_output: Any) -> Any:
    input, power = ctx.saved_tensors
    if isinstance(power, int) or (isinstance(power, float) and power.is_integer()):
        return _pow_backward(ctx, grad_output)
    return input.mul(power - 1.0).exp().mul(power).mul(grad_output)  # the saved value is the logarithm


def _polynomial_backward(ctx: Any, grad_output: Any) -> Any:
    input, coeffs, func = ctx.saved_tensors
    slopes = coeffs * torch.arange(1, coeffs.size(0) + 1)
    if slopes.size(0) == 1:
        return grad_output.mul(slopes[0])
    return input.polynomial(slopes[1:], func).add(slopes[0]).mul(grad_output)


def _var(ctx: Any, input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    result = input.var(dim, unbiased, keepdim)
    mean = input.mean() if dim is None else input.mean(dim, keepdim=True)
    count = input.nelement() // result.nelement() - int(unbiased)
    ctx.save_multiple_for_backward((input.sub(mean), count, dim, keepdim))
    return result


def _var_backward(ctx: Any, grad_output: Any) -> Any:
    centred, count, dim, keepdim = ctx.saved_tensors
    if not keepdim and dim is not None:
        grad_output = grad_output.unsqueeze(dim)
    return centred.mul(2).mul(grad_output).div(count)


def _batch_norm(forward: Any) -> Any:
    parameters = signature(forward)

    def normed(ctx: Any, *given: Any, **named: Any) -> Any:
        """As in torch: the batch is divided by its biased deviation, the running one is unbiased."""
        call = parameters.bind(ctx, *given, **named)
        call.apply_defaults()
        known = call.arguments
        if not known["training"]:
            return forward(ctx, *given, **named)
        x, momentum = known["x"], known["momentum"]
        rows = [dim for dim in range(x.dim()) if dim != 1]
        mean, variance = x.mean(rows), x.var(rows, unbiased=False)
        running_mean, running_var = known["running_mean"], known["running_var"]
        if running_mean is not None and running_var is not None:
            count = x.nelement() // x.size(1)
            running_var.set(running_var * (1.0 - momentum) + variance * (momentum * count / (count - 1)))
            running_mean.set(running_mean * (1.0 - momentum) + mean * momentum)
        result = forward(ctx, x, known["weight"], known["bias"], mean, variance, False, known["eps"])
        if hasattr(ctx, "context"):
            ctx.context[-1] = True  # gradients flow through mean and deviation
        return result

    return normed


def _cosine(forward: Any) -> Any:
    return lambda ctx, x1, x2, dim=1, eps=None: forward(ctx, x1, x2, dim % max(x1.dim(), 1), eps)
