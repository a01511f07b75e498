"""A tensor of an opened checkpoint, whose values are read when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Protocol

from cairn._arrays import as_array, bits_dtype, load_numpy, numpy_dtype
from cairn._dtypes import ITEMSIZE
from cairn._selection import Selection, select
from cairn._show import size_text
from cairn._windows import Box

if TYPE_CHECKING:
    from numpy import ndarray


class Source(Protocol):
    """Where tensors come from."""

    def read(self, boxes: list) -> None:
        """Delivers the values of all boxes, verified."""


class Tensor:
    """One tensor of a checkpoint. Nothing is read before ``t[...]``, ``t.numpy()``, ``numpy.asarray(t)`` or ``t.tobytes()``.

    An index may have integers, slices with any step, ``...`` and None, with numpy's meaning; only the selected elements are
    read, in the checkpoint's own pieces. Each read gives a new array. bf16 and fp8, which numpy does not have, become float32, which
    holds their values exactly; ``t.bits`` has them as they are.

    >>> import cairn
    >>> t = cairn.open("run")["embedding.word.weight"]
    >>> t.dtype, t.shape, t.nbytes
    ('bf16', (50, 16), 1600)
    >>> t[::10, 0].dtype, t.bits[::10, 0].dtype
    (dtype('float32'), dtype('uint16'))

    Reading raises CorruptError naming the file if bytes differ from those saved; OSError; ValueError if the checkpoint is closed.
    """

    def __init__(self, source: Source, number: int, described: dict, as_bits: bool = False):
        self._source = source
        self._number = number
        self._described = described
        self._as_bits = as_bits

    @property
    def name(self) -> str:
        """As `cairn inspect` prints it."""
        return (
            self.parameter
            if self._described["fqn"] == f"{self.parameter}/{self.role}"
            else self._described["fqn"]
        )

    @property
    def parameter(self) -> str:
        """The same for all states of a parameter, and for it in every format: without the prefix of a state dict."""
        return self._described["name"]

    @property
    def role(self) -> str:
        """What it is of the parameter: "weight", "master", "exp_avg", "exp_avg_sq", "momentum_buffer" ..."""
        return self._described["role"]

    @property
    def dtype(self) -> str:
        """In the checkpoint: "fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int64" ... "int8", "uint8", "bool",
        "fp8_e8m0" or "fp4_e2m1_x2" (two elements in a byte, which counts as one)."""
        return bits_dtype(self._described["dtype"]) if self._as_bits else self._described["dtype"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor, however many ranks have cut it."""
        return tuple(self._described["shape"])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the checkpoint."""
        return ITEMSIZE[self._described["dtype"]]

    @property
    def nbytes(self) -> int:
        """In the checkpoint, uncompressed; the array of a bf16 tensor has twice as many."""
        return self.size * self.itemsize

    @property
    def bits(self) -> Tensor:
        """The same tensor, whose bf16 are read as uint16 and whose fp8 as uint8: bit for bit, ``t.bits[:].view(ml_dtypes.bfloat16)``."""
        return Tensor(self._source, self._number, self._described, as_bits=True)

    def __getitem__(self, index: Any) -> ndarray:
        """An array of the selected values; a number if numpy would give one. Raises IndexError and TypeError as numpy does."""
        return self._read(select(self.shape, index))

    def numpy(self) -> ndarray:
        """All values, in the tensor's shape."""
        return self[...]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> ndarray:
        if copy is False:
            raise ValueError("the values are in a file: an array of them is always a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def item(self) -> Any:
        """The only value, as a number of Python. Raises ValueError if there is not exactly one."""
        if self.size != 1:
            raise ValueError(f"{self.name}: item() of a tensor with {self.size} elements")
        return self.numpy().item()

    def tobytes(self) -> bytes:
        """All elements as they were saved: row-major, little-endian. Needs no numpy."""
        whole = bytearray(self.nbytes)
        strides = [math.prod(self.shape[at + 1 :]) for at in range(self.ndim)]

        def deliver(elements: memoryview, offset: Sequence[int], extent: Sequence[int]) -> None:
            begin = sum(at * stride for at, stride in zip(offset, strides)) * self.itemsize
            whole[begin : begin + len(elements)] = elements  # a part is a run: only whole rows are split

        self._source.read([Box(self._number, [0] * self.ndim, self.shape, self.itemsize, deliver)])
        return bytes(whole)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[ndarray]:
        """Rows, each read by itself."""
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        return f"<cairn tensor {self._described['fqn']}: {self.dtype} {list(self.shape)}, {size_text(self.nbytes)}>"

    def _read(self, selection: Selection) -> Any:
        np = load_numpy()
        dtype = self.dtype
        out = np.empty(selection.counts, dtype=numpy_dtype(dtype))

        def deliver(elements: memoryview, offset: Sequence[int], extent: Sequence[int]) -> None:
            places = selection.places(offset, extent)
            if places is not None:
                out[places[0]] = as_array(elements, dtype).reshape(extent)[places[1]]

        self._source.read(
            [
                Box(self._number, offset, extent, self.itemsize, deliver)
                for offset, extent in selection.boxes(self.itemsize)
            ]
        )
        array = out.reshape(selection.result)
        return array[()] if selection.scalar else array
