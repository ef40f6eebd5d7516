"""32-bit operations for numba kernels.

numba widens every integer operation to 64 bits, which halves the lanes of a vector register. These map to
one 32-bit machine operation each.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

from llvmlite import ir
from numba import float32, uint32
from numba.extending import intrinsic

__all__ = ["add", "float_bits", "from_bits", "rotate", "shift_left", "shift_right", "sub", "to_float"]


def _binary(name):
    def typing(context, a, b):
        def emit(context, builder, signature, arguments):
            left = context.cast(builder, arguments[0], signature.args[0], uint32)
            right = context.cast(builder, arguments[1], signature.args[1], uint32)
            return getattr(builder, name)(left, right)

        return uint32(a, b), emit

    return intrinsic(typing)


add = _binary("add")  # modulo 2^32
sub = _binary("sub")
shift_left = _binary("shl")
shift_right = _binary("lshr")


@intrinsic
def rotate(context, x, r):
    """x rotated left by r bits."""

    def emit(context, builder, signature, arguments):
        word = context.cast(builder, arguments[0], signature.args[0], uint32)
        left = context.cast(builder, arguments[1], signature.args[1], uint32)
        right = builder.sub(ir.Constant(ir.IntType(32), 32), left)
        return builder.or_(builder.shl(word, left), builder.lshr(word, right))

    return uint32(x, r), emit


@intrinsic
def float_bits(context, x):
    """The bits of a float32."""

    def emit(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return uint32(float32), emit


@intrinsic
def from_bits(context, x):
    """The float32 with these bits."""

    def emit(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return float32(uint32), emit


@intrinsic
def to_float(context, x):
    """The float32 nearest to a *signed* 32-bit word."""

    def emit(context, builder, signature, arguments):
        return builder.sitofp(arguments[0], ir.FloatType())

    return float32(uint32), emit
