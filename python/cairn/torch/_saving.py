"""One save of this rank, from its start to the committed step."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Optional, Union

from torch.optim import Optimizer

from cairn import _origins
from cairn._errors import CopiesDiffer, CorruptError, HelperDied, SaveFailed, rank_name
from cairn._helper import Helper, absolute, helper
from cairn.torch import _collector, _events, _job, _local, _optimizers, _sums
from cairn.torch._device import Copying
from cairn.torch._layout import Layout
from cairn.torch._options import Options, whole
from cairn.torch._staging import Segment, Segments

_FAILURES = (OSError, SaveFailed, HelperDied, CorruptError)  # not raised if on_error is "warn"
_ALARM_AFTER = 3  # failed saves in a row
logger = logging.getLogger("cairn.torch")


class Saved(NamedTuple):
    """The result of a save.

    step_dir: the committed step. written_s, durable_s: seconds from the start of the save until this rank's
    part was on disk, and until the step was committed. error: with on_error="warn", why the save failed;
    step_dir is empty then.
    """

    step_dir: str
    written_s: float
    durable_s: float
    error: Optional[Exception] = None


class SaveHandle(Future[Saved]):
    """A running save. ``result()`` waits for the commit and returns a Saved, or raises the failure.

    ``staged``: a Future, done when the tensors may change. ``written``: one for this rank's part on disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self.staged: Future[None] = Future()
        self.written: Future[None] = Future()
        self._copying: Optional[Copying] = None
        self._process = os.getpid()

    @classmethod
    def failed(cls, error: BaseException) -> SaveHandle:
        """The handle of a save that could not start, with on_error="warn"."""
        handle = cls()
        handle.fail(error, warn=True)
        return handle

    def fail(self, error: BaseException, warn: bool) -> None:
        """Ends the save. warn: waiting callers get no exception."""
        for future in (self.staged, self.written):
            if warn:
                _settle(future)
            elif not future.done():
                future.set_exception(error)
        if warn and isinstance(error, Exception):
            self.set_result(Saved("", math.nan, math.nan, error))
        else:
            self.set_exception(error)

    def result(self, timeout: Optional[float] = None) -> Saved:
        """Raises HelperDied in a forked child, because only the parent learns how its save ends."""
        if self._process != os.getpid() and not self.done():
            raise HelperDied("the save belongs to the parent process; wait for it there", 0)
        return super().result(timeout)

    def wait_staged(self) -> None:
        """Changes that this thread makes to the tensors after this call are not in the checkpoint.

        On a GPU the current stream waits, not the CPU.
        """
        if self._copying is not None:
            self._copying.wait()


class Staged:
    """A state dict with its place in a segment. `start` begins to copy it there."""

    def __init__(
        self, layout: Layout, segment: Segment, free: Future, used_by: Helper, optimizers: Sequence[Optimizer]
    ):
        self.layout = layout
        self.objects: tuple[dict, bytes] = {}, b""
        self.segment = segment
        self.free = free
        self.helper = used_by
        self._started = False
        self.has_copies = bool(layout.copies)
        self.copying = segment.copying(layout.sources, layout.copies, _optimizers.storages(optimizers))
        layout.sources, layout.copies = [], []
        self._optimizers = optimizers

    def start(self, hand_over: Callable[[], None] = lambda: None) -> None:
        """Starts the copy (once), meanwhile encodes the other values, and hands over.

        Returns when all values are copied but those that an optimizer's step waits for.
        """
        if self._started:
            return hand_over()
        self._started = True
        _optimizers.hold(self._optimizers, self.copying)
        self.copying.start()
        try:
            self.objects = self.layout.objects()
            hand_over()
        finally:
            self.copying.join()

    def release(self) -> None:
        """Frees the segment as soon as no copy writes to it."""
        if self._started:
            free = self.free  # a reference to self would keep it alive until the copy ends
            self.copying.future.add_done_callback(lambda _: _settle(free))
        else:
            _settle(self.free)

    def __del__(self) -> None:  # dropped before it was saved, or after
        self.release()

    def __reduce__(self):
        raise TypeError("CairnStager's state dict cannot leave its process; use AsyncCheckpointerType.THREAD")


_segments: Optional[Segments] = None
_lock = threading.Lock()


def _segments_of(current: Helper) -> Segments:
    global _segments
    with _lock:
        if _segments is None or _segments.helper is not current:
            _segments = Segments(current)
        return _segments


def stage(layout: Layout, optimizers: _optimizers.Optimizers = (), run: str = "") -> Staged:
    """Finds shared memory for the values that this rank writes. Give the Staged to one Save, or drop it.

    run: as of `Segments.take`.
    """
    waiting = _optimizers.listed(optimizers)
    current = helper()
    with _collector.paused():
        segment, free = _segments_of(current).take(layout, *_job.rank_and_world(), run)
        try:
            return Staged(layout, segment, free, current, waiting)
        except BaseException:
            free.set_result(None)
            raise


class Failures:
    """With on_error="warn": counts for each run the failed saves since the last good one."""

    def __init__(self) -> None:
        self._in_a_row: collections.Counter[str] = collections.Counter()

    def tolerates(self, options: Options, run: str, step: int, error: BaseException) -> bool:
        """Whether on_error forbids raising this failure. If so, counts and logs it."""
        if options.on_error != "warn" or not isinstance(error, _FAILURES):
            return False
        self._in_a_row[run] += 1
        count = self._in_a_row[run]
        if count < _ALARM_AFTER:
            logger.warning("the save of step %d failed: %s; earlier steps are kept", step, error)
        else:
            alarm = "ALARM: the save of step %d failed, as did %d before it: %s"
            logger.critical(alarm, step, count - 1, error)
        return True

    def forget(self, run: str) -> None:
        self._in_a_row.pop(run, None)


failures = Failures()


class Save:
    """One save. The constructor starts it: from then on the other ranks learn at once if this rank dies.

    Then call `hand_over` or `abort`.
    log: log a failure at once; False if the caller waits for the handle, which raises it.
    events: tell the run's events of this process; False for a directory of one step, which is no run.
    Raises TimeoutError if rank 0 does not save.
    """

    def __init__(
        self,
        directory: Union[str, os.PathLike],
        step: int,
        options: Options,
        log: bool = True,
        events: bool = True,
    ):
        step, run = whole("step", step, "a whole number, 0 or more"), absolute(directory)
        self._helper = helper()
        self._options = options
        self._log = log
        self._run = run
        self._step = step
        self._nonce = _job.session.nonce(step, options.seconds)
        self._rank, world = _job.rank_and_world()
        level, every, seconds = options.level, options.every, options.seconds
        local = level is not None and _local.opened(self._helper, run, level, self._nonce, seconds)
        self._local_run = run if local else ""
        self._begun = self._helper.request(
            "begin",
            local=local,
            durable=not local or _local.is_due(self._helper, run, every, self._nonce, seconds),
            nonce=self._nonce,
            deadline=options.seconds,
            run=run,
            step=step,
            rank=self._rank,
            world=world,
            waits=not log,
            **(_events.start_of(run) if events else {}),
        )
        self._news = _job.News(self._nonce, self._hear) if world > 1 else None
        self._begun.add_done_callback(self._opened)

    def stage(self, layout: Layout, optimizers: _optimizers.Optimizers = ()) -> Staged:
        """The function stage, with the options of this save."""
        if self._options.copies == "off":
            layout.copies = []
        return stage(layout, optimizers, self._local_run)

    def abort(self, error: BaseException) -> None:
        """Tells the other ranks why this rank saves nothing."""
        why = f"{type(error).__name__}: {error}"
        if self._helper.alive:
            self._helper.request("abort", nonce=self._nonce, error=why)
        self._tell_failure(why)

    def _hear(self, **news: Any) -> None:
        with contextlib.suppress(HelperDied):
            self._helper.request("news", nonce=self._nonce, **news)

    def _opened(self, begun: Future) -> None:
        if (error := begun.exception()) is not None:
            self._tell_failure(error)
        elif self._news is not None and self._rank == 0:
            self._news.opened()

    def _tell_failure(self, why: Union[str, BaseException]) -> str:
        """Tells the other ranks. Returns the text, with the hosts of late ranks added."""
        if self._news is None:
            return str(why)
        heard = isinstance(why, SaveFailed) and str(why).startswith("rank ")
        begin = "failed: " + ("" if heard else f"{rank_name(self._rank)} failed: ")
        return self._news.end(f"{begin}{why}").removeprefix(begin)

    def hand_over(self, staged: Staged) -> SaveHandle:
        """Gives the staged state dict to the helper, which writes copied parts while the rest is copied."""
        if staged.helper is not self._helper:
            death = self._helper.death or staged.helper.death  # one started after the other ended
            raise death or HelperDied("the `cairn serve` that the state dict was staged for was replaced", 0)
        handle = SaveHandle()
        handle._copying = staged.copying
        staged.start(lambda: self._send(handle, staged))
        return handle

    def _send(self, handle: SaveHandle, staged: Staged) -> None:
        objects, tail = staged.objects
        _origins.tell(self._helper)
        saved = self._helper.request(
            "write",
            on_event=lambda event: self._written(handle, staged),
            nonce=self._nonce,
            plan=staged.segment.plan,
            tail=tail,
            objects=objects,
            copies=self._compares(staged),
            options=self._options.for_helper(staged.layout.mesh),
        )
        saved.add_done_callback(lambda done: self._finish(done, handle, staged))
        self._helper.track(handle)  # only now: Python's exit must not wait for a save that was never sent
        staged.copying.follow(lambda pieces: self._report(staged.segment.filled(pieces)))
        staged.copying.future.add_done_callback(lambda copied: self._copied(copied, handle, staged))

    def _compares(self, staged: Staged) -> bool:
        return staged.has_copies and self._options.copies != "off"

    def _report(self, filled: int) -> None:
        if self._helper.alive:
            self._helper.request("copied", nonce=self._nonce, bytes=filled)

    def _copied(self, copied: Future, handle: SaveHandle, staged: Staged) -> None:
        if (error := copied.exception()) is not None:
            self.abort(error)
            return self._fail(handle, staged, error)
        if self._compares(staged) and self._helper.alive:
            more = staged.segment.filled(len(staged.segment)) + 1
            copies = _by_group(staged.copying.sums)
            self._helper.request("copied", nonce=self._nonce, bytes=more, copies=copies)
        _settle(handle.staged)

    @staticmethod
    def _written(handle: SaveHandle, staged: Staged) -> None:
        staged.release()
        _settle(handle.written)

    def _finish(self, done: Future, handle: SaveHandle, staged: Staged) -> None:
        if (error := done.exception()) is not None:
            return self._fail(handle, staged, error)
        self._written(handle, staged)
        if self._news is not None:
            self._news.end("" if self._rank else "saved")
        fields = done.result().fields
        for why in fields.pop("left"):
            logger.warning("keep_last=%d: %s", self._options.keep_last, why)
        if alarm := fields.pop("alarm"):
            self._raise_alarm(CopiesDiffer(alarm, 1))
        failures.forget(self._run)
        _events.saved(self._run)
        handle.set_result(Saved(**fields))

    def _raise_alarm(self, alarm: CopiesDiffer) -> None:
        logger.critical("step %d: %s", self._step, alarm)
        if self._options.on_alarm is not None:
            threading.Thread(target=self._options.on_alarm, args=(alarm,), name="cairn-alarm").start()

    def _fail(self, handle: SaveHandle, staged: Staged, error: BaseException) -> None:
        if self._begun.done():  # the error of "begin" says more than that of "write"
            error = self._begun.exception() or error
        staged.release()
        if handle.done():
            return
        _local.forget(self._helper)
        why = self._tell_failure(error)
        if isinstance(error, SaveFailed):
            error = _failure(why, error.status)
        if isinstance(error, CopiesDiffer):
            self._raise_alarm(error)
        warn = failures.tolerates(self._options, self._run, self._step, error)
        if self._log and not warn and not isinstance(error, CopiesDiffer):  # whose alarm was logged
            logger.error("the save of step %d failed: %s", self._step, error)
        handle.fail(error, warn)


def _failure(why: str, status: int) -> SaveFailed:
    """why: as the helper or another rank says it."""
    at = why.find(CopiesDiffer.BEGIN)
    return SaveFailed(why, status) if at < 0 else CopiesDiffer(why[at:], status)


def _by_group(sums: dict) -> dict:
    groups: dict = {}
    for (group, part), value in sums.items():
        groups.setdefault(group, {})[part] = _sums.text(value)
    return groups


def _settle(future: Future) -> None:
    if not future.done():
        future.set_result(None)
