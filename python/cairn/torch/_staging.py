"""Shared memory for copies of a save: one segment, and a second one while the first is being written.

A step on the node may keep a segment as its file; it is free again once that step is removed.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Optional

import torch

from cairn._helper import Helper
from cairn.torch import _device
from cairn.torch._dtypes import TORCH_OF
from cairn.torch._layout import Layout
from cairn.torch._optimizers import storage

_SEGMENTS = 2
logger = logging.getLogger("cairn.torch")


def map_bytes(fd: int, size: int) -> torch.Tensor:
    """New shared memory as a tensor of bytes, which keeps it mapped. The first copy populates its pages."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = torch.frombuffer(mmap.mmap(fd, size, mmap.MAP_SHARED), dtype=torch.uint8)
    if not _device.populate(memory[: mmap.PAGESIZE]):
        os.posix_fallocate(fd, 0, size)
    return memory


class Segment:
    """One of the helper's plans, with its memory.

    ``written``: done when a save no longer needs the memory. ``kept``: it is a file of a step, as far as
    known, and must stay as it is.
    """

    def __init__(self, helper: Helper, key: tuple, layout: Layout, rank: int, world: int, run: str):
        self.plan = helper.next_number()
        self.key = key
        self.run = run
        self.kept = False
        self.written: Future = Future()
        self.written.set_result(None)
        self._helper = helper
        reply = helper.ask(
            "plan",
            plan=self.plan,
            rank=rank,
            world=world,
            tensors=layout.tensors,
            names=layout.names,
            small=layout.small,
            run=run,
        )
        try:
            self._buffer = map_bytes(reply.fds[0] if reply.fds else -1, reply.fields["bytes"])
        finally:
            for fd in reply.fds:
                os.close(fd)
        self._targets = list(self._views(layout.tensors, reply.fields["offsets"]))
        begins = [at for places in reply.fields["offsets"] for at in places]
        self._order = sorted(range(len(begins)), key=begins.__getitem__)  # pieces as they lie in memory
        self._begins = sorted(begins)
        self._gpu: Optional[_device.Gpu] = None
        self._populated = threading.Event()

    def _views(self, tensors: list, offsets: list):
        for tensor, places in zip(tensors, offsets):
            dtype = TORCH_OF[tensor["dtype"]]
            for piece, at in zip(tensor["pieces"], places):
                size = math.prod(piece["extent"]) * dtype.itemsize
                yield self._buffer[at : at + size].view(dtype).view(piece["extent"])

    def copying(self, sources: list, copies: list, later: frozenset) -> _device.Copying:
        """A copy of the sources, to be started, and sums of the copies, as in a Layout.

        later: addresses of values that may be copied later.
        """
        tensors = [source for _, source in sources] + [copy.tensor for copy in copies]
        if self._gpu is None and (gpu := _device.gpu_of(tensors)) is not None:
            if self._buffer.nbytes:
                gpu.register(self._buffer)
            self._gpu = gpu
        is_later = lambda tensor: bool(later) and storage(tensor) in later
        shared = {copy.piece: copy.shared for copy in copies if copy.piece is not None}
        pieces = []
        for number in self._order:
            name, source = sources[number]
            target, later_too = self._targets[number], is_later(source)
            pieces.append(_device.Piece(name, source, target, later_too, shared.get(number)))
        for copy in copies:  # those that other ranks write
            if copy.piece is None:
                later_too = is_later(copy.tensor)
                pieces.append(_device.Piece(copy.name, copy.tensor, None, later_too, copy.shared))
        return _device.Copying(pieces, self._gpu, self._populated)

    def __len__(self) -> int:
        """The number of pieces with a target."""
        return len(self._begins)

    def filled(self, pieces: int) -> int:
        """The number of bytes at the start of the memory that the first `pieces` pieces fill.

        Pieces without a target come last.
        """
        return self._begins[pieces] if pieces < len(self._begins) else self._buffer.nbytes

    def forget(self) -> None:
        if self._gpu is not None and self._buffer.nbytes:
            self._gpu.unregister(self._buffer)
        self._targets = []
        self._helper.request("forget", plan=self.plan)


class Segments:
    """The segments of one helper. Any thread may use it."""

    def __init__(self, helper: Helper):
        self.helper = helper
        self._lock = threading.Lock()
        self._all: list[Segment] = []
        self._warned = False

    def take(self, layout: Layout, rank: int, world: int, run: str) -> tuple[Segment, Future]:
        """A free segment for the layout, and the Future to set when it is free again.

        run: with steps on the nodes, the run. If two saves are still being written, waits, and logs that
        once.
        """
        key = (rank, world, layout.tensors, layout.names, layout.small, run)
        with self._lock:
            self._take_back()
            segment = self._free(key) or self._make(key, layout, rank, world, run)
            segment.written = Future()
            return segment, segment.written

    def _take_back(self) -> None:
        of_nodes = {segment.plan: segment for segment in self._all if segment.run and segment.written.done()}
        if of_nodes:
            freed = self.helper.ask("freed", plans=list(of_nodes)).fields["plans"]
            for plan, segment in of_nodes.items():
                segment.kept = plan not in freed

    def _free(self, key: tuple) -> Optional[Segment]:
        while True:
            free = [segment for segment in self._all if segment.written.done() and not segment.kept]
            for segment in free:
                if segment.key == key:
                    return segment
            unkept = [segment for segment in self._all if not segment.kept]
            if len(unkept) < _SEGMENTS:
                return None
            if free:  # the state dict has changed
                self._all.remove(free[0])
                free[0].forget()
                return None
            if not self._warned:
                self._warned = True
                logger.warning(
                    "two saves are still being written, so this one waits; save less often, "
                    "or to faster storage (this warning appears once)"
                )
            wait([segment.written for segment in unkept], return_when=FIRST_COMPLETED)
            self._take_back()

    def _make(self, key: tuple, layout: Layout, rank: int, world: int, run: str) -> Segment:
        segment = Segment(self.helper, key, layout, rank, world, run)
        self._all.append(segment)
        return segment
