"""Vectors of 16 numbers in compiled code (SIMD): columns of a batch that are computed together.

If the compiler vectorises a loop over arrays, it adds a test for overlapping arrays and a loop for the remainder. For
small agents, both take longer than the work. Compiled functions treat a `Vector` as a number in registers.

Each `intrinsic` is called in compiled code without its first argument. Its body runs when Numba compiles the call: it
returns the types of result and arguments, and ``emit_llvm``, which emits LLVM instructions for ``arguments`` and
returns the result. Arrays are float32 and contiguous along their last axis; bounds are not checked. A vector may begin
at any number of an array, so its address is only a multiple of 4 bytes (``align=4``). Importing this requires Numba.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.extending import models, overload, register_model

from models.machine import inlined

LANES = 16
intrinsic: Any = extending.intrinsic
_VECTOR, _FAST = ir.VectorType(ir.FloatType(), LANES), ("contract", "nsz", "reassoc")


class Vector(types.Type):
    """Numba's type for a vector of 16 float32."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


VECTOR = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """Numba's description of how a `Vector` is stored: as an LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _entry_pointer(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Return a pointer to ``array[index]`` or ``array[row, column]``. ``arguments`` are the array and a tuple of its
    indices, which must not be negative. ``kinds`` are their types."""
    array_struct = context.make_array(kinds[0])(context, builder, arguments[0])
    indices = cgutils.unpack_tuple(builder, arguments[1])
    # Without ``wraparound``, which tests for negative indices, so that LLVM would load the numbers one by one.
    return cgutils.get_item_pointer(context, builder, kinds[0], array_struct, indices, wraparound=False)


@intrinsic
def load(typing: Any, array: Any, *indices: Any) -> Any:
    """Return the vector ``array[row, column : column + 16]``, or ``array[index : index + 16]``."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _entry_pointer(context, builder, signature.args, arguments)
        return builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)

    return VECTOR(array, types.UniTuple(types.intp, len(indices))), emit_llvm


@intrinsic
def store(typing: Any, value: Any, array: Any, *indices: Any) -> Any:
    """Store a vector, ``array[row, column : column + 16] = value``, or a number, ``array[index] = value``."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _entry_pointer(context, builder, signature.args[1:], arguments[1:])
        if signature.args[0] == VECTOR:
            pointer = builder.bitcast(pointer, _VECTOR.as_pointer())
        builder.store(arguments[0], pointer, align=4)
        return context.get_dummy_value()

    kind = VECTOR if value == VECTOR else types.float32
    return types.void(kind, array, types.UniTuple(types.intp, len(indices))), emit_llvm


@intrinsic
def splat(typing: Any, x: Any) -> Any:
    """Return a vector with the number x in each of its 16 lanes. If x is a vector, return it unchanged."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0] if signature.args[0] == VECTOR else _emit_splat(builder, arguments[0])

    return VECTOR(x if x == VECTOR else types.float32), emit_llvm


def _emit_splat(builder: Any, value: Any) -> Any:
    """Emit LLVM instructions for a vector with the float ``value`` in each of its 16 lanes, and return the vector:
    insert ``value`` into lane 0, then copy lane 0 to all lanes."""
    vector = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.IntType(32)(0))
    source_lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(vector, ir.Constant(_VECTOR, ir.Undefined), source_lanes)


@intrinsic
def entry(typing: Any, array: Any, *indices: Any) -> Any:
    """Return ``array[row, column]`` or ``array[index]``. Indices must not be negative."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_entry_pointer(context, builder, signature.args, arguments))

    return types.float32(array, types.UniTuple(types.intp, len(indices))), emit_llvm


@inlined
def spread(array, index):  # type: ignore[no-untyped-def]
    """Return a vector with ``array[index]`` in each of its 16 lanes. ``index`` must not be negative."""
    return splat(entry(array, index))


@intrinsic
def address(typing: Any, array: Any, *indices: Any) -> Any:
    """Return the byte address of ``array[row, column]`` or ``array[index]``. Loops that increment addresses keep them
    in registers."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(_entry_pointer(context, builder, signature.args, arguments), ir.IntType(64))

    return types.intp(array, types.UniTuple(types.intp, len(indices))), emit_llvm


@intrinsic
def load_from(typing: Any, address: Any) -> Any:
    """Return the vector of the 16 float32 that begin at the byte address ``address``."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _VECTOR.as_pointer()), align=4)

    return VECTOR(types.intp), emit_llvm


@intrinsic
def spread_from(typing: Any, address: Any) -> Any:
    """Return a vector with the float32 at the byte address ``address`` in each of its 16 lanes."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.FloatType().as_pointer())
        return _emit_splat(builder, builder.load(pointer, align=4))

    return VECTOR(types.intp), emit_llvm


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """Return the sum of the 16 numbers of a vector."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _VECTOR])
        add = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.vector.reduce.fadd.v{LANES}f32")
        initial_sum = ir.FloatType()(0.0)
        return builder.call(add, [initial_sum, arguments[0]], fastmath=_FAST)

    return types.float32(VECTOR), emit_llvm


@intrinsic
def totals(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the sums of four vectors as a tuple, in little more time than one sum."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def fold(pair: Any, size: int, length: int) -> Any:
            """Join the two vectors of ``pair``, and keep the first ``length`` numbers. Divide them into blocks of
            ``size`` numbers, and add the second half of each block to its first half. Return these sums, a vector of
            ``length // 2`` numbers."""
            first_halves = [lane for lane in range(length) if lane % size < size // 2]
            second_halves = [lane for lane in range(length) if lane % size >= size // 2]
            halves = []
            for lanes in (first_halves, second_halves):
                order = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
                halves.append(builder.shuffle_vector(pair[0], pair[1], order))
            return builder.fadd(*halves, flags=_FAST)

        folded_ab = fold(arguments[:2], LANES, 2 * LANES)  # 8 numbers with the sum of a, then 8 with the sum of b
        folded_cd = fold(arguments[2:], LANES, 2 * LANES)  # 8 for c, then 8 for d
        folded, size = fold((folded_ab, folded_cd), LANES // 2, 2 * LANES), LANES // 4  # 4 for each of a, b, c, d
        while size > 1:  # 2 for each, then 1; `fold` needs a pair, but keeps only numbers of the first vector
            folded, size = fold((folded, folded), size, 4 * size), size // 2
        elements = [builder.extract_element(folded, ir.IntType(32)(k)) for k in range(4)]
        return context.make_tuple(builder, signature.return_type, elements)

    return types.UniTuple(types.float32, 4)(VECTOR, VECTOR, VECTOR, VECTOR), emit_llvm


@intrinsic
def _where_less_vectors(typing: Any, x: Any, y: Any, if_true: Any, other: Any) -> Any:
    """Return ``if_true`` if x < y, else ``other``, elementwise for vectors."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments[:2]), *arguments[2:])

    return VECTOR(VECTOR, VECTOR, VECTOR, VECTOR), emit_llvm


def where_less(x, y, if_true, other):  # type: ignore[no-untyped-def]
    """Return ``if_true`` if x < y, else ``other`` (also if one is NaN), for numbers or elementwise for vectors. Only
    compiled code can call it: `_where_less` is the implementation."""


@overload(where_less)
def _where_less(x, y, if_true, other):  # type: ignore[no-untyped-def]
    """Return the implementation of `where_less` for these types. If one argument is a vector, arguments that are
    numbers are repeated 16 times."""
    if VECTOR in (x, y, if_true, other):
        return lambda x, y, if_true, other: _where_less_vectors(splat(x), splat(y), splat(if_true), splat(other))
    return lambda x, y, if_true, other: if_true if x < y else other


@intrinsic
def where_better(typing: Any, x: Any, y: Any, if_true: Any, other: Any) -> Any:
    """Return ``if_true`` if an argmax prefers x to y, else ``other``, elementwise for vectors. NaN counts as the
    largest number, as in torch."""

    def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, if_true, other = arguments
        is_nan_x, is_number_y = builder.fcmp_unordered("uno", x, x), builder.fcmp_ordered("ord", y, y)
        is_better = builder.or_(builder.fcmp_ordered(">", x, y), builder.and_(is_nan_x, is_number_y))
        return builder.select(is_better, if_true, other)

    return VECTOR(VECTOR, VECTOR, VECTOR, VECTOR), emit_llvm


def _define_operator(symbol: Any, method: str) -> None:
    """Define the operator ``symbol`` (of Python's module operator) in compiled code, for two vectors and for a vector
    and a number. ``method`` is the name of the LLVM builder's method that computes it."""

    @intrinsic
    def vector_operator(typing: Any, x: Any, y: Any) -> Any:
        def emit_llvm(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, method)(*arguments, flags=_FAST)

        return VECTOR(VECTOR, VECTOR), emit_llvm

    @overload(symbol)
    def implementation(x, y):  # type: ignore[no-untyped-def]
        if VECTOR in (x, y):
            return lambda x, y: vector_operator(splat(x), splat(y))
        return None  # these types are not for this implementation


for _name in ("add", "sub", "mul", "truediv"):
    for _symbol in (_name, f"i{_name}"):
        _define_operator(getattr(operator, _symbol), "fdiv" if _name == "truediv" else f"f{_name}")
