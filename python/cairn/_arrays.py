"""Values as numpy arrays. numpy is imported when values are first read.

numpy has neither bf16 nor fp8. They become float32, which holds each of their values exactly, including NaN
with its payload. fp8_e8m0 and fp4_e2m1_x2, the scales and numbers of quantized blocks, are returned as bits.
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
_WIDENED = {  # types that numpy lacks, and the types that hold their bits
    "bf16": "uint16",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
    "fp8_e8m0": "uint8",
    "fp4_e2m1_x2": "uint8",
}
_OF_TORCH = {"bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def load_numpy() -> Any:
    """Raises ImportError that names the package to install."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(
            "arrays need numpy: pip install numpy (names, shapes and .tobytes() work without it)"
        ) from error
    return numpy


def numpy_dtype(dtype: str) -> str:
    """numpy's name for the arrays that hold a checkpoint's type."""
    return _SAME.get(dtype, "float32")


def bits_dtype(dtype: str) -> str:
    """The type that holds an element's bits if numpy lacks the type; otherwise the type itself."""
    return _WIDENED.get(dtype, dtype)


def as_array(elements: Union[bytes, memoryview], dtype: str) -> numpy.ndarray:
    """The elements as an array of one dimension. dtype: the checkpoint's name of the type."""
    np = load_numpy()
    if dtype in _SAME:
        return np.frombuffer(elements, dtype=_SAME[dtype])
    return _WIDENERS[dtype](np, np.frombuffer(elements, dtype=_WIDENED[dtype]))


def as_array_of_torch(elements: bytes, dtype: str) -> numpy.ndarray:
    """As as_array, but `dtype` is torch's name of the type. Raises ValueError if numpy lacks it."""
    if dtype in _OF_TORCH:
        return as_array(elements, _OF_TORCH[dtype])
    np = load_numpy()
    try:
        return np.frombuffer(elements, dtype=dtype).copy()
    except TypeError:
        raise ValueError(f"the tensor has type torch.{dtype}, which numpy lacks") from None


def _of_bf16(np: Any, bits: Any) -> Any:
    return (bits.astype("uint32") << 16).view("float32")


def _of_e5m2(np: Any, bits: Any) -> Any:
    """fp8_e5m2 is the first byte of an fp16."""
    return (bits.astype("uint16") << 8).view("float16").astype("float32")


def _of_e4m3(np: Any, bits: Any) -> Any:
    return np.array(_e4m3_values(), dtype="float32")[bits]


@functools.lru_cache(maxsize=None)
def _e4m3_values() -> tuple:
    """All 256 values. The type has no infinity; NaN has all bits but the sign set."""

    def value(bits: int) -> float:
        sign, exponent, mantissa = bits >> 7, bits >> 3 & 15, bits & 7
        if exponent == 15 and mantissa == 7:
            size = float("nan")
        else:
            size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        return -size if sign else size

    return tuple(map(value, range(256)))


_WIDENERS = {"bf16": _of_bf16, "fp8_e4m3": _of_e4m3, "fp8_e5m2": _of_e5m2}
