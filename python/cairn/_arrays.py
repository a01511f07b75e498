"""Values as numpy arrays. numpy is imported when the first values are asked for.

numpy has no bf16 and no fp8: they become float32, which holds each of their values exactly, NaN with its payload included.
Of fp8_e8m0 and fp4_e2m1_x2, the scales and numbers of quantized blocks, it gets the bits.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import numpy

_SAME = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "uint16": "uint16",  # the bits of bf16
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
    "fp8_e8m0": "uint8",
    "fp4_e2m1_x2": "uint8",
}
_WIDENED = {
    "bf16": "uint16",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
    "fp8_e8m0": "uint8",
    "fp4_e2m1_x2": "uint8",
}  # and the types that hold their bits
_OF_TORCH = {"bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def load_numpy() -> Any:
    """Raises ImportError with a remedy."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(
            "values as arrays need numpy: pip install numpy (names, shapes and .tobytes() do without)"
        ) from error
    return numpy


def numpy_dtype(dtype: str) -> str:
    """What numpy calls the arrays of this type of a checkpoint."""
    return _SAME.get(dtype, "float32")


def bits_dtype(dtype: str) -> str:
    """The type that holds the bits of an element if numpy has no such type; otherwise the type itself."""
    return _WIDENED.get(dtype, dtype)


def as_array(elements: Union[bytes, memoryview], dtype: str) -> numpy.ndarray:
    """The elements in one dimension. dtype: as a checkpoint names it."""
    np = load_numpy()
    if dtype in _SAME:
        return np.frombuffer(elements, dtype=_SAME[dtype])
    return _WIDENERS[dtype](np, np.frombuffer(elements, dtype=_WIDENED[dtype]))


def as_array_of_torch(elements: bytes, dtype: str) -> numpy.ndarray:
    """The same. dtype: as torch names it. Raises ValueError for one that numpy does not have."""
    if dtype in _OF_TORCH:
        return as_array(elements, _OF_TORCH[dtype])
    np = load_numpy()
    try:
        return np.frombuffer(elements, dtype=dtype).copy()
    except TypeError:
        raise ValueError(f"a tensor of the type torch.{dtype}, which numpy does not have") from None


def _of_bf16(np: Any, bits: Any) -> Any:
    return (bits.astype("uint32") << 16).view("float32")


def _of_e5m2(np: Any, bits: Any) -> Any:
    """It is the first byte of an fp16."""
    return (bits.astype("uint16") << 8).view("float16").astype("float32")


def _of_e4m3(np: Any, bits: Any) -> Any:
    return np.array(_e4m3_values(), dtype="float32")[bits]


@functools.lru_cache(maxsize=None)
def _e4m3_values() -> tuple:
    """All 256 values: no infinity, and NaN if all bits but the sign are 1."""

    def value(bits: int) -> float:
        sign, exponent, mantissa = bits >> 7, bits >> 3 & 15, bits & 7
        if exponent == 15 and mantissa == 7:
            size = float("nan")
        else:
            size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        return -size if sign else size

    return tuple(map(value, range(256)))


_WIDENERS = {"bf16": _of_bf16, "fp8_e4m3": _of_e4m3, "fp8_e5m2": _of_e5m2}
