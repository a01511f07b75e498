"""Copies of tensors into shared memory: by two threads while this one waits, by one that runs in parallel with the training, or by a GPU."""

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

from cairn.torch import _private

_BATCH = 32 << 20  # bytes between two reports
_THREADS = 2  # one alone does not use all of the memory's bandwidth
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_libc = ctypes.CDLL(None, use_errno=True)  # its calls release the GIL


class Piece(NamedTuple):
    """name: for errors. later: copied while training continues; only code that waits for the copy changes the source."""

    name: str
    source: torch.Tensor
    target: torch.Tensor
    later: bool = False


class Copying:
    """Pieces on their way, in their order. ``future``: done when all sources may change.

    populated: set once every page of the targets' memory is there; None: they are all there."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        gpu: Optional["Gpu"] = None,
        populated: Optional[threading.Event] = None,
    ):
        self.future: Future = Future()
        self._process = os.getpid()
        self._pieces = pieces
        self._gpu = gpu
        self._populated = populated
        self._event: Any = None
        self._rest: Optional[Callable[[], None]] = None  # of start, for join
        self._lock = threading.Lock()  # of the two below
        self._copied = 0
        self._heard: Optional[Callable[[int], None]] = None

    def follow(self, heard: Callable[[int], None]) -> None:
        """Calls heard(n) each time when the first n pieces are copied; more than once for one n, and from any thread."""
        with self._lock:
            self._heard, copied = heard, self._copied
        if copied:
            heard(copied)

    def start(self) -> None:
        """Begins. Then call join(). Errors are the future's."""
        fresh = self._populated is not None and not self._populated.is_set()
        with self._failing():
            if self._gpu is not None and self._pieces:
                events = self._gpu.copy(self._pieces)
                self._event = events[-1][1]
                self._finish(self._gpu.reached(events))
            elif any(piece.later for piece in self._pieces):
                self._rest = lambda: self._finish(_copy_later(self._pieces, fresh))
            else:
                copied = _copy_now(self._pieces, fresh)
                self._rest = lambda: self._go(copied)

    def join(self) -> None:
        """Returns when every piece is copied that is not for later; on a GPU, at once."""
        rest, self._rest = self._rest, None
        if rest is not None:
            with self._failing():
                rest()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (
            BaseException
        ) as error:  # an interrupt, too: an optimizer's step and a save wait for the future
            if not self.future.done():
                self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def wait(self) -> None:
        """What this thread does next, on the CPU or on its current stream, comes after the copy. On a GPU it returns at once, and so it does
        in a forked child: its memory is not what is copied, and the thread that copies is its parent's."""
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
    """Where each batch ends."""
    size = 0
    for number, piece in enumerate(pieces, 1):
        size += piece.target.nbytes
        if size >= _BATCH or number == len(pieces):
            yield number
            size = 0


def _copy_now(pieces: Sequence[Piece], fresh: bool) -> Iterator[int]:
    ends = list(_batches(pieces))
    pool = ThreadPoolExecutor(_THREADS, "cairn-copy")
    copies = [_submit(pool, pieces[begin:end], fresh) for begin, end in zip([0, *ends], ends)]
    return _copied_by(pool, ends, copies)


def _copied_by(pool: ThreadPoolExecutor, ends: Sequence[int], copies: Sequence[Future]) -> Iterator[int]:
    try:
        for end, copied in zip(ends, copies):
            copied.result()
            yield end
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, pieces: Sequence[Piece], fresh: bool) -> Future:
    try:
        return pool.submit(_copy, pieces, fresh)
    except RuntimeError:  # at the end of Python, when no thread begins any more
        _copy(pieces, fresh)
    done: Future = Future()
    done.set_result(None)
    return done


def _copy(pieces: Sequence[Piece], fresh: bool) -> None:
    for piece in pieces:
        if fresh:
            populate(piece.target)
        copy_on_one_thread(piece.source, piece.target)


def _copy_later(pieces: Sequence[Piece], fresh: bool) -> Iterator[int]:
    """Copies now the sources that are not for later. Torch's version counters show sources that change meanwhile all the same."""
    _copy([piece for piece in pieces if not piece.later], fresh)
    versions = [piece.source._version for piece in pieces]
    return _copy_quietly(pieces, versions, fresh)


def _copy_quietly(pieces: Sequence[Piece], versions: Sequence[int], fresh: bool) -> Iterator[int]:
    begin = 0
    for end in _batches(pieces):
        for piece, version in zip(pieces[begin:end], versions[begin:end]):
            if piece.later:
                _copy([piece], fresh)
                if piece.source._version != version:
                    raise RuntimeError(
                        f"{piece.name} was changed while it was copied: by something else than the optimizers that were given"
                    )
        yield end
        begin = end


def populate(memory: torch.Tensor) -> bool:
    """Gives shared memory its pages, and this process's mapping of them, at a fraction of the cost of a fault for each page. Returns
    False if the kernel cannot. Raises OSError if there are not enough pages: to write there would be a SIGBUS."""
    skipped = memory.data_ptr() % mmap.PAGESIZE
    begin, size = ctypes.c_void_p(memory.data_ptr() - skipped), ctypes.c_size_t(memory.nbytes + skipped)
    if not memory.nbytes or _libc.madvise(begin, size, _POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() == errno.EINVAL:
        return False
    raise OSError(errno.ENOSPC, "no shared memory for a save")


def with_memory(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose elements may be copied; of a wrapper around one of its shape and type (as float8 trainings have), that one. Raises
    TypeError or ValueError for one without memory of its own: another wrapper (of quantized weights, say), a fake one, or one whose storage was
    given back."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        tensor = _wrapped(_private.waited_for(tensor))
        if not _has_storage(tensor):
            raise TypeError(
                f"{name}: a {type(tensor).__name__}, which has no memory of its own; give the plain tensors that it is made of"
            )
    if tensor.numel() == 0:
        return tensor
    storage = tensor.untyped_storage()
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())
    )
    if storage.nbytes() < (last + 1) * tensor.dtype.itemsize:
        raise ValueError(
            f"{name}: its storage has {storage.nbytes()} bytes, less than its shape {list(tensor.shape)}: it was freed or resized"
        )
    return tensor


def _wrapped(tensor: torch.Tensor) -> torch.Tensor:
    """A wrapper may also have numbers that are made of it, such as its scale."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    alike = [part for part in inner if part.shape == tensor.shape and part.dtype == tensor.dtype]
    return (
        alike[0] if len(alike) == 1 and all(part is alike[0] or part.dim() == 0 for part in inner) else tensor
    )


def _has_storage(tensor: torch.Tensor) -> bool:
    """Of a subclass of torch.Tensor."""
    try:
        storage = tensor.untyped_storage()
        return tensor.numel() == 0 or (storage.device.type != "meta" and storage.data_ptr() != 0)
    except (RuntimeError, NotImplementedError):
        return False


def copy_on_one_thread(source: torch.Tensor, target: torch.Tensor) -> None:
    """As target.copy_(source), whose threads wait for each other if cores are busy: 2.1 GB/s then on two cores, 10 GB/s on one thread."""
    if source.dtype == target.dtype and _is_plain(source) and _is_plain(target):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        with torch.no_grad():
            target.copy_(source)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


class Gpu:
    """Copies on a stream of its own, which the current stream does not wait for. `cuda`: torch.cuda, or a test's double."""

    def __init__(self, cuda: Any = torch.cuda):
        self._cuda = cuda
        self._stream = cuda.Stream()

    def register(self, buffer: torch.Tensor) -> None:
        """Pins shared memory, once for its life: copies into pageable memory are slower and block."""
        self._check(
            self._cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0), "cudaHostRegister"
        )

    def unregister(self, buffer: torch.Tensor) -> None:
        self._check(self._cuda.cudart().cudaHostUnregister(buffer.data_ptr()), "cudaHostUnregister")

    def copy(self, pieces: Sequence[Piece]) -> list:
        """Begins. Returns (how many pieces, an event when they are copied) for each batch."""
        self._stream.wait_stream(self._cuda.current_stream())  # the sources may still be written there
        begin, events = 0, []
        with self._cuda.stream(self._stream), torch.no_grad():
            for end in _batches(pieces):
                for piece in pieces[begin:end]:
                    piece.target.copy_(piece.source, non_blocking=True)
                    if piece.source.is_cuda:
                        piece.source.record_stream(
                            self._stream
                        )  # its memory is not used again before the copy
                begin = end
                event = self._cuda.Event()
                event.record(self._stream)
                events.append((end, event))
        return events

    @staticmethod
    def reached(events: list) -> Iterator[int]:
        for count, event in events:
            event.synchronize()
            yield count

    def hold_current_stream(self, event: Any) -> None:
        self._cuda.current_stream().wait_event(event)

    @staticmethod
    def _check(status: Any, what: str) -> None:
        if int(status) != 0:
            raise RuntimeError(f"{what}: CUDA error {int(status)}")


def gpu_of(tensors: Sequence[torch.Tensor]) -> Optional[Gpu]:
    """The Gpu that holds some of the tensors; None if all are on the CPU."""
    return Gpu() if any(tensor.is_cuda for tensor in tensors) else None
