"""Copies between tensors and shared memory: by the CPU's threads, or by a GPU beside the training."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Callable, Optional

import torch


class Copied:
    """A copy under way. ``future``: done when the sources may change."""

    def __init__(self, future: Future, hold_stream: Optional[Callable[[], None]] = None):
        self.future = future
        self._hold_stream = hold_stream

    def wait(self) -> None:
        """What this thread does next, on the CPU or on its current stream, comes after the copy. On a GPU it returns at once."""
        if self._hold_stream is not None:
            self._hold_stream()
        else:
            self.future.result()


def copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], gpu: Optional["Gpu"] = None) -> Copied:
    """Begins to copy each source into its target, on the CPU; with `gpu`, a Gpu, from its memory."""
    if gpu is not None:
        return gpu.copy(targets, sources)
    with torch.no_grad():
        for target, source in zip(targets, sources):
            target.copy_(source)
    future: Future = Future()
    future.set_result(None)
    return Copied(future)


class Gpu:
    """Copies on a stream of its own, which the current stream does not wait for. `cuda`: torch.cuda, or what a test gives."""

    def __init__(self, cuda: Any = torch.cuda):
        self._cuda = cuda
        self._stream = cuda.Stream()

    def register(self, buffer: torch.Tensor) -> None:
        """Pins shared memory, once for its life: copies into pageable memory are slower and block."""
        self._check(self._cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0), "cudaHostRegister")

    def unregister(self, buffer: torch.Tensor) -> None:
        self._check(self._cuda.cudart().cudaHostUnregister(buffer.data_ptr()), "cudaHostUnregister")

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copied:
        self._stream.wait_stream(self._cuda.current_stream())  # the sources may still be written there
        with self._cuda.stream(self._stream), torch.no_grad():
            for target, source in zip(targets, sources):
                target.copy_(source, non_blocking=True)
                if source.is_cuda:
                    source.record_stream(self._stream)  # its memory is not used again before the copy
            event = self._cuda.Event()
            event.record(self._stream)
        future: Future = Future()
        threading.Thread(target=_wait_for, args=(event, future), name="cairn-copy", daemon=True).start()
        return Copied(future, lambda: self._cuda.current_stream().wait_event(event))

    @staticmethod
    def _check(status: Any, what: str) -> None:
        if int(status) != 0:
            raise RuntimeError(f"{what}: CUDA error {int(status)}")


def _wait_for(event: Any, future: Future) -> None:
    try:
        event.synchronize()
        future.set_result(None)
    except Exception as error:
        future.set_exception(error)


def gpu_of(tensors: Sequence[torch.Tensor]) -> Optional[Gpu]:
    """The Gpu that holds some of the tensors; None where all are on the CPU."""
    return Gpu() if any(tensor.is_cuda for tensor in tensors) else None
