"""A tokenizer in the form that transformers' AutoTokenizer loads: tokenizer.json and tokenizer_config.json.

Of a SentencePiece model this is what transformers' own conversion makes (convert_slow_tokenizer.py). A BPE
model has scores in place of merges: a piece is the merge of any two pieces that make it, and the best score
is merged first. A copy of the model would not do: transformers 5.23 reads it as LlamaTokenizer, whose ids
differ from SentencePiece's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Union

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # types of sentencepiece_model.proto
_UNIGRAM, _BPE = 1, 2
_SPACE = "\u2581"

Piece = tuple[str, float, int]  # text, score and type


def byte_characters() -> list[str]:
    """The character that byte-level BPE writes for each byte: GPT-2's table."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + at) for at in range(256))
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]


def published_bytes() -> dict[str, bytes]:
    """Ids are bytes; 256 is <|endoftext|>."""
    end = "<|endoftext|>"
    vocabulary = {character: byte for byte, character in enumerate([*byte_characters(), end])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = _tokenizer(
        [_added(256, end, True)], None, level, level, _bpe(None, False, False, vocabulary, [])
    )
    return _files(tokenizer, {"eos_token": end, "bos_token": end})


def published_sentencepiece(content: bytes) -> tuple[dict[str, bytes], str]:
    """Of a .model file: the files, or none and why the `tokenizers` library has no such model.

    Raises ValueError if it is damaged.
    """
    pieces, kind, exact, dummy_prefix = _read_model(content)
    if kind not in (_UNIGRAM, _BPE):
        return {}, "a SentencePiece model of whole words or single characters"
    if not exact:
        return {}, "a SentencePiece model that normalizes its text"
    types = [piece[2] for piece in pieces]
    if _UNKNOWN not in types:
        raise ValueError("it has no unknown piece")
    unknown, fallback = types.index(_UNKNOWN), _BYTE in types
    added = [
        _added(at, text, type_ != _USER_DEFINED)
        for at, (text, _, type_) in enumerate(pieces)
        if type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    controls = [text for text, _, type_ in pieces if type_ == _CONTROL]
    names = {"<s>": "bos_token", "</s>": "eos_token"}
    config = {names[text]: text for text in controls if text in names}
    config["unk_token"] = pieces[unknown][0]
    normalizers = [{"type": "Prepend", "prepend": _SPACE}] if dummy_prefix else []
    decoders: list[dict] = [_replace(_SPACE, " ")]
    decoders += [{"type": "ByteFallback"}] if fallback else []
    decoders += [{"type": "Fuse"}]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if dummy_prefix else []
    tokenizer = _tokenizer(
        added,
        {"type": "Sequence", "normalizers": [*normalizers, _replace(" ", _SPACE)]},
        None,
        {"type": "Sequence", "decoders": decoders},
        (_unigram_of if kind == _UNIGRAM else _bpe_of)(pieces, unknown, fallback),
    )
    return _files(tokenizer, config), ""


def _replace(pattern: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _added(number: int, text: str, special: bool) -> dict:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": number, "content": text, **flags}


def _tokenizer(added: list, normalizer: Any, pre: Any, decoder: Any, model: dict) -> dict:
    parts = {"normalizer": normalizer, "pre_tokenizer": pre, "post_processor": None, "decoder": decoder}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **parts,
        "model": model,
    }


def _bpe(unknown: Any, fuse: bool, fallback: bool, vocabulary: dict, merges: list) -> dict:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuse,
        "byte_fallback": fallback,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _files(tokenizer: dict, config: dict) -> dict[str, bytes]:
    config = {**config, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    contents = {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    return {
        name: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")
        for name, content in contents.items()
    }


def _unigram_of(pieces: list[Piece], unknown: int, fallback: bool) -> dict:
    least = min((score for _, score, type_ in pieces if type_ == _NORMAL), default=0.0)
    # Control and unused pieces get a score so low that no text is cut into them.
    never = 100.0 * (min(least, 0.0) - 1)
    vocabulary = [
        [text, score if type_ in (_NORMAL, _USER_DEFINED) else never] for text, score, type_ in pieces
    ]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": fallback}


def _bpe_of(pieces: list[Piece], unknown: int, fallback: bool) -> dict:
    ids: dict[str, int] = {}
    for at, (text, _, type_) in enumerate(pieces):
        if type_ == _NORMAL:
            ids.setdefault(text, at)
    merges = []
    for at in sorted(ids.values(), key=lambda at: (-pieces[at][1], at)):
        text = pieces[at][0]
        halves = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        pairs = sorted((ids[left], ids[right]) for left, right in halves if left in ids and right in ids)
        merges += [[pieces[left][0], pieces[right][0]] for left, right in pairs]
    vocabulary = {text: at for at, (text, _, _) in enumerate(pieces)}
    return _bpe(pieces[unknown][0], True, fallback, vocabulary, merges)


def _read_model(content: bytes) -> tuple[list[Piece], int, bool, bool]:
    """(pieces, type of the model, whether it keeps every character, whether it puts a space in front)"""
    pieces: list[Piece] = []
    kind, dummy_prefix, exact = _UNIGRAM, True, True
    removes_spaces = True
    for number, message in _fields(content):
        if number not in (1, 2, 3):
            continue
        if not isinstance(message, bytes):
            raise ValueError("it is damaged")
        values = dict(_fields(message))  # the last of a field counts
        if number == 1:
            score = values.get(2, bytes(4))
            pieces.append(
                (
                    values.get(1, b"").decode(errors="replace"),
                    struct.unpack("<f", score)[0],
                    values.get(3, _NORMAL),
                )
            )
        elif number == 2:
            kind = values.get(3, kind)
            exact = exact and not values.get(24, 0)  # spaces stand after words
        else:
            exact = exact and not values.get(2) and bool(values.get(5, 1))  # no table, and spaces are marked
            dummy_prefix = bool(values.get(3, 1))
            removes_spaces = bool(values.get(4, 1))
    return pieces, kind, exact and not removes_spaces, dummy_prefix


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protobuf message: integers, and the bytes of everything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size = {1: 8, 5: 4}.get(key & 7)
        value: Union[int, bytes]
        if key & 7 == 0:
            value, at = _varint(message, at)
        else:
            if key & 7 == 2:
                size, at = _varint(message, at)
            if size is None or at + size > len(message):
                raise ValueError("it is damaged")
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 64, 7):
        if at == len(message):
            break
        result |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return result, at
    raise ValueError("it is damaged")
