"""The package cairn.data by itself: texts to documents, documents to parts, and what is left behind by a stop or a failure."""

import contextlib
import io
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import numpy
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from cairn.data import _import, _texts, _words  # noqa: E402
from cairn.data._dataset import Dataset, type_for  # noqa: E402
from cairn.data._errors import DataError  # noqa: E402
from cairn.data._facts import Progress  # noqa: E402
from cairn.data._tokenizers import Bytes, HuggingFace, SentencePiece, load, load_gpt2, train_sentencepiece  # noqa: E402

PROSE = ["In the beginning was the word, and the word went on for a long time.",
         "And it was said among them: who has counted the stones of the cairn?",
         "Then the travellers came down from the mountain, and every one laid a stone.",
         "The wind took the sand away \u2014 but the stones of the cairn it could not take."]
MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from cairn.data.__main__ import main; main()"


def prose(lines):
    return "".join(f"{PROSE[i % 4]} {i * 7919}\n" for i in range(lines))


def join_parts(parts, tokenizer):
    """The tokens of each document."""
    documents = []
    for part in parts:
        if part.begins:
            documents.append([])
        skipped = len(tokenizer.encode([part.lead])[0]) if part.lead else 0
        documents[-1] += tokenizer.encode([part.lead + part.text])[0][skipped:].tolist()
    return documents


class DataCase(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="cairn-data-")
        self.addCleanup(place.cleanup)
        self.dir = pathlib.Path(place.name)

    def write(self, name, content):
        (self.dir / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(self.dir / name)

    def names(self):
        return sorted(path.name for path in self.dir.iterdir())

    def command(self, *words, program=MAIN):
        return [sys.executable, "-c", program, str(ROOT / "python"), *map(str, words)]

    def run_program(self, *words, program=MAIN):
        return subprocess.run(self.command(*words, program=program), capture_output=True, text=True)


class TextsTest(DataCase):
    def documents(self, *paths, **options):
        texts = _texts.Texts(list(paths), **options)
        documents, rest = [], b""
        self.chunks = 0
        for chunk, ends in texts:
            self.chunks += 1
            rest += chunk
            if ends:
                documents.append(rest)
                rest = b""
        self.assertEqual((rest, texts.done), (b"", texts.total))
        return documents

    def test_a_file_is_one_document_byte_for_byte(self):
        contents = [b"\n\none\n\ntwo \r\n\n", b"three", os.urandom(3_000_000), b"x" * (5 << 20)]
        paths = [self.write(str(i), content) for i, content in enumerate(contents)]
        self.assertEqual(self.documents(*paths), contents)
        self.assertGreater(self.chunks, 6)
        self.assertEqual(self.documents(self.write("empty", "")), [])

    def test_blank_lines_separate_documents_on_request(self):
        text = self.write("a.txt", "\n \none\ntwo\n\t\r\n\nthree\r\n\n")
        self.assertEqual(self.documents(text, split=True), [b"one\ntwo", b"three"])
        self.assertEqual(self.documents(self.write("b", "one"), self.write("c", "two\n"), split=True), [b"one", b"two"])
        self.assertEqual(self.documents(self.write("d", " \n\n"), split=True), [])
        long = (prose(80_000) + "end").encode()
        self.assertEqual(self.documents(self.write("e", long + b"\n"), split=True), [long])
        self.assertGreater(self.chunks, 5)

    def test_the_end_of_a_long_line_is_not_a_blank_line(self):
        text = b"x" * _texts.CHUNK_BYTES + b"  \nthe same document\n"
        self.assertEqual(len(self.documents(self.write("a", text), split=True)), 1)

    def test_json_lines_are_known_by_name(self):
        lines = '{"text": "one\\ntwo", "id": 1}\n\n{"body": "x", "text": "\\u20ac"}'
        for name in ("a.jsonl", "a.ndjson", "a.json"):
            self.assertEqual(self.documents(self.write(name, lines)), [b"one\ntwo", "\u20ac".encode()])
        text = self.write("a.txt", lines)
        self.assertEqual(self.documents(text), [lines.encode()])
        self.assertEqual(len(self.documents(text, format="jsonl")), 2)
        self.assertEqual(self.documents(self.write("b.jsonl", '\ufeff{"body": "x"}\n'), key="body"), [b"x"])

    def test_bad_json_lines_are_named(self):
        for content, message in ((b'{"text": "a"}\n{"text": \n', "line 2 is not a JSON object"), (b"[1]\n", "line 1 is not a JSON object"),
                                 (b'{"text": "\xff"}\n', "line 1 is not a JSON object"), (b'{"text": "\\ud800"}\n', "line 1 is not a JSON object"),
                                 (b"[" * 100_000, "line 1 is not a JSON object"), (b'{"text": "", "x": NaN}', "line 1 is not a JSON object"),
                                 (b'{"text": 3}\n', 'line 1 has no string under "text"'), (b'{"body": "a"}', 'line 1 has no string under "text"')):
            with self.subTest(content=content[:30]), self.assertRaisesRegex(DataError, "bad.jsonl: " + message):
                self.documents(self.write("bad.jsonl", content))

    def test_a_missing_input_is_reported_before_any_is_read(self):
        with self.assertRaisesRegex(FileNotFoundError, "none.txt"):
            _texts.Texts([self.write("a.txt", "x"), str(self.dir / "none.txt")])
        with self.assertRaisesRegex(DataError, "is a directory"):
            _texts.Texts([str(self.dir)])


class PartsTest(DataCase):
    """A text in parts, here in small ones, has the tokens that the library gives the whole."""

    def setUp(self):
        super().setUp()
        small = unittest.mock.patch.multiple(_import, WHOLE_BYTES=1 << 16, PART_BYTES=1 << 14, _SEARCH_BYTES=1 << 13)
        small.start()
        self.addCleanup(small.stop)

    def sentencepiece(self, **options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(prose(2000).splitlines()), model_writer=model, vocab_size=400,
                                                 hard_vocab_limit=False, minloglevel=2, **options)
        return SentencePiece(model.getvalue(), "model")

    def train(self, model, trainer, pre_tokenizer, normalizer=None):
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizer
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.train_from_iterator([prose(2000)], trainer(vocab_size=500, special_tokens=["<unk>", "</s>"], show_progress=False))
        tokenizer.add_tokens([AddedToken("<fim>", lstrip=True, rstrip=True), AddedToken("cairn?\nThen")])
        return HuggingFace(tokenizer, {}, "tokenizer")

    def tokenizers(self):
        exact = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
        llama = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        unknown = {"unk_token": "<unk>"}
        return {
            "own": SentencePiece(train_sentencepiece(_texts.Texts([self.write("own", prose(2000))]), 400), "own"),
            "spm bpe": self.sentencepiece(model_type="bpe", **exact),
            "spm bpe, normalized": self.sentencepiece(model_type="bpe"),
            "byte-level": self.train(models.BPE(), trainers.BpeTrainer, pre_tokenizers.ByteLevel(add_prefix_space=False)),
            "byte-level, a space in front": self.train(models.BPE(), trainers.BpeTrainer, pre_tokenizers.ByteLevel(add_prefix_space=True)),
            "llama": self.train(models.BPE(), trainers.BpeTrainer, pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(llama), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
            "words of BERT": self.train(models.WordPiece(**unknown), trainers.WordPieceTrainer, pre_tokenizers.BertPreTokenizer(),
                                        normalizers.BertNormalizer()),
            "metaspace": self.train(models.Unigram(), lambda **options: trainers.UnigramTrainer(unk_token="<unk>", **options),
                                    pre_tokenizers.Metaspace()),
        }

    def test_long_texts(self):
        lines = prose(2600)
        texts = {"lines": lines, "one line": lines.replace("\n", " "), "marks": "\u2014\U0001f600 x" * 25_000, "gaps": lines.replace(" ", "\n\n  "),
                 "added": lines.replace("the", "<fim>\n")}
        for name, tokenizer in self.tokenizers().items():
            for kind, text in texts.items():
                with self.subTest(tokenizer=name, text=kind):
                    path = self.write("long.txt", text)
                    parts = list(_import._parts(_texts.Texts([path]), tokenizer))
                    self.assertGreater(len(parts), 5)
                    whole = tokenizer.encode([text.encode()])[0].tolist()
                    if name in ("own", "metaspace") and kind != "lines":  # scores added up in a float choose other pieces in a longer text
                        self.assertLess(abs(len(join_parts(parts, tokenizer)[0]) / len(whole) - 1), 1e-3)
                    else:
                        self.assertTrue(join_parts(parts, tokenizer) == [whole])

    def test_bytes_are_cut_anywhere(self):
        content = os.urandom(3_000_000)
        parts = _import._parts(_texts.Texts([self.write("a", content), self.write("b", "b")]), Bytes())
        self.assertEqual([bytes(document) for document in join_parts(parts, Bytes())], [content, b"b"])

    def test_a_text_without_a_place_to_cut_is_refused_by_name(self):
        tokenizer = self.tokenizers()["byte-level"]
        path = self.write("long.txt", "x" * (1 << 20))
        with unittest.mock.patch.object(_import, "LONGEST_PART_BYTES", 1 << 16):
            with self.assertRaisesRegex(DataError, "long.txt: .* break it into lines"):
                list(_import._parts(_texts.Texts([path]), tokenizer))
        self.assertEqual([len(part.text) for part in _import._parts(_texts.Texts([path]), tokenizer)], [1 << 20])


class TokenizersTest(DataCase):
    def json_file(self, tokenizer, name="tokenizer.json"):
        tokenizer.save(str(self.dir / name))
        return str(self.dir / name)

    def words(self):
        tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2, "</s>": 3}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        return tokenizer

    def test_words_that_came_before_have_the_ids_of_the_library(self):
        chance = random.Random(7)
        bits = ["the", "The", "dog's", "'LL", "1999", "\u0663\u0664", "e\u0301", "\u0301", "\uac00\u11a8", "\u4e00\u4e8c", "!?", "...",
                "\u2026", "\U0001f600", "<x>", "<y>", "\u0130", "_", "\x1c", "\x85", " ", " ", " ", " ", "  ",
                "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", " \n ", "\u180e"]
        texts = ["".join(chance.choice(bits) for _ in range(chance.randint(0, 40))).encode() for _ in range(4000)]
        for expression in _words._EXPRESSIONS:
            for normalizer in (None, normalizers.NFC(), normalizers.Sequence([normalizers.NFC()])):
                tokenizer = Tokenizer(models.BPE())
                if normalizer:
                    tokenizer.normalizer = normalizer
                tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"),
                                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
                tokenizer.train_from_iterator([text.decode() for text in texts], trainers.BpeTrainer(
                    vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
                tokenizer.add_tokens([AddedToken("<x>"), AddedToken("<y>", lstrip=True, normalized=False)])
                self.assertTrue(_words.has_words(tokenizer))
                words = _words.Words(tokenizer)
                for most in (_words._MOST_CHARACTERS, 0):  # the second time all are forgotten first
                    with unittest.mock.patch.object(_words, "_MOST_CHARACTERS", most):
                        encoded = words.encode([text.decode() for text in texts])
                    for text, ids in zip(texts, encoded):
                        self.assertEqual(ids.tolist(), tokenizer.encode(text.decode()).ids, text)
        for added in (AddedToken("<z>", rstrip=True), AddedToken("two words")):
            other = Tokenizer.from_str(tokenizer.to_str())
            other.add_tokens([added])
            self.assertFalse(_words.has_words(other))
        for parts in (pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.Metaspace(), pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])):
            tokenizer.pre_tokenizer = parts
            self.assertFalse(_words.has_words(tokenizer))

    def test_files_of_the_library_give_its_ids(self):
        """Also of bytes that are not UTF-8; with tokens around each document; and of the two files of GPT-2."""
        body = prose(50).replace("stone", "<fim>\u2603 \u0663e\u0301<|endoftext|>  ")
        texts = [body.encode(), b"   ", b"ok \xff\xfe \xe2\x82 cut \xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf end\xe2" + random.Random(5).randbytes(2000)]
        tokenizer = Tokenizer(models.BPE(ignore_merges=True))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator([body], trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<unk>", "<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.model.save(str(self.dir))
        files = str(self.dir / "vocab.json"), str(self.dir / "merges.txt")
        gpt2 = Tokenizer(models.BPE.from_file(*files))
        gpt2.pre_tokenizer = tokenizer.pre_tokenizer
        tokenizer.add_tokens([AddedToken("<fim>", lstrip=True, rstrip=True)])
        fim, template = tokenizer.token_to_id("<fim>"), processors.TemplateProcessing(single="<unk> $A", pair=None, special_tokens=[("<unk>", 0)])
        own, roberta = self.json_file(tokenizer), processors.RobertaProcessing(("<fim>", fim), ("<unk>", 0))
        for library, loaded, processor, around in ((gpt2, load_gpt2(*files), None, ([], [])), (tokenizer, load(own), None, ([], [])),
                                                   (tokenizer, None, template, ([0], [])), (tokenizer, None, roberta, ([0], [fim]))):
            if processor:
                tokenizer.post_processor = processor
            loaded = loaded or load(self.json_file(tokenizer))
            self.assertEqual((loaded.before, loaded.after), around)
            for text, ids in zip(texts, loaded.encode(texts), strict=True):
                self.assertEqual([*around[0], *ids.tolist(), *around[1]], library.encode(text.decode(errors="replace")).ids)

    def test_truncation_and_padding_do_not_change_documents(self):
        tokenizer = self.words()
        tokenizer.enable_truncation(2)
        tokenizer.enable_padding(length=8)
        loaded = load(self.json_file(tokenizer))
        self.assertEqual(loaded.encode([b"a b a b c"])[0].tolist(), [0, 1, 0, 1, 2])
        self.assertEqual((loaded.vocab_size, loaded.eod, loaded.lost_bytes), (4, 3, 0))

    def test_a_word_that_the_model_cannot_express_is_an_error(self):
        tokenizer = Tokenizer(models.WordLevel({"a": 0}))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.assertRaisesRegex(DataError, "tokenizer.json: .*UNK", load(self.json_file(tokenizer)).encode, [b"a b"])

    def test_the_end_of_a_document_is_that_of_its_configuration(self):
        self.json_file(self.words())
        for eos in ("b", {"content": "b"}):
            self.write("tokenizer_config.json", json.dumps({"eos_token": eos}))
            self.assertEqual(load(str(self.dir)).eod, 1)
        self.write("tokenizer_config.json", '{"eos_token": "x"}')
        self.assertRaisesRegex(DataError, 'its eos_token "x" is not in the vocabulary', load, str(self.dir))
        self.write("tokenizer_config.json", "{")
        self.assertRaisesRegex(DataError, "its tokenizer_config.json is not JSON", load, str(self.dir))

    def test_bytes_without_a_token_are_counted(self):
        tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "\u0120": 4}, [("a", "b")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        loaded = load(self.json_file(tokenizer))
        self.assertEqual((loaded.encode([b"ab c<"])[0].tolist(), loaded.lost_bytes), ([3, 4, 2], 252))

    def test_unknown_and_damaged_tokenizers_are_refused(self):
        (self.dir / "empty").mkdir()
        for spec, content, message in (("gpt2", None, "expected bytes, sentencepiece:FILE"),
                                       ("bad.model", "this is text", "bad.model: this is not a"),
                                       ("bad.json", "[1", "bad.json: tokenizers cannot load"), ("bad2.json", '{"model": {"type": "x"}}', "bad2.json"),
                                       ("empty", None, "it has no tokenizer.json")):
            with self.subTest(spec=spec), self.assertRaisesRegex(DataError, message):
                load(self.write(spec, content) if content else str(self.dir / spec))
        vocab = self.write("vocab.json", '{"a": 0}')
        self.assertRaisesRegex(DataError, "vocab.json: tokenizers cannot load it", load_gpt2, vocab, self.write("merges.txt", "a b c\n"))

    def test_a_vocabulary_that_the_text_cannot_fill_is_refused(self):
        for content, size in ((prose(10), 100_000), (prose(10), 3), ("", 300)):
            with self.subTest(size=size), self.assertRaisesRegex(DataError, f"a SentencePiece model of {size} tokens"):
                train_sentencepiece(_texts.Texts([self.write("a.txt", content)]), size)
        with self.assertRaisesRegex(DataError, "bad.jsonl: line 1"):
            train_sentencepiece(_texts.Texts([self.write("bad.jsonl", "x")]), 300)


class DatasetTest(DataCase):
    def make(self, documents, vocab_size=300, prefix="p"):
        with Dataset(str(self.dir / prefix), type_for(vocab_size)) as dataset:
            tokens = [numpy.array(document, numpy.int32) for document in documents]
            for at in range(0, len(tokens), 1000):
                some = tokens[at : at + 1000]
                dataset.add(numpy.concatenate(some), list(map(len, some)))
            dataset.publish(b"", {})

    def test_a_type_holds_the_vocabulary(self):
        self.assertEqual([type_for(n) for n in (257, 65499, 65500)], ["uint16", "uint16", "int32"])

    def test_it_writes_the_bytes_of_megatron_core(self):
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        numbers = numpy.random.default_rng(1)
        for vocab_size, dtype, count in ((300, numpy.uint16, 3), (100_000, numpy.int32, 300_000)):
            documents = [numbers.integers(0, vocab_size, size) for size in numbers.integers(0, 5, count)]
            self.make(documents, vocab_size, dtype.__name__)
            builder = IndexedDatasetBuilder(str(self.dir / "m.bin"), dtype=dtype)
            for document in documents:
                builder.add_document(document, [len(document)])
            builder.finalize(str(self.dir / "m.idx"))
            for ending in (".bin", ".idx"):
                self.assertTrue((self.dir / (dtype.__name__ + ending)).read_bytes() == (self.dir / ("m" + ending)).read_bytes(), ending)

    def test_nothing_has_its_name_before_the_end_or_is_left_without_it(self):
        with contextlib.suppress(ZeroDivisionError), Dataset(str(self.dir / "p"), "int32") as dataset:
            dataset.add(numpy.zeros(1_000_000, numpy.int32), [1_000_000])
            self.assertEqual([name[:14] for name in self.names()], ["p.bin.partial-", "p.idx.partial-"])
            raise ZeroDivisionError
        self.assertEqual(self.names(), [])

    def test_a_file_that_appears_later_is_not_overwritten(self):
        for ending in (".bin", ".idx", ".model", ".tokenizer"):
            present = self.write("p" + ending, "precious")
            with self.subTest(ending=ending), self.assertRaisesRegex(DataError, f"p{ending} exists"):
                with Dataset(str(self.dir / "p"), "int32") as dataset:
                    dataset.publish(b"model", {"tokenizer.json": b"{}"})
            self.assertEqual((self.names(), (self.dir / ("p" + ending)).read_text()), (["p" + ending], "precious"))
            os.unlink(present)

    def test_tokens_are_durable_before_the_index(self):
        calls = []
        rename, sync = os.rename, os.fsync
        with unittest.mock.patch("os.rename", lambda a, b: (calls.append(b[-3:]), rename(a, b))), \
                unittest.mock.patch("os.fsync", lambda file: (calls.append("sync"), sync(file))):
            self.make([[1]])
        self.assertEqual(calls, ["sync", "sync", "bin", "sync", "idx", "sync"])

    def test_a_full_disk_and_a_missing_directory_are_named(self):
        self.assertRaisesRegex(DataError, "no/p.bin.*No such file", self.make, [[1]], prefix="no/p")
        with Dataset(str(self.dir / "p"), "int32") as dataset:
            dataset._bin.close()
            dataset._bin = open("/dev/full", "wb")
            with self.assertRaisesRegex(DataError, "No space left"):
                dataset.add(numpy.zeros(1_000_000, numpy.int32), [1_000_000])
        self.assertEqual(self.names(), [])


class ProgramTest(DataCase):
    def test_a_library_that_is_missing_is_named(self):
        text = self.write("a.txt", "text")
        for library, flags in {"sentencepiece": ("--train-sentencepiece", "--vocab-size", 300), "numpy": ("--tokenizer", "bytes")}.items():
            done = self.run_program(text, "--output-prefix", self.dir / "p", *flags, program=f"import sys; sys.modules[{library!r}] = None; " + MAIN)
            self.assertEqual((done.returncode, done.stderr), (2, f"cairn: cairn data needs {library}: pip install 'cairn-checkpoints[data]'\n"))
        self.assertEqual(self.names(), ["a.txt"])

    def test_misuse_is_one_line(self):
        for words, message in (("", "required"), ("--frob", "--frob"), ("--format x", "--format"), ("--vocab-file v", "--merge-file must be")):
            done = self.run_program(*(["a", "--output-prefix", "p"] if words else []), *words.split())
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
            self.assertRegex(done.stderr, f"^cairn: .*{message}")
        self.assertIn("error", json.loads(self.run_program("a", "--json").stdout))

    def test_a_signal_leaves_nothing(self):
        text = self.write("a.txt", prose(400_000))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            words = self.command(text, "--output-prefix", self.dir / "p", "--tokenizer", "bytes")
            program = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            while program.poll() is None and not (self.dir / "p.idx").exists() and not any(".partial-" in name for name in self.names()):
                time.sleep(0.001)
            program.send_signal(number)
            self.assertEqual((program.wait(), self.names()), (-number, ["a.txt"]))

    def test_a_terminal_shows_rate_and_time_left(self):
        for terminal, shown in ((True, "\rtokenizing 30.0 MB of 1.00 GB (3 %), 15.0 MB/s, 1 min 5 s left\x1b[K\r\x1b[K"),
                                (False, "tokenizing 500 MB of 1.00 GB (50 %), 25.0 MB/s, 20 s left\n")):
            stderr = io.StringIO()
            stderr.isatty = lambda: terminal
            clock = iter((0, 0.5, 2, 2.1, 20))
            with unittest.mock.patch("sys.stderr", stderr), unittest.mock.patch("time.monotonic", lambda: next(clock)):
                progress = Progress(10**9, True)
                for megabytes in (1, 30, 40, 500)[: 3 if terminal else 4]:
                    progress.update(megabytes * 10**6)
                progress.end()
            self.assertEqual(stderr.getvalue(), shown)


if __name__ == "__main__":
    unittest.main()
