"""Vectors of 16 or 32 float32 in compiled code (SIMD): columns of a batch that are computed together.

If the compiler vectorises a loop over arrays, it adds a test for overlapping arrays and a loop for the remainder. For
small agents, both take longer than the work. Compiled functions treat a `Vector` like a number instead.

Each `intrinsic` is called in compiled code without its first argument. Its body runs when Numba compiles the call, with
the types of the arguments. It returns two things: a signature, written as ``result_type(argument_type, ...)``, and
``emit_llvm``, which emits LLVM instructions for ``arguments`` and returns the result. Arrays are float32 and contiguous
along their last axis; bounds are not checked. A vector may begin at any number of an array, so its address is only a
multiple of 4 bytes (``align=4``). Importing this requires Numba.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.extending import models, overload, register_model

from models.machine import inlined

LANES = 16  # numbers in a vector
TILE = 32  # numbers in a vector that fills two registers
intrinsic: Any = extending.intrinsic
_FAST = ("contract", "nsz", "reassoc")


class Vector(types.Type):
    """Numba's type for a vector of ``lanes`` float32."""

    def __init__(self, lanes: int) -> None:
        super().__init__(name=f"Vector({lanes})")
        self.lanes = lanes


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """Tells Numba that a `Vector`, ``kind``, is stored as an LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.FloatType(), kind.lanes))


def _fill(builder: Any, value: Any, lanes: int) -> Any:
    """Emit LLVM instructions that repeat the number ``value`` in all ``lanes`` of a vector, and return the vector. If
    ``value`` is a vector, return it unchanged."""
    if isinstance(value.type, ir.VectorType):
        return value
    undefined = ir.Constant(ir.VectorType(ir.FloatType(), lanes), ir.Undefined)
    first_lane = builder.insert_element(undefined, value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)  # index of the lane that each lane copies
    return builder.shuffle_vector(first_lane, undefined, zeros)


def _vector_or_number(kind: Any) -> Any:
    """Return the type to which Numba converts an argument of the Numba type ``kind``: any number becomes float32."""
    return kind if isinstance(kind, Vector) else types.float32


def _make_zeros(lanes: int) -> Any:
    """Return a Numba intrinsic, a function of compiled code, that returns a vector of ``lanes`` zeros."""

    @intrinsic
    def zeros(typing: Any) -> Any:
        def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _fill(builder, ir.FloatType()(0.0), lanes)

        return Vector(lanes)(), emit_llvm

    return zeros


def _make_read(kind: Any) -> Any:
    """Return a Numba intrinsic, a function of compiled code, that reads a vector or a number of the type ``kind``."""

    @intrinsic
    def read(typing: Any, address: Any) -> Any:
        """Return the vector or the number at the byte address ``address``."""

        def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer_type = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(arguments[0], pointer_type), align=4)

        return kind(types.intp), emit_llvm

    return read


zeros, zero_tile = _make_zeros(LANES), _make_zeros(TILE)
read_number, read_vector, read_tile = map(_make_read, (types.float32, Vector(LANES), Vector(TILE)))


@intrinsic
def write(typing: Any, value: Any, address: Any) -> Any:
    """Write a vector or a number to the byte address ``address``."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, address = arguments
        builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(_vector_or_number(value), types.intp), emit_llvm


@intrinsic
def address(typing: Any, array: Any, *indices: Any) -> Any:
    """Return the byte address of ``array[row, column]`` or ``array[index]``. Indices must not be negative. Loops that
    increment addresses keep them in registers."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_struct = context.make_array(array)(context, builder, arguments[0])
        positions = cgutils.unpack_tuple(builder, arguments[1])
        # Without ``wraparound``, which tests for negative indices, so that LLVM would load the numbers one by one.
        pointer = cgutils.get_item_pointer(context, builder, array, array_struct, positions, wraparound=False)
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.intp(array, types.UniTuple(types.intp, len(indices))), emit_llvm


@inlined
def entry(array, index):  # type: ignore[no-untyped-def]
    """Return the number ``array[index]``."""
    return read_number(address(array, index))


@inlined
def load(array, row, column):  # type: ignore[no-untyped-def]
    """Return the vector ``array[row, column : column + 16]``."""
    return read_vector(address(array, row, column))


@inlined
def store(value, array, *indices):  # type: ignore[no-untyped-def]
    """Store a vector in ``array`` from ``array[row, column]`` or ``array[index]`` on, or a number there."""
    write(value, address(array, *indices))


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """Return the sum of the numbers of a vector."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.FloatType(), [ir.FloatType(), arguments[0].type])
        add = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.vector.reduce.fadd.v{x.lanes}f32")
        # The first argument is the number with which the sum begins.
        return builder.call(add, [ir.FloatType()(0.0), arguments[0]], fastmath=_FAST)

    return types.float32(x), emit_llvm


@intrinsic
def where_less(typing: Any, x: Any, y: Any, if_true: Any, other: Any) -> Any:
    """Return ``if_true`` if x < y, else ``other`` (also if x or y is NaN): elementwise if an argument is a vector."""
    kinds = x, y, if_true, other
    vector_types = [kind for kind in kinds if isinstance(kind, Vector)]
    result_type = vector_types[0] if vector_types else types.float32

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(result_type, Vector):
            arguments = [_fill(builder, value, result_type.lanes) for value in arguments]
        x, y, if_true, other = arguments
        return builder.select(builder.fcmp_ordered("<", x, y), if_true, other)

    return result_type(*map(_vector_or_number, kinds)), emit_llvm


def _define_operator(symbol: Any, method: str) -> None:
    """Define the operator ``symbol`` (of Python's module operator) in compiled code, for two vectors and for a vector
    and a number. ``method`` is the name of the LLVM builder's method that computes it."""

    @intrinsic
    def vector_operator(typing: Any, x: Any, y: Any) -> Any:
        """Return x operator y, elementwise. At least one of them is a vector, the other may be a number."""
        result_type = x if isinstance(x, Vector) else y

        def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            operands = [_fill(builder, value, result_type.lanes) for value in arguments]
            return getattr(builder, method)(*operands, flags=_FAST)

        return result_type(_vector_or_number(x), _vector_or_number(y)), emit_llvm

    @overload(symbol)
    def implementation(x, y):  # type: ignore[no-untyped-def]
        if isinstance(x, Vector) or isinstance(y, Vector):
            return lambda x, y: vector_operator(x, y)
        return None  # these types are not for this implementation


# The operators +, -, *, / and the same in place: in Python ``add`` and ``iadd``, in LLVM ``fadd``.
for _name in ("add", "sub", "mul", "truediv"):
    for _symbol in (_name, f"i{_name}"):
        _define_operator(getattr(operator, _symbol), "fdiv" if _name == "truediv" else f"f{_name}")
