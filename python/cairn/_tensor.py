"""A tensor of an opened checkpoint, whose values are read on demand."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Protocol

from cairn._arrays import as_array, bits_dtype, load_numpy, numpy_dtype
from cairn._boxes import Box
from cairn._selection import Selection, select
from cairn._show import size_text
from cairn._tensors import Described

if TYPE_CHECKING:
    from numpy import ndarray


class Source(Protocol):
    """Where tensors come from."""

    def read(self, boxes: list) -> None:
        """Delivers the values of all boxes, verified."""


class Tensor:
    """One tensor of a checkpoint. `t[...]`, `t.numpy()`, `numpy.asarray(t)` and `t.tobytes()` read values.

    An index may have integers, slices with any step, ``...`` and None, as in numpy; only the selected
    elements are read, in the checkpoint's own pieces. Each read returns a new array. numpy lacks bf16 and
    fp8: they become float32, which holds their values exactly. ``t.bits`` returns their bits.

    >>> import cairn
    >>> t = cairn.open("run")["embedding.word.weight"]
    >>> t.dtype, t.shape, t.nbytes
    ('bf16', (50, 16), 1600)
    >>> t[::10, 0].dtype, t.bits[::10, 0].dtype
    (dtype('float32'), dtype('uint16'))

    Reading raises CorruptError naming the file if bytes differ from those saved, OSError, and ValueError if
    the checkpoint is closed.
    """

    def __init__(self, source: Source, described: Described, as_bits: bool = False):
        self._source = source
        self._described = described
        self._as_bits = as_bits

    @property
    def name(self) -> str:
        """The name that `cairn inspect` prints."""
        fqn = self._described.fqn
        return self.parameter if fqn == f"{self.parameter}/{self.role}" else fqn

    @property
    def parameter(self) -> str:
        """The parameter's name without a state dict's prefix: equal for all its roles and in all formats."""
        return self._described.name

    @property
    def role(self) -> str:
        """Its role for the parameter: "weight", "master", "exp_avg", "exp_avg_sq", "momentum_buffer" ..."""
        return self._described.role

    @property
    def dtype(self) -> str:
        """The type in the checkpoint: "fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int64" ...
        "int8", "uint8", "bool", "fp8_e8m0" or "fp4_e2m1_x2" (a byte holds two elements and counts as one)."""
        return bits_dtype(self._described.dtype) if self._as_bits else self._described.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, on however many ranks it was."""
        return self._described.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._described.size

    @property
    def itemsize(self) -> int:
        """Bytes per element in the checkpoint."""
        return self._described.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in the checkpoint, uncompressed. The array of a bf16 tensor has twice as many."""
        return self.size * self.itemsize

    @property
    def bits(self) -> Tensor:
        """The same tensor; bf16 is read as uint16, fp8 as uint8: ``t.bits[:].view(ml_dtypes.bfloat16)``."""
        return Tensor(self._source, self._described, as_bits=True)

    def __getitem__(self, index: Any) -> ndarray:
        """An array of the selected values, or a number, as in numpy. Raises IndexError and TypeError."""
        return self._read(select(self.shape, index))

    def numpy(self) -> ndarray:
        """All values, in the tensor's shape."""
        return self[...]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> ndarray:
        if copy is False:
            raise ValueError("the values are in a file, so an array of them is always a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def item(self) -> Any:
        """The value of a tensor with one element, as a Python number. Raises ValueError for other sizes."""
        if self.size != 1:
            raise ValueError(f"{self.name}: item() needs one element, and the tensor has {self.size}")
        return self.numpy().item()

    def tobytes(self) -> bytes:
        """All elements as they were saved: row-major, little-endian. Needs no numpy."""
        whole = ctypes.create_string_buffer(self.nbytes)
        place = ctypes.addressof(whole)
        number, begin = self._described.number, [0] * self.ndim
        self._source.read([Box(number, begin, self.shape, self.nbytes, place, memory=whole)])
        return whole.raw

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[ndarray]:
        """Yields the rows, and reads them one by one."""
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        fqn, size = self._described.fqn, size_text(self.nbytes)
        return f"<cairn tensor {fqn}: {self.dtype} {list(self.shape)}, {size}>"

    def _read(self, selection: Selection) -> Any:
        np = load_numpy()
        dtype = self.dtype
        out = np.empty(selection.counts, dtype=numpy_dtype(dtype))
        straight = selection.is_box and out.itemsize == self.itemsize
        place = out.ctypes.data if straight else 0

        def deliver(elements: memoryview, offset: Sequence[int], extent: Sequence[int]) -> None:
            places = selection.places(offset, extent)
            if places is not None:
                out[places[0]] = as_array(elements, dtype).reshape(extent)[places[1]]

        self._source.read(
            [
                Box(
                    self._described.number,
                    *box,
                    math.prod(box[1]) * self.itemsize,
                    place,
                    None if straight else deliver,
                    out,
                )
                for box in selection.boxes(self.itemsize)
            ]
        )
        array = out.reshape(selection.result)
        return array[()] if selection.scalar else array
