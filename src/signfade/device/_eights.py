"""Eight floats side by side as one number in numba kernels, float32 or float64.

An `Eight` stands in vector registers; `+` and `-` work lane by lane, each one IEEE operation.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

__all__ = ["WIDTH", "lane_butterflies", "load", "negative", "store"]

WIDTH = 8

_WORDS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


class _EightType(types.Type):
    def __init__(self, dtype):
        super().__init__(name=f"Eight({dtype})")
        self.dtype = dtype


_EIGHTS = {dtype: _EightType(dtype) for dtype in _WORDS}


def _vector(kind):
    return ir.VectorType(_WORDS[kind.dtype], WIDTH)


@register_model(_EightType)
class _EightModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _vector(kind))


def _arithmetic(symbol, instruction):
    @intrinsic
    def apply(context, a, b):
        def emit(context, builder, signature, values):
            return getattr(builder, instruction)(*values)

        return a(a, a), emit

    @overload(symbol)
    def operation(a, b):
        return (lambda a, b: apply(a, b)) if isinstance(a, _EightType) and a is b else None


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")


@intrinsic
def negative(context, x):
    """`-x`."""

    def emit(context, builder, signature, values):
        return builder.fneg(values[0])

    return x(x), emit


def _place(context, builder, kind, array, index):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _vector(kind).as_pointer())


@intrinsic
def load(context, array, index):
    """Entries index ... index + 7 of a contiguous array; the index is not checked."""

    def emit(context, builder, signature, values):
        kind = signature.args[0]
        return builder.load(_place(context, builder, kind, *values), align=kind.dtype.bitwidth // 8)

    return _EIGHTS[array.dtype](array, types.intp), emit


@intrinsic
def store(context, array, index, value):
    """Entries index ... index + 7 become `value`; the index is not checked."""

    def emit(context, builder, signature, values):
        kind = signature.args[0]
        place = _place(context, builder, kind, *values[:2])
        builder.store(values[2], place, align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), emit


@intrinsic
def lane_butterflies(context, x):
    """The Walsh-Hadamard transform of the eight lanes."""

    def emit(context, builder, signature, values):
        kind = _vector(signature.args[0])
        index = ir.VectorType(ir.IntType(32), WIDTH)
        (result,) = values
        for step in (1, 2, 4):
            swapped = ir.Constant(index, [lane ^ step for lane in range(WIDTH)])
            signs = ir.Constant(kind, [-1.0 if lane & step else 1.0 for lane in range(WIDTH)])
            other = builder.shuffle_vector(result, result, swapped)
            product = builder.fmul(result, signs, flags=("contract",))  # exact: fused or not is the same
            result = builder.fadd(other, product, flags=("contract",))
        return result

    return x(x), emit
