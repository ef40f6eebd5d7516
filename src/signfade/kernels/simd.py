"""Vector registers for numba kernels: 32-bit words, and eight floats side by side as one number.

numba widens every integer operation to 64 bits, which halves the lanes of a register; the operations on words
map to one 32-bit machine operation each. A vector holds eight float32 or float64; `+ - * /` work lane by
lane, with plain numbers too. Every lane runs through the same instructions, so its result does not depend on
what stands in the others. A product and the sum it goes into may be fused.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import operator

from llvmlite import ir
from numba import float32, types, uint32
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

__all__ = [
    *("add", "float_bits", "from_bits", "rotate", "shift_left", "shift_right", "sub", "to_float"),
    *("WIDTH", "choose", "lane_butterflies", "load", "maximum", "minimum", "root", "store", "times_power"),
]

WIDTH = 8


def _word_operation(name):
    def typing(context, a, b):
        def emit(context, builder, signature, arguments):
            left = context.cast(builder, arguments[0], signature.args[0], uint32)
            right = context.cast(builder, arguments[1], signature.args[1], uint32)
            return getattr(builder, name)(left, right)

        return uint32(a, b), emit

    return intrinsic(typing)


def _conversion(name, source, target, llvm):
    def typing(context, x):
        def emit(context, builder, signature, arguments):
            return getattr(builder, name)(arguments[0], llvm)

        return target(source), emit

    return intrinsic(typing)


add = _word_operation("add")  # modulo 2^32
sub = _word_operation("sub")
shift_left = _word_operation("shl")
shift_right = _word_operation("lshr")
float_bits = _conversion("bitcast", float32, uint32, ir.IntType(32))
from_bits = _conversion("bitcast", uint32, float32, ir.FloatType())
to_float = _conversion("sitofp", uint32, float32, ir.FloatType())  # of a *signed* 32-bit word


@intrinsic
def rotate(context, x, r):
    """x rotated left by r bits."""

    def emit(context, builder, signature, arguments):
        word = context.cast(builder, arguments[0], signature.args[0], uint32)
        left = context.cast(builder, arguments[1], signature.args[1], uint32)
        right = builder.sub(ir.Constant(ir.IntType(32), 32), left)
        return builder.or_(builder.shl(word, left), builder.lshr(word, right))

    return uint32(x, r), emit


_FLOATS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_WORDS64 = ir.VectorType(ir.IntType(64), WIDTH)


class _VectorType(types.Type):
    def __init__(self, dtype):
        super().__init__(name=f"Vector({dtype})")
        self.dtype = dtype


_VECTORS = {dtype: _VectorType(dtype) for dtype in _FLOATS}


def _llvm(kind):
    return ir.VectorType(_FLOATS[kind.dtype], WIDTH)


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _llvm(kind))


def _accepted(kind, vector):
    """The type under which an argument enters: a vector, or one number for all lanes."""
    return kind if kind is vector else vector.dtype


def _spread(builder, value, kind, vector):
    """A number in all lanes."""
    if kind is vector:
        return value
    nothing = ir.Constant(_llvm(vector), ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(first, nothing, zeros)


def _operation(write, *kinds):
    """What numba needs of an operation on vectors; `write(builder, *vectors)` is its instructions."""
    vector = next(kind for kind in kinds if isinstance(kind, _VectorType))

    def emit(context, builder, signature, values):
        args = zip(values, signature.args, strict=True)
        return write(builder, *(_spread(builder, value, kind, vector) for value, kind in args))

    return vector(*(_accepted(kind, vector) for kind in kinds)), emit


def _binary(write):
    return intrinsic(lambda context, a, b: _operation(write, a, b))


def _arithmetic(symbol, instruction):
    """Let a Python operator take vectors on either side or on both."""
    apply = _binary(lambda builder, a, b: getattr(builder, instruction)(a, b, flags=("contract",)))

    @overload(symbol)
    def operation(a, b):
        ours = isinstance(a, _VectorType) or isinstance(b, _VectorType)
        return (lambda a, b: apply(a, b)) if ours else None


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

    return _operation(write, a, b, x, y)


@intrinsic
def root(context, x):
    """The square root of a vector of float64."""

    def write(builder, x):
        kind = ir.FunctionType(x.type, [x.type])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{WIDTH}f64")
        return builder.call(function, [x])

    return _operation(write, x)


@intrinsic
def times_power(context, x, n):
    """`x * 2**n`, where n is a whole number plus `1.5 * 2**52` and the result is an ordinary float64."""

    def write(builder, x, n):
        power = builder.shl(builder.bitcast(n, _WORDS64), ir.Constant(_WORDS64, [52] * WIDTH))
        return builder.bitcast(builder.add(builder.bitcast(x, _WORDS64), power), x.type)

    return _operation(write, x, n)


def _place(context, builder, kind, array, index):
    """Pointer to the lanes at `index`: of a flat array by its entries, of an array `[n, 8]` by its rows."""
    data = context.make_array(kind)(context, builder, array).data
    if kind.ndim == 2:
        index = builder.mul(index, ir.Constant(ir.IntType(64), WIDTH))
    return builder.bitcast(builder.gep(data, [index]), _llvm(_VECTORS[kind.dtype]).as_pointer())


@intrinsic
def load(context, array, index):
    """Entries index ... index + 7 of a flat array, or row `index` of an array `[n, 8]`; not checked."""

    def emit(context, builder, signature, values):
        kind = signature.args[0]
        return builder.load(_place(context, builder, kind, *values), align=kind.dtype.bitwidth // 8)

    return _VECTORS[array.dtype](array, types.intp), emit


@intrinsic
def store(context, array, index, value):
    """Put a vector, or one number in all lanes, where `load` would take it from."""
    vector = _VECTORS[array.dtype]

    def emit(context, builder, signature, values):
        kind = signature.args[0]
        place = _place(context, builder, kind, *values[:2])
        stored = _spread(builder, values[2], signature.args[2], vector)
        builder.store(stored, place, align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _accepted(value, vector)), emit


@intrinsic
def lane_butterflies(context, x):
    """The Walsh-Hadamard transform of the eight lanes."""

    def emit(context, builder, signature, values):
        kind = _llvm(signature.args[0])
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
