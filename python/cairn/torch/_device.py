"""Copies tensors into shared memory: on two threads while the caller waits, on one later, or by a GPU.

Also copies what was loaded to a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Callable, NamedTuple, Optional

import torch

from cairn._boxes import BUFFER_BYTES, Buffer
from cairn.torch import _private, _sums

_BATCH = 32 << 20  # bytes between two reports
_THREADS = 2  # a single thread does not use all of the memory's bandwidth
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_libc = ctypes.CDLL(None, use_errno=True)  # its calls release the GIL


class Piece(NamedTuple):
    """name: for errors. target: where to copy it; None: nowhere. later: copied while training continues;
    whoever changes it waits for the copy. shared: its (group, part), if other ranks have a copy of it.
    """

    name: str
    source: torch.Tensor
    target: Optional[torch.Tensor]
    later: bool = False
    shared: Optional[tuple[str, str]] = None


class Copying:
    """A copy of pieces, in order. ``future``: done when all sources may change.

    ``sums``: of the pieces that are shared, by group and part; complete when the future is done.

    populated: set once every page of the targets' memory exists; None: all pages exist.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        gpu: Optional["Gpu"] = None,
        populated: Optional[threading.Event] = None,
    ):
        self.future: Future = Future()
        self.sums: dict[tuple[str, str], int] = {}
        self._process = os.getpid()
        self._pieces = pieces
        self._gpu = gpu
        self._populated = populated
        self._event: Any = None
        self._rest: Optional[Callable[[], None]] = None  # the part of start that join() does
        self._lock = threading.Lock()  # guards the next two
        self._copied = 0
        self._heard: Optional[Callable[[int], None]] = None

    def follow(self, heard: Callable[[int], None]) -> None:
        """Calls heard(n) each time the first n pieces are copied: on any thread, maybe twice for one n."""
        with self._lock:
            self._heard, copied = heard, self._copied
        if copied:
            heard(copied)

    def start(self) -> None:
        """Starts the copy. Then call join(). Errors go to the future."""
        fresh = self._populated is not None and not self._populated.is_set()
        with self._failing():
            if self._gpu is not None and self._pieces:
                events, sums = self._gpu.copy(self._pieces)
                self._event = events[-1][1]
                self._finish(self._gpu.reached(events, lambda: self.sums.update(sums())))
            elif any(piece.later for piece in self._pieces):
                self._rest = lambda: self._finish(_copy_later(self._pieces, fresh, self.sums))
            else:
                copied = _copy_now(self._pieces, fresh, self.sums)
                self._rest = lambda: self._go(copied)

    def join(self) -> None:
        """Returns when all pieces not marked `later` are copied; on a GPU, at once."""
        rest, self._rest = self._rest, None
        if rest is not None:
            with self._failing():
                rest()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # even an interrupt: steps and saves wait for the future
            if not self.future.done():
                self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def wait(self) -> None:
        """Makes this thread's next work, on the CPU or on its current stream, wait for the copy.

        Returns at once on a GPU, and in a forked child: the parent copies its own memory.
        """
        if self._process != os.getpid():
            return
        if self._event is not None and self._gpu is not None:
            self._gpu.hold_current_stream(self._event)
        else:
            wait([self.future])

    def _finish(self, copied: Iterator[int]) -> None:
        threading.Thread(target=self._go, args=(copied,), name="cairn-copy", daemon=True).start()

    def _go(self, copied: Iterator[int]) -> None:
        with self._failing():
            for count in copied:
                with self._lock:
                    self._copied, heard = count, self._heard
                if heard is not None:
                    heard(count)
            self._pieces = ()
            if self._populated is not None:
                self._populated.set()
            self.future.set_result(None)


def _batches(pieces: Sequence[Piece]) -> Iterator[int]:
    """The end of each batch, as a number of pieces."""
    size = 0
    for number, piece in enumerate(pieces, 1):
        size += piece.source.nbytes
        if size >= _BATCH or number == len(pieces):
            yield number
            size = 0


def _copy_now(pieces: Sequence[Piece], fresh: bool, sums: dict) -> Iterator[int]:
    ends = list(_batches(pieces))
    pool = ThreadPoolExecutor(_THREADS, "cairn-copy")
    copies = [_submit(pool, pieces[begin:end], fresh, sums) for begin, end in zip([0, *ends], ends)]
    return _copied_by(pool, ends, copies)


def _copied_by(pool: ThreadPoolExecutor, ends: Sequence[int], copies: Sequence[Future]) -> Iterator[int]:
    try:
        for end, copied in zip(ends, copies):
            copied.result()
            yield end
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, pieces: Sequence[Piece], fresh: bool, sums: dict) -> Future:
    try:
        return pool.submit(_copy, pieces, fresh, sums)
    except RuntimeError:  # no thread can start while Python exits
        _copy(pieces, fresh, sums)
    done: Future = Future()
    done.set_result(None)
    return done


def _copy(pieces: Sequence[Piece], fresh: bool, sums: dict) -> None:
    for piece in pieces:
        if piece.target is not None:
            if fresh:
                populate(piece.target)
            copy_on_one_thread(piece.source, piece.target)
    shared = [piece for piece in pieces if piece.shared is not None]
    sums.update(zip([piece.shared for piece in shared], _sums.sums([piece.source for piece in shared])))


def _copy_later(pieces: Sequence[Piece], fresh: bool, sums: dict) -> Iterator[int]:
    """Copies the pieces not marked `later` now. torch's version counters show whether the others change."""
    _copy([piece for piece in pieces if not piece.later], fresh, sums)
    versions = [piece.source._version for piece in pieces]
    return _copy_quietly(pieces, versions, fresh, sums)


def _copy_quietly(
    pieces: Sequence[Piece], versions: Sequence[int], fresh: bool, sums: dict
) -> Iterator[int]:
    begin = 0
    for end in _batches(pieces):
        _copy([piece for piece in pieces[begin:end] if piece.later], fresh, sums)
        for piece, version in zip(pieces[begin:end], versions[begin:end]):
            if piece.later and piece.source._version != version:
                raise RuntimeError(
                    f"{piece.name} was changed while it was copied, not by one of the given optimizers"
                )
        yield end
        begin = end


def populate(memory: torch.Tensor) -> bool:
    """Allocates and maps all pages of shared memory, at a fraction of the cost of a fault per page.

    Returns False if the kernel cannot. Raises OSError if memory runs out, where a write would be a SIGBUS.
    """
    skipped = memory.data_ptr() % mmap.PAGESIZE
    begin, size = ctypes.c_void_p(memory.data_ptr() - skipped), ctypes.c_size_t(memory.nbytes + skipped)
    if not memory.nbytes or _libc.madvise(begin, size, _POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() == errno.EINVAL:
        return False
    raise OSError(errno.ENOSPC, "no shared memory for a save")


def with_memory(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if it has memory; for a wrapper around one of its own shape and type (as in float8
    trainings), that one.

    Raises TypeError or ValueError for a tensor without memory of its own: another wrapper (such as one of
    quantized weights), a fake tensor, or one whose storage was freed.
    """
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        tensor = _wrapped(_private.waited_for(tensor))
        if not _has_storage(tensor):
            raise TypeError(
                f"{name}: a {type(tensor).__name__}, which has no memory of its own; give its inner tensors"
            )
    if tensor.numel() == 0:
        return tensor
    storage = tensor.untyped_storage()
    strides = zip(tensor.shape, tensor.stride())
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in strides)
    if storage.nbytes() < (last + 1) * tensor.dtype.itemsize:
        raise ValueError(
            f"{name}: its storage has {storage.nbytes()} bytes, "
            f"too few for its shape {list(tensor.shape)}: it was freed or resized"
        )
    return tensor


def _wrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside a wrapper, which may also hold numbers computed from it, such as its scale."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    alike = [part for part in inner if part.shape == tensor.shape and part.dtype == tensor.dtype]
    only_one = len(alike) == 1 and all(part is alike[0] or part.dim() == 0 for part in inner)
    return alike[0] if only_one else tensor


def _has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor of a subclass has memory."""
    try:
        storage = tensor.untyped_storage()
        return tensor.numel() == 0 or (storage.device.type != "meta" and storage.data_ptr() != 0)
    except (RuntimeError, NotImplementedError):
        return False


def copy_values(source: torch.Tensor, target: torch.Tensor) -> None:
    """target.copy_(source). To a GPU it only begins: see PinnedBuffer."""
    if target.is_cuda:
        with torch.no_grad():
            target.copy_(source, non_blocking=True)
    else:
        copy_on_one_thread(source, target)


def copy_on_one_thread(source: torch.Tensor, target: torch.Tensor) -> None:
    """target.copy_(source) on one thread. copy_'s own threads wait for each other if cores are busy.

    That took 2.1 GB/s on two busy cores; one thread copies 10 GB/s.
    """
    if source.dtype == target.dtype and is_plain(source) and is_plain(target):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        with torch.no_grad():
            target.copy_(source)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory has its values in row-major order, and the CPU can write them."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Gpu:
    """Copies on a stream that the current one does not wait for. cuda: torch.cuda, or a test's double."""

    def __init__(self, cuda: Any = torch.cuda):
        self._cuda = cuda
        self._stream = cuda.Stream()

    def register(self, buffer: torch.Tensor) -> None:
        """Pins shared memory until `unregister`: copies into pageable memory are slower and block."""
        status = self._cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
        self._check(status, "cudaHostRegister")

    def unregister(self, buffer: torch.Tensor) -> None:
        self._check(self._cuda.cudart().cudaHostUnregister(buffer.data_ptr()), "cudaHostUnregister")

    def copy(self, pieces: Sequence[Piece]) -> tuple[list, Callable[[], dict]]:
        """Starts the copy. Returns (number of pieces so far, event of their copy) for each batch, and a
        function that returns the sums of the shared pieces after the last event.
        """
        self._stream.wait_stream(self._cuda.current_stream())  # it may still write the sources
        begin, events = 0, []
        sums = Sums()
        with self._cuda.stream(self._stream), torch.no_grad():
            for end in _batches(pieces):
                for piece in pieces[begin:end]:
                    if piece.target is not None:
                        piece.target.copy_(piece.source, non_blocking=True)
                    if piece.shared is not None:
                        sums.add(piece.shared, piece.source)
                    if piece.source.is_cuda:  # its memory must not be used again before the copy
                        piece.source.record_stream(self._stream)
                begin = end
                if end == len(pieces):
                    sums.deliver()
                event = self._cuda.Event()
                event.record(self._stream)
                events.append((end, event))
        return events, sums.found

    @staticmethod
    def reached(events: list, last: Callable[[], None]) -> Iterator[int]:
        """Yields each number of pieces after its event. Before the last one it calls `last`."""
        for count, event in events:
            event.synchronize()
            if event is events[-1][1]:
                last()
            yield count

    def hold_current_stream(self, event: Any) -> None:
        self._cuda.current_stream().wait_event(event)

    @staticmethod
    def _check(status: Any, what: str) -> None:
        if int(status) != 0:
            raise RuntimeError(f"{what}: CUDA error {int(status)}")


class Sums:
    """Sums of tensors, those on a GPU computed there and brought to the CPU by one transfer."""

    def __init__(self) -> None:
        self._on_cpu: dict = {}
        self._names: list = []
        self._on_gpu: list[torch.Tensor] = []
        self._delivered = torch.empty(0, dtype=torch.int64)

    def add(self, name: tuple[str, str], tensor: torch.Tensor) -> None:
        if tensor.is_cpu:
            self._on_cpu[name] = _sums.sums([tensor])[0]
        else:
            self._names.append(name)
            self._on_gpu.append(_sums.on_device(tensor))

    def deliver(self) -> None:
        """Begins the transfer on the current stream."""
        if self._on_gpu:
            together = torch.stack(self._on_gpu)
            self._delivered = torch.empty(len(together), dtype=torch.int64, pin_memory=together.is_cuda)
            self._delivered.copy_(together, non_blocking=True)

    def found(self) -> dict:
        """All sums by name, once the transfer is complete."""
        return {**self._on_cpu, **dict(zip(self._names, self._delivered.tolist()))}


class PinnedBuffer(Buffer):
    """Two pieces of pinned memory: while a GPU copies from one, the library fills the other."""

    def __init__(self, cuda: Any = torch.cuda, pin: bool = True):
        super().__init__()
        self._cuda = cuda
        self._pin = pin  # False in a test without a GPU
        self._pieces: list[tuple[torch.Tensor, Any]] = []  # with the event of the last copy out of each
        self._at = 0

    def wait(self, size: int) -> tuple[int, memoryview]:
        self._at ^= 1
        while len(self._pieces) < 2:
            self._pieces.append((torch.empty(0, dtype=torch.uint8), None))
        memory, copied = self._pieces[self._at]
        if copied is not None:
            copied.synchronize()
        if memory.numel() < size:
            memory = torch.empty(max(size, BUFFER_BYTES), dtype=torch.uint8, pin_memory=self._pin)
            self._pieces[self._at] = memory, None
        address = memory.data_ptr()
        return address, memoryview((ctypes.c_char * memory.nbytes).from_address(address)).cast("B")

    def delivered(self) -> None:
        event = self._cuda.Event()
        event.record(self._cuda.current_stream())
        self._pieces[self._at] = self._pieces[self._at][0], event

    def finish(self) -> None:
        for _, copied in self._pieces:
            if copied is not None:
                copied.synchronize()


def buffer_of(tensors: Sequence[torch.Tensor]) -> Buffer:
    """The buffer for reads into these tensors."""
    return PinnedBuffer() if any(tensor.is_cuda for tensor in tensors) else Buffer()


def gpu_of(tensors: Sequence[torch.Tensor]) -> Optional[Gpu]:
    """The Gpu that holds some of the tensors; None if all are on the CPU."""
    return Gpu() if any(tensor.is_cuda for tensor in tensors) else None
