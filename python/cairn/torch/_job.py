"""Which rank of which job this process is, and names for its saves that all ranks agree on."""

from __future__ import annotations

import collections
import datetime
import hashlib
import secrets
import threading
from typing import Any, Optional

import torch.distributed as dist

from cairn.torch import _private


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

    Rank 0 leaves a random word in the job's store, which the others wait for once: no collective.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Any = None
        self._joined = 0
        self._word: Optional[str] = None
        self._saves: collections.Counter = collections.Counter()

    def nonce(self, step: int, deadline: float) -> str:
        """For the next save of `step`. Raises TimeoutError without rank 0's word."""
        with self._lock:
            word = self._session_word(deadline)
            self._saves[step] += 1
            return hashlib.blake2b(f"{word} {step} {self._saves[step]}".encode(), digest_size=8).hexdigest()

    def _session_word(self, deadline: float) -> str:
        store = _private.default_store() if rank_and_world()[1] > 1 else None
        if self._word is None or store is not self._store:
            word = secrets.token_hex(8)
            if store is not None:
                late = f"rank 0 has not begun to save within {deadline:g} s; all ranks must save"
                word = _agree(store, f"cairn.torch/session/{self._joined}", word, deadline, late)
                self._joined += 1
            self._store, self._word = store, word
            self._saves.clear()
        return self._word


def agree(key: str, word: str, deadline: float) -> str:
    """Rank 0's word, on all ranks: through the job's store, under a key that was not used before. Raises TimeoutError without it."""
    if rank_and_world()[1] == 1:
        return word
    return _agree(_private.default_store(), key, word, deadline, f"rank 0 has not said {key} within {deadline:g} s")


def _agree(store: Any, key: str, word: str, deadline: float, late: str) -> str:
    if rank_and_world()[0] == 0:
        store.set(key, word)
        return word
    try:
        store.wait([key], datetime.timedelta(seconds=deadline))
    except RuntimeError as error:
        raise TimeoutError(late) from error
    return store.get(key).decode()


session = Session()
