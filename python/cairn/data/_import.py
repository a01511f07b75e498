"""Text to an indexed dataset, on all cores.

The main thread reads ahead and cuts the text into parts. Threads encode batches of parts: the libraries and
NumPy leave the interpreter free meanwhile. The main thread appends the tokens in order.

A document up to WHOLE_BYTES is one part. A longer one is cut, where the library itself gives the text around
the cut the tokens of its two sides. Some models put a space before a text, so no cut is like that; then the
right side is encoded after a newline, whose tokens are left out.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Optional

from cairn.data._dataset import Dataset
from cairn.data._errors import DataError
from cairn.data._texts import Texts
from cairn.data._tokenizers import Tokenizer

if TYPE_CHECKING:
    import numpy

WHOLE_BYTES = 1 << 20
PART_BYTES = 128 << 10  # of a longer document
LONGEST_PART_BYTES = 64 << 20
_SEARCH_BYTES = 64 << 10  # for a place to cut
_CONTEXT_BYTES = 2 << 10  # on both sides of a cut that is tried
_TRIES = 8
_LEADS = (b"", b"\n")
# After a newline, before the space between words.
_PLACES = (re.compile(rb"(?<=\n)(?=\S)"), re.compile(rb"(?<=\S)(?= \S)"))
_BATCH_BYTES, _BATCH_PARTS = 512 << 10, 4096
_MOST_THREADS = 16


@dataclass
class Part:
    text: bytes
    begins: bool  # the document
    ends: bool
    lead: bytes = b""  # is put before the text, and its tokens are left out


@dataclass
class Counts:
    documents: int = 0
    tokens: int = 0  # with the ends of documents
    bytes_read: int = 0


def import_text(
    texts: Texts,
    tokenizer: Tokenizer,
    append_eod: bool,
    dataset: Optional[Dataset],
    progress: Callable[[int], None],
) -> Counts:
    """Appends every document to `dataset`, or only counts if that is None.

    A document, even an empty one, begins and ends with the tokens that the tokenizer puts around a text; the
    end of a document follows. Documents without a token are left out. progress gets the bytes read so far.
    """
    if append_eod and tokenizer.eod is None:
        raise DataError("--append-eod: this tokenizer has no token that ends a document")
    collector = _Collector(tokenizer, append_eod, dataset)
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    pool = ThreadPoolExecutor(threads)
    waiting: deque = deque()

    def take() -> None:
        batch, future, done = waiting.popleft()
        collector.add(batch, future.result())
        progress(done)

    try:
        for batch in _batches(_parts(texts, tokenizer)):
            waiting.append(
                (batch, pool.submit(tokenizer.encode, [part.lead + part.text for part in batch]), texts.done)
            )
            if len(waiting) > threads + 1:
                take()
        while waiting:
            take()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    collector.counts.bytes_read = texts.done
    return collector.counts


class _Collector:
    """Puts the tokens of parts together to documents."""

    def __init__(self, tokenizer: Tokenizer, append_eod: bool, dataset: Optional[Dataset]):
        import numpy as np

        self.counts = Counts()
        self._dataset = dataset
        self._before = np.array(tokenizer.before, np.int32)
        self._after = np.array(tokenizer.after, np.int32)
        self._eod = np.array([tokenizer.eod] if append_eod else [], np.int32)
        self._skip = {lead: len(tokenizer.encode([lead])[0]) if lead else 0 for lead in _LEADS}
        self._length = 0  # of the document so far

    def add(self, parts: list[Part], encoded: list[numpy.ndarray]) -> None:
        import numpy as np

        arrays: list[numpy.ndarray] = []
        lengths: list[int] = []
        for part, tokens in zip(parts, encoded):
            pieces = [tokens[self._skip[part.lead] :]] if part.lead else [tokens]
            if part.begins:
                pieces.insert(0, self._before)
            if part.ends:
                pieces.append(self._after)
            self._length += sum(map(len, pieces))
            if part.ends and self._length > 0:
                pieces.append(self._eod)
                lengths.append(self._length + len(self._eod))
            if part.ends:
                self._length = 0
            arrays += pieces
        tokens = np.concatenate(arrays, dtype=np.int32, casting="unsafe")
        self.counts.tokens += len(tokens)
        self.counts.documents += len(lengths)
        if self._dataset:
            self._dataset.add(tokens, lengths)


def _batches(parts: Iterator[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.text)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_PARTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parts(texts: Texts, tokenizer: Tokenizer) -> Iterator[Part]:
    if tokenizer.cuts_anywhere:
        begins = True
        for chunk, ends in texts:
            yield Part(chunk, begins, ends)
            begins = ends
        return
    rest, begins, lead = b"", True, b""
    tried = 0  # bytes of the rest that have no place to cut
    for chunk, ends in texts:
        rest += chunk
        at = 0
        while len(rest) - at > (WHOLE_BYTES if begins else PART_BYTES) and (
            len(rest) - at - tried > PART_BYTES + _SEARCH_BYTES + _CONTEXT_BYTES
        ):
            place = at + tried + PART_BYTES
            cut = _find_cut(rest, place, tokenizer)
            if cut is None:
                tried += _SEARCH_BYTES
                if tried > LONGEST_PART_BYTES:
                    raise DataError(
                        f"{texts.path}: a document has {tried >> 20} MiB without a line or a word that could "
                        "be encoded by itself; break it into lines, or into documents"
                    )
                continue
            end, next_lead = cut
            yield Part(rest[at:end], begins, False, lead)
            at, begins, lead, tried = end, False, next_lead, 0
        rest = rest[at:]
        if ends:
            yield Part(rest, begins, True, lead)
            rest, begins, lead, tried = b"", True, b"", 0


def _find_cut(text: bytes, at: int, tokenizer: Tokenizer) -> Optional[tuple[int, bytes]]:
    """A place to cut from `at` on, and the lead of the text after it."""
    for lead in _LEADS:
        for place in _PLACES:
            for match in islice(place.finditer(text, at, at + _SEARCH_BYTES), _TRIES):
                if _separates(text, match.start(), lead, tokenizer):
                    return match.start(), lead
    return None


def _separates(text: bytes, at: int, lead: bytes, tokenizer: Tokenizer) -> bool:
    begin, end = max(0, at - _CONTEXT_BYTES), at + _CONTEXT_BYTES
    sides = [text[begin:end], text[begin:at], lead + text[at:end], lead]
    both, left, right, skipped = (tokens.tolist() for tokens in tokenizer.encode(sides))
    return both == left + right[len(skipped) :] and right[: len(skipped)] == skipped
