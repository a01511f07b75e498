"""Text to token ids: bytes, a SentencePiece model, or a tokenizer of Hugging Face.

Each class has `vocab_size`, `eod` (the token that ends a document, or None), `before` and `after` (the tokens
around each document), `files` (the tokenizer as transformers' AutoTokenizer loads it, by name; if empty,
`unpublished` says why), `lost_bytes` (how many of the 256 bytes have no token: text loses them) and
`cuts_anywhere` (the tokens of a text that is cut are those of its parts). encode() gives an array of ids for
each text; several threads may call it. Bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional, Union

from cairn.data._errors import DataError
from cairn.data._published import byte_characters, published_bytes, published_sentencepiece
from cairn.data._texts import Texts
from cairn.data._words import Words, has_words

if TYPE_CHECKING:
    import numpy
    import tokenizers

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
)
# If no file names the token that ends a document: GPT-2 and Qwen, BLOOM, LLaMA-3.
_KNOWN_EODS = ("<|endoftext|>", "</s>", "<|end_of_text|>")
_GPT2_CONFIG = {
    "tokenizer_class": "GPT2Tokenizer",
    "eos_token": "<|endoftext|>",
    "bos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
}
_MAX_SENTENCE_BYTES = 4000  # SentencePiece skips sentences of more than 4192
_MAX_TRAINING_LINES = 1_000_000  # about 0.2 GB of text, in memory; SentencePiece samples from more


class Bytes:
    vocab_size, eod = 257, 256
    before: list[int] = []
    after: list[int] = []
    lost_bytes = 0
    cuts_anywhere = True
    unpublished = ""

    def __init__(self) -> None:
        self.files = published_bytes()

    def encode(self, texts: list[bytes]) -> list[numpy.ndarray]:
        import numpy as np

        return [np.frombuffer(text, np.uint8) for text in texts]


class SentencePiece:
    """`model`: the content of a .model file. The end of a document is its </s>, as in Megatron."""

    before: list[int] = []
    after: list[int] = []
    lost_bytes = 0
    cuts_anywhere = False

    def __init__(self, model: bytes, path: str):
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self.files, self.unpublished = published_sentencepiece(model)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{path}: this is not a SentencePiece model: {error}") from None
        self.vocab_size = self._processor.get_piece_size()
        eod = self._processor.eos_id()
        self.eod = eod if eod >= 0 else None
        # Whether two lines together have the tokens of each. They do not, for example, if the model puts a
        # space before a text. A unigram model adds up scores in a float along the whole text, so after some
        # hundred kilobytes rounding chooses the pieces, not the model: lines are better.
        together, *apart = self._encode([b"the first\nand second", b"the first\n", b"and second"])
        self._by_lines = together.tolist() == [token for tokens in apart for token in tokens.tolist()]

    def _encode(self, texts: list[bytes]) -> list[numpy.ndarray]:
        return self._processor.encode(texts, out_type="numpy", num_threads=1)

    def encode(self, texts: list[bytes]) -> list[numpy.ndarray]:
        import numpy as np

        if not self._by_lines:
            return self._encode(texts)
        lines = [re.findall(rb"[^\n]*\n+|[^\n]+", text) for text in texts]
        tokens = iter(self._encode([line for each in lines for line in each]))
        empty = np.empty(0, np.int32)
        return [np.concatenate([empty, *(next(tokens) for _ in each)]) for each in lines]


class HuggingFace:
    """`tokenizer`: of the library; its ids are those of its encode(). `path`: named in errors."""

    cuts_anywhere = False
    unpublished = ""

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: dict[str, bytes], path: str):
        self._tokenizer, self.files, self._path = tokenizer, files, path
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eod = self._find_eod()
        self._words = Words(tokenizer) if has_words(tokenizer) else None
        self.before, self.after = self._find_around()
        self.lost_bytes = self._count_lost_bytes()

    def encode(self, texts: list[bytes]) -> list[numpy.ndarray]:
        import numpy as np

        valid = [text.decode(errors="replace") for text in texts]
        if self._words:
            return self._words.encode(valid)
        try:
            encodings = self._tokenizer.encode_batch_fast(valid, add_special_tokens=False)
        except Exception as error:  # the library has no other type
            raise DataError(f"{self._path}: {error}") from None
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def _find_around(self) -> tuple[list[int], list[int]]:
        if self._tokenizer.num_special_tokens_to_add(False) == 0:
            return [], []
        probe, text = self._tokenizer.encode("a"), self.encode([b"a"])[0].tolist()
        first = [*probe.special_tokens_mask, 0].index(0)
        last = first + len(text)
        if probe.ids[first:last] != text or 0 in probe.special_tokens_mask[last:]:
            raise DataError(f"{self._path}: its post_processor puts tokens into a text, not only around it")
        return probe.ids[:first], probe.ids[last:]

    def _find_eod(self) -> Optional[int]:
        try:
            config = json.loads(self.files.get("tokenizer_config.json", b"{}"))
        except ValueError as error:
            raise DataError(f"{self._path}: its tokenizer_config.json is not JSON: {error}") from None
        eos = config.get("eos_token") if isinstance(config, dict) else None
        content = eos.get("content") if isinstance(eos, dict) else eos
        if isinstance(content, str):
            eod = self._tokenizer.token_to_id(content)
            if eod is None:
                raise DataError(f'{self._path}: its eos_token "{content}" is not in the vocabulary')
            return eod
        known = (self._tokenizer.token_to_id(content) for content in _KNOWN_EODS)
        return next((eod for eod in known if eod is not None), None)

    def _count_lost_bytes(self) -> int:
        model = self._tokenizer.model
        if (
            "ByteLevel" not in repr(self._tokenizer.pre_tokenizer)
            or getattr(model, "unk_token", "") is not None
        ):
            return 0
        return sum(
            model.token_to_id(character) is None
            and not (model.byte_fallback and all(self._has_byte(byte) for byte in character.encode()))
            for character in byte_characters()
        )

    def _has_byte(self, byte: int) -> bool:
        return self._tokenizer.model.token_to_id(f"<0x{byte:02X}>") is not None


Tokenizer = Union[Bytes, SentencePiece, HuggingFace]


def load(spec: str) -> Tokenizer:
    """`spec`: bytes, sentencepiece:FILE, or a .model, a tokenizer.json, or a directory of one of them."""
    if spec == "bytes":
        return Bytes()
    if spec.startswith("sentencepiece:"):
        return _load_sentencepiece(spec.partition(":")[2])
    if spec.endswith(".model"):
        return _load_sentencepiece(spec)
    if not os.path.exists(spec):
        raise DataError(
            f"--tokenizer {spec}: expected bytes, sentencepiece:FILE, a tokenizer.json or the directory of "
            "one, and there is no such file"
        )
    if not os.path.isdir(spec):
        return _load_json(
            {
                "tokenizer.json": _read(spec),
                "tokenizer_config.json": _json_file({"tokenizer_class": "PreTrainedTokenizerFast"}),
            },
            spec,
        )
    there = [name for name in _FILES if os.path.exists(os.path.join(spec, name))]
    if "tokenizer.json" in there:
        return _load_json({name: _read(os.path.join(spec, name)) for name in there}, spec)
    if {"vocab.json", "merges.txt"} <= set(there):
        files = {name: _read(os.path.join(spec, name)) for name in there}
        return _load_merges(os.path.join(spec, "vocab.json"), os.path.join(spec, "merges.txt"), files, spec)
    if os.path.exists(os.path.join(spec, "tokenizer.model")):
        return _load_sentencepiece(os.path.join(spec, "tokenizer.model"))
    raise DataError(
        f"{spec}: it has no tokenizer.json, no vocab.json with merges.txt, and no tokenizer.model; "
        "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(DIR) writes a tokenizer.json"
    )


def load_gpt2(vocab_file: str, merge_file: str) -> HuggingFace:
    """They know no added tokens: <|endoftext|> in a text is text, as in Megatron's GPT2BPETokenizer."""
    files = {
        "vocab.json": _read(vocab_file),
        "merges.txt": _read(merge_file),
        "tokenizer_config.json": _json_file(_GPT2_CONFIG),
    }
    return _load_merges(vocab_file, merge_file, files, vocab_file)


def train_sentencepiece(texts: Texts, vocab_size: int) -> bytes:
    """The content of a .model file.

    Unigram; ids 0 unknown, 1 <s>, 2 </s>, 3 to 258 the bytes. The model is lossless: nothing is normalized,
    no space is added, and characters without a piece fall back to bytes. So tokens decode to exactly the
    same text, newlines included, and a text may be cut at a line end before it is encoded.
    """
    import sentencepiece

    failure: list[Exception] = []

    def lines() -> Iterator[bytes]:
        try:
            yield from _training_lines(texts)
        except Exception as error:  # the library would make a RuntimeError of it
            failure.append(error)

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="unigram",
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            byte_fallback=True,
            input_sentence_size=_MAX_TRAINING_LINES,
            num_threads=len(os.sched_getaffinity(0)),
            minloglevel=2,
        )
    except RuntimeError as error:
        if not failure:
            raise DataError(
                f"cannot train a SentencePiece model of {vocab_size} tokens on this text: {error}"
            ) from None
    if failure:
        raise failure[0]
    return model.getvalue()


def _training_lines(texts: Texts) -> Iterator[bytes]:
    for chunk, _ in texts:
        for line in chunk.split(b"\n"):
            while len(line) > _MAX_SENTENCE_BYTES:
                space = line.rfind(b" ", 1, _MAX_SENTENCE_BYTES + 1)
                end = space if space > 0 else _MAX_SENTENCE_BYTES
                yield line[:end]
                line = line[end:]
            line = line.removesuffix(b"\r")
            if line:
                yield line


def _load_sentencepiece(path: str) -> SentencePiece:
    return SentencePiece(_read(path), path)


def _load_json(files: dict[str, bytes], path: str) -> HuggingFace:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception as error:
        raise DataError(f"{path}: tokenizers cannot load its tokenizer.json: {error}") from None
    return HuggingFace(tokenizer, files, path)


def _load_merges(vocab: str, merges: str, files: dict[str, bytes], path: str) -> HuggingFace:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
    except Exception as error:
        raise DataError(f"{path}: tokenizers cannot load it with {merges}: {error}") from None
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return HuggingFace(tokenizer, files, path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _json_file(value: dict) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
