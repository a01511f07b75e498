"""This process's rank and job, and names of its saves that all ranks agree on."""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import json
import queue
import re
import secrets
import socket
import threading
from typing import Any, Callable, Optional

import torch.distributed as dist

from cairn._errors import rank_name
from cairn.torch import _private

_HOST = "cairn.torch/host/%d"  # key of a rank's host in the store
# A late rank in a message of the helper, which does not know the ranks' hosts.
_LATE = re.compile(r"\brank (\d+)(?= did not |, rank | and \d+ more$|$)")
_LOOK = 0.5  # seconds between two reads of the store
_TELL = 5.0  # seconds that a rank waits for the store at the end of a save


def in_a_job() -> bool:
    """Whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """(0, 1) if torch.distributed is not initialised."""
    if in_a_job():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class Session:
    """Makes the nonces of saves: the same on all ranks of a job, and never used twice.

    Rank 0 puts a random word into the job's store, and the others wait for it once, without a collective.
    Each rank also puts its host into the store.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Any = None
        self._joined = 0
        self._word: Optional[str] = None
        self._saves: collections.Counter = collections.Counter()

    def nonce(self, step: int, deadline: float) -> str:
        """The nonce for the next save of `step`. Raises TimeoutError if rank 0's word is missing."""
        with self._lock:
            word = self._session_word(deadline)
            self._saves[step] += 1
            return hashlib.blake2b(f"{word} {step} {self._saves[step]}".encode(), digest_size=8).hexdigest()

    def _session_word(self, deadline: float) -> str:
        store = _private.default_store() if rank_and_world()[1] > 1 else None
        if self._word is None or store is not self._store:
            word = secrets.token_hex(8)
            if store is not None:
                store.set(_HOST % rank_and_world()[0], socket.gethostname())
                late = f"rank 0 has not begun to save within {deadline:g} s; all ranks must save"
                word = _agree(store, f"cairn.torch/session/{self._joined}", word, deadline, late)
                self._joined += 1
            self._store, self._word = store, word
            self._saves.clear()
        return self._word


def agree(key: str, word: str, deadline: float) -> str:
    """Returns rank 0's word on all ranks, through the job's store. Raises TimeoutError if it is late.

    key: one not used before.
    """
    if rank_and_world()[1] == 1:
        return word
    late = f"rank 0 did not publish {key} within {deadline:g} s"
    return _agree(_private.default_store(), key, word, deadline, late)


def places(place: str, occasion: str, deadline: float) -> dict:
    """Tells all ranks where each one's helper is: {"places", "names", "secret"}. Every rank calls it.

    occasion: not used before. Raises TimeoutError naming a rank that is late.
    """
    rank, world = rank_and_world()
    store, key = _private.default_store(), f"cairn.torch/places/{occasion}"
    store.set(f"{key}/{rank}", json.dumps([place, rank_name(rank)]))
    found: dict = {}
    if rank == 0:
        every = []
        for other in range(world):
            late = f"{rank_name(other, '?')} has not begun to save within {deadline:g} s; all ranks must save"
            every.append(json.loads(_wait(store, f"{key}/{other}", deadline, late)))
        found = {"places": [each[0] for each in every], "names": [each[1] for each in every]}
        found["secret"] = secrets.token_hex(16)
    late = f"rank 0 did not publish the ranks' places within {deadline:g} s"
    return json.loads(_agree(store, key, json.dumps(found), deadline, late))


def _wait(store: Any, key: str, deadline: float, late: str) -> str:
    try:
        store.wait([key], datetime.timedelta(seconds=deadline))
    except RuntimeError as error:
        raise TimeoutError(late) from error
    return store.get(key).decode()


def _agree(store: Any, key: str, word: str, deadline: float, late: str) -> str:
    if rank_and_world()[0] == 0:
        store.set(key, word)
        return word
    return _wait(store, key, deadline, late)


class News:
    """News of one save: rank 0's word that it is open or saved, or the first failure.

    News pass through the job's store: they arrive at once, even on a rank that has lost the directory. No
    save depends on them: the helpers meet in the directory, even after the trainers died.
    """

    def __init__(self, nonce: str, hear: Callable[..., None]):
        """hear: another thread calls it with opened=True, saved=True or failed=TEXT."""
        self._store = _private.default_store()
        self._key = f"cairn.torch/save/{nonce}"
        self._hear = hear
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._named: dict[str, str] = {}  # last words, with hosts added
        self._thread = threading.Thread(target=self._run, name="cairn-news", daemon=True)
        self._thread.start()

    def opened(self) -> None:
        self._words.put("opened")

    def end(self, word: str) -> str:
        """Publishes this rank's last word: "saved", "failed: TEXT" or "".

        Returns it, with the hosts of late ranks added, when the other ranks can read it, because this process
        may end next.
        """
        word = word.encode(errors="replace").decode() or "ended"
        self._words.put(word)
        self._thread.join(_TELL)  # another thread may hold the store for long
        return self._named.get(word, word)

    def _run(self) -> None:
        last = ""
        with contextlib.suppress(RuntimeError):  # the store's process has died
            while True:
                try:
                    word = self._words.get(timeout=_LOOK)
                except queue.Empty:
                    word = ""
                if word not in ("", "ended"):
                    self._named[word] = _LATE.sub(self._name, word)
                    self._tell(self._named[word])
                if word not in ("", "opened"):
                    return
                heard = self._read(self._key)
                if heard != last:
                    kind, _, why = heard.partition(": ")
                    self._hear(**{kind: why or True})
                last = heard

    def _read(self, key: str) -> str:
        return self._store.compare_set(key, "", "").decode()  # unlike get(), it does not wait

    def _name(self, late: re.Match) -> str:
        host = self._read(_HOST % int(late[1]))
        return rank_name(int(late[1]), host) if host else late[0]

    def _tell(self, word: str) -> None:
        """Publishes the word, unless the save has already ended."""
        if self._store.compare_set(self._key, "", word) == b"opened":
            self._store.compare_set(self._key, "opened", word)


session = Session()
