"""Eight float64 side by side as one number in numba kernels.

A `Lanes` value stands in vector registers. `+ - * /` work lane by lane, with plain numbers too; a product and
the sum it goes into may be fused. Every lane runs through the same instructions, so that its result does not
depend on what stands in the others.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

__all__ = ["LANES", "choose", "load", "maximum", "minimum", "root", "store", "times_power"]

LANES = 8

_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_WORDS = ir.VectorType(ir.IntType(64), LANES)


class _LanesType(types.Type):
    def __init__(self):
        super().__init__(name="Lanes")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _DOUBLES)


def _accepted(kind):
    """The type under which an argument enters: lanes, or one number for all of them."""
    return kind if kind is _lanes else types.float64


def _spread(builder, value, kind):
    """A number in all lanes."""
    if kind is _lanes:
        return value
    nothing = ir.Constant(_DOUBLES, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    )


def _emitter(write):
    """What numba calls to emit an operation; `write(builder, *vectors)` is its instructions."""

    def emit(context, builder, signature, values):
        vectors = (_spread(builder, value, kind) for value, kind in zip(values, signature.args, strict=True))
        return write(builder, *vectors)

    return emit


def _binary(write):
    def typing(context, a, b):
        return _lanes(_accepted(a), _accepted(b)), _emitter(write)

    return intrinsic(typing)


def _arithmetic(symbol, instruction):
    """Let a Python operator take lanes on either side or on both."""
    apply = _binary(lambda builder, a, b: getattr(builder, instruction)(a, b, flags=("contract",)))

    @overload(symbol)
    def operation(a, b):
        return (lambda a, b: apply(a, b)) if a is _lanes or b is _lanes else None


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")

maximum = _binary(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
minimum = _binary(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


@intrinsic
def choose(context, a, b, x, y):
    """`x` where `a >= b`, else `y`."""

    def write(builder, a, b, x, y):
        return builder.select(builder.fcmp_ordered(">=", a, b), x, y)

    return _lanes(*(_accepted(kind) for kind in (a, b, x, y))), _emitter(write)


@intrinsic
def root(context, x):
    """The square root."""

    def write(builder, x):
        kind = ir.FunctionType(_DOUBLES, [_DOUBLES])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f64")
        return builder.call(function, [x])

    return _lanes(_lanes), _emitter(write)


@intrinsic
def times_power(context, x, n):
    """`x * 2**n`, where n is a whole number plus `1.5 * 2**52` and the result is an ordinary float64."""

    def write(builder, x, n):
        power = builder.shl(builder.bitcast(n, _WORDS), ir.Constant(_WORDS, [52] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(x, _WORDS), power), _DOUBLES)

    return _lanes(_lanes, _lanes), _emitter(write)


def _place(context, builder, kind, array, index):
    """Pointer to the lanes at `index` of a contiguous float64 array, counted in lanes."""
    data = context.make_array(kind)(context, builder, array).data
    offset = builder.mul(index, ir.Constant(ir.IntType(64), LANES))
    return builder.bitcast(builder.gep(data, [offset]), _DOUBLES.as_pointer())


@intrinsic
def load(context, array, index):
    """The lanes at `array[index]`, `array` float64 `[n, 8]`; the index is not checked."""

    def emit(context, builder, signature, values):
        return builder.load(_place(context, builder, signature.args[0], *values), align=8)

    return _lanes(array, types.intp), emit


@intrinsic
def store(context, array, index, value):
    """`array[index] = value`, `array` float64 `[n, 8]`; the index is not checked."""

    def emit(context, builder, signature, values):
        place = _place(context, builder, signature.args[0], *values[:2])
        builder.store(_spread(builder, values[2], signature.args[2]), place, align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _accepted(value)), emit
