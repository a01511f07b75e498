"""The helper process ``cairn serve``: it writes this process's saves, and may outlive it to commit them.

A message is two lengths (u32 and u64, little-endian), JSON, and a tail of bytes that the JSON refers to by
[begin, count]. File descriptors come with its first byte.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import Future, wait
from typing import Any, Callable, Optional, Union

from cairn._command import program
from cairn._errors import HelperDied, exception_of

_LENGTHS = struct.Struct("<IQ")
_MAX_FDS = 4
_PATIENCE = 5.0  # seconds that Python's exit waits for saves before it prints a message


class Reply:
    """The helper's answer: the fields of ``ok``, the tail, and file descriptors that the receiver closes."""

    def __init__(self, fields: dict, tail: bytes, fds: list):
        self.fields = fields
        self.tail = tail
        self.fds = fds


class Helper:
    """One running ``cairn serve``. Any thread may use it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [program(), "serve"], stdin=theirs.fileno(), start_new_session=True
            )
        self._socket = ours
        self._sending = threading.Lock()
        self._state = threading.Lock()  # guards _waiting, _last and _death
        self._waiting: dict[int, tuple[Future, Optional[Callable[[str], None]]]] = {}
        self._last = 0
        self._death: Optional[HelperDied] = None
        self.saves: set[Future] = set()  # handed over, not finished
        self.tell_exit: Optional[Callable[[int], None]] = None  # by its socket, when the process exits
        self._receiver = threading.Thread(target=self._receive, name="cairn-helper", daemon=True)
        self._receiver.start()

    @property
    def death(self) -> Optional[HelperDied]:
        """How it ended; None while it runs."""
        return self._death

    @property
    def alive(self) -> bool:
        return self._death is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def next_number(self) -> int:
        """A number for a request or a plan, not used before with this helper."""
        with self._state:
            self._last += 1
            return self._last

    def request(
        self,
        do: str,
        tail: bytes = b"",
        on_event: Optional[Callable[[str], None]] = None,
        **fields: Any,
    ) -> Future:
        """Sends a request, and returns at once. The Future gets a Reply, or raises the helper's error.

        on_event: the receiving thread calls it with the name of each event.
        """
        number = self.next_number()
        message = _encoded({"id": number, "do": do, **fields})
        future: Future = Future()
        with self._state:
            if self._death is not None:
                raise self._death
            self._waiting[number] = (future, on_event)
        try:
            with self._sending:
                _send(self._socket, message, tail)
        except OSError:
            pass  # the receiving thread notices too, and fails the waiting requests
        return future

    def ask(self, do: str, **fields: Any) -> Reply:
        """Sends a request and waits for the answer."""
        return self.request(do, **fields).result()

    def track(self, save: Future) -> None:
        """Makes Python's exit wait for the save."""
        self.saves.add(save)
        save.add_done_callback(self.saves.discard)

    def leave(self) -> None:
        """In a forked child: closes the socket, so the helper still notices when the parent ends."""
        self._socket.close()
        self._death = HelperDied("the helper belongs to the parent process", 0)

    def close(self) -> None:
        """Waits for all saves, then lets the helper end."""
        if self.saves and wait(list(self.saves), timeout=_PATIENCE).not_done:
            print(f"cairn: waiting for {len(self.saves)} save(s) to be on disk", file=sys.stderr, flush=True)
            wait(list(self.saves))
        if self.tell_exit is not None and self.alive:
            self.tell_exit(self._socket.fileno())
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the helper has died
        self._receiver.join()  # returns when the helper has ended

    def _receive(self) -> None:
        try:
            while (received := _receive_message(self._socket)) is not None:
                self._deliver(*received)
        except OSError:
            pass  # as at the end of the stream: waiting requests fail
        self._fail()

    def _deliver(self, message: dict, tail: bytes, fds: list) -> None:
        with self._state:
            future, on_event = (
                self._waiting[message["id"]] if "event" in message else self._waiting.pop(message["id"])
            )
        if "event" in message:
            if on_event is not None:
                on_event(message["event"])
        elif "error" in message:
            failure = (message["errno"], message["reason"], message["path"]) if "errno" in message else None
            future.set_exception(exception_of(message["kind"], message["error"], failure))
        else:
            future.set_result(Reply(message["ok"], tail, fds))

    def _fail(self) -> None:
        """The helper has ended: all waiting requests fail."""
        status = self._process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        with self._state:
            self._death = HelperDied(
                f"the process `cairn serve` (pid {self.pid}) {how}; its messages are on stderr", status
            )
            orphans = list(self._waiting.values())
            self._waiting.clear()
        for future, _ in orphans:
            future.set_exception(self._death)
        with self._sending:
            self._socket.close()


def absolute(path: Union[str, os.PathLike]) -> str:
    """The absolute path as text. The helper needs it: its working directory may be another one."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise ValueError(f"{text!r}: a path cannot contain a null byte")
    whole = os.path.abspath(text)
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{whole!r}: the path is not Unicode text; rename it, or use another path") from None
    return whole


def _encoded(message: dict) -> bytes:
    """The message as JSON. Raises ValueError for text that is not Unicode: the helper could not parse it."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[max(error.start - 40, 0) : error.end]!r}: not Unicode text") from None


def _send(to: socket.socket, message: bytes, tail: bytes) -> None:
    to.sendall(_LENGTHS.pack(len(message), len(tail)) + message)
    to.sendall(tail)


def _receive_message(source: socket.socket) -> Optional[tuple[dict, bytes, list]]:
    """Returns (message, tail, file descriptors); None at the end of the stream."""
    lengths, fds = b"", array.array("i")
    while len(lengths) < _LENGTHS.size:
        space = socket.CMSG_SPACE(_MAX_FDS * fds.itemsize)
        part, ancillary, _, _ = source.recvmsg(_LENGTHS.size - len(lengths), space, socket.MSG_CMSG_CLOEXEC)
        if not part:
            return None
        lengths += part
        for _, _, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    body, tail = (_receive_bytes(source, length) for length in _LENGTHS.unpack(lengths))
    return None if body is None or tail is None else (json.loads(body), tail, list(fds))


def _receive_bytes(source: socket.socket, count: int) -> Optional[bytes]:
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        received = source.recv_into(view[filled:])
        if received == 0:
            return None
        filled += received
    return bytes(data)


_current: Optional[Helper] = None
_starting = threading.Lock()


def helper() -> Helper:
    """This process's helper, started on first use. Raises FileNotFoundError if the program does not exist."""
    global _current
    with _starting:
        if _current is None or not _current.alive:
            _current = Helper()
        return _current


def running() -> Optional[Helper]:
    """This process's helper; None if it has none, or none that lives."""
    return _current if _current is not None and _current.alive else None


def _at_exit() -> None:
    if (current := running()) is not None:
        current.close()


def _after_fork() -> None:
    global _current, _starting
    _starting = threading.Lock()
    if _current is not None:
        _current.leave()
        _current = None


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
