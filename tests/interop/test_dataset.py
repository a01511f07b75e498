"""Datasets and event files against other programs that read them: NumPy, SentencePiece, TensorBoard.

DATA_PROBE names the program of tests/runtime/data/data_probe.cc.
"""

import json
import logging
import math
import os
import shutil
import struct
import subprocess
import unittest

import numpy
import sentencepiece
from harness import Case, cairn
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

DTYPES = {1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64, 8: numpy.uint16}
PROSE = [
    "In the beginning was the word, and the word went on for a long time.",
    "And it was said among them: who has counted the stones of the cairn?",
    "Then the travellers came down from the mountain, and every one laid a stone.",
    "The wind took the sand away — but the stones of the cairn it could not take.",
]


def prose(lines):
    return "".join(f"{PROSE[i % 4]} {i * 7919}\n" for i in range(lines))


def read_dataset(prefix):
    """The documents of a dataset, read only by the description of the format."""
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    magic, version, code, sequences, entries = struct.unpack_from("<9sQBQQ", index)
    assert magic == b"MMIDIDX\0\0" and version == 1, (magic, version)
    lengths = numpy.frombuffer(index, "<i4", sequences, 34)
    pointers = numpy.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    documents = numpy.frombuffer(index, "<i8", entries, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * entries
    assert documents.tolist() == list(range(sequences + 1))
    tokens = numpy.fromfile(prefix + ".bin", DTYPES[code])
    begins = pointers // tokens.itemsize
    assert begins.tolist() == [0, *numpy.cumsum(lengths)[:-1]] and lengths.sum() == len(tokens)
    return [tokens[b : b + n] for b, n in zip(begins, lengths)]


def megatron_samples(lengths, first, count, samples, seq_length, seed, threshold=0.80):
    """Megatron's order in NumPy's words: for each sample the positions in the tokens of the whole dataset."""
    starts = numpy.concatenate([[0], numpy.cumsum(lengths)])
    ids = numpy.arange(first, first + count, dtype=numpy.int32)
    per_epoch = int(lengths[first : first + count].sum())
    epochs = 1
    while epochs * per_epoch < samples * seq_length + 1:
        epochs += 1
    total = (epochs * per_epoch - 1) // seq_length
    before_final = ((epochs - 1) * per_epoch - 1) // seq_length
    separate = epochs > 1 and samples - before_final < int(threshold * ((per_epoch - 1) // seq_length))
    random = numpy.random.RandomState(seed)

    def shuffled(values):
        random.shuffle(values)
        return values

    groups = [epochs - 1, 1] if separate else [epochs]
    order = numpy.concatenate([shuffled(numpy.tile(ids, n)) for n in groups])
    cuts = [0, before_final, total] if separate else [0, total]
    shuffle = numpy.concatenate([shuffled(numpy.arange(a, b, dtype=numpy.uint32)) for a, b in zip(cuts, cuts[1:])])
    text = numpy.concatenate([numpy.arange(starts[i], starts[i + 1]) for i in order])
    return [text[k * seq_length : (k + 1) * seq_length + 1] for k in shuffle.astype(int)]


def probed_samples(part, samples, seq_length, seed, split, *words):
    """The samples by the library."""
    probe = [os.environ["DATA_PROBE"], "samples", part, samples, seq_length, seed, split, *words]
    printed = subprocess.run(list(map(str, probe)), capture_output=True, text=True, check=True).stdout
    return [list(map(int, line.split())) for line in printed.splitlines()]


class DatasetCase(Case):
    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return self.path(name)

    def data(self, *arguments, prefix="p"):
        """Runs cairn data; returns its facts and the documents."""
        done = cairn("data", *arguments, "--output-prefix", self.path(prefix), "--json")
        documents = read_dataset(self.path(prefix))
        facts = json.loads(done.stdout)
        self.assertEqual(facts["documents"], len(documents))
        self.assertEqual(facts["tokens"], sum(map(len, documents)))
        self.assertEqual(facts["bin_bytes"], os.path.getsize(self.path(prefix) + ".bin"))
        self.assertEqual(facts["idx_bytes"], os.path.getsize(self.path(prefix) + ".idx"))
        self.assertEqual(facts["dtype"], str(documents[0].dtype))
        return facts, documents


class DatasetTest(DatasetCase):
    def test_bytes_of_files_are_tokens(self):
        texts = [os.urandom(3_000_000), prose(1000).encode(), b"\n"]
        inputs = [self.write(f"{i}.txt", text) for i, text in enumerate(texts)]
        facts, documents = self.data(*inputs, "--tokenizer", "bytes", "--append-eod")
        self.assertEqual((facts["vocab_size"], facts["eod"], facts["dtype"]), (257, 256, "uint16"))
        for text, document in zip(texts, documents, strict=True):
            numpy.testing.assert_array_equal(document, [*text, 256])

    def test_trained_model_is_lossless_for_sentencepiece_itself(self):
        text = prose(30_000) + "\n\n  Ünseen ☃ signs \t and tabs\n"
        arguments = ["--train-sentencepiece", "--vocab-size", "500", "--append-eod"]
        facts, documents = self.data(self.write("a.txt", text), *arguments)
        model = sentencepiece.SentencePieceProcessor(model_file=self.path("p.model"))
        self.assertEqual(facts["vocab_size"], model.vocab_size())
        self.assertEqual(facts["eod"], model.eos_id())
        self.assertEqual(facts["model_bytes"], os.path.getsize(self.path("p.model")))
        self.assertEqual(documents[0][-1], model.eos_id())
        self.assertEqual(model.decode(documents[0][:-1].tolist()), text)

    def test_other_models_give_the_tokens_of_sentencepiece(self):
        corpus = self.write("a.txt", prose(2000))
        texts = [prose(n) for n in (1, 10, 300)]
        lines = self.write("a.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
        llama = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
        for name, options in {"unigram": {}, "bpe": {"model_type": "bpe"}, "llama": {"model_type": "bpe", **llama}}.items():
            model = self.sentencepiece(name, corpus, **options)
            _, documents = self.data(lines, "--tokenizer", f"sentencepiece:{self.path(name)}.model", prefix="p-" + name)
            self.assertEqual([document.tolist() for document in documents], [model.encode(text) for text in texts], name)

    def sentencepiece(self, name, corpus, **options):
        sentencepiece.SentencePieceTrainer.train(input=corpus, model_prefix=self.path(name), vocab_size=400, minloglevel=2,
                                                 hard_vocab_limit=False, **options)
        return sentencepiece.SentencePieceProcessor(model_file=self.path(name + ".model"))

    def test_transformers_load_the_tokenizer_of_a_release(self):
        """Through a training and its step restored from an archive; a model that transformers cannot express is reported."""
        from transformers import AutoTokenizer
        hard = ["The word", " two  spaces\n\n and\ttabs ", "Ünseen \u2603 \U0001f600 signs", "And it was said among them: 7919"]
        corpus = self.write("a.txt", prose(2000))
        self.sentencepiece("llama", corpus, model_type="bpe", normalization_rule_name="identity", byte_fallback=True,
                           remove_extra_whitespaces=False)
        own = ["--train-sentencepiece", "--vocab-size", "400"]
        for name, flags in {"own": own, "bytes": ["--tokenizer", "bytes"],
                            "llama": ["--tokenizer", f"sentencepiece:{self.path('llama.model')}"]}.items():
            facts, _ = self.data(corpus, *flags, prefix=name)
            if name == "own":
                cairn("train", "--nproc-per-node", 1, "--num-layers", 1, "--hidden-size", 8, "--num-attention-heads", 1,
                      "--seq-length", 8, "--vocab-size", facts["vocab_size"], "--data-path", self.path(name), "--train-iters", 1,
                      "--save", self.path("run"), "--threads", 1)
                cairn("archive", "run", self.path("run", "step-00000001"), "--store", self.path("store"))
                cairn("archive", "restore", self.path("store") + ":run@1", self.path("alone", "step-00000001"))
                cairn("verify", self.path("alone", "step-00000001"))
                release = self.path("release")
                cairn("strip", self.path("alone", "step-00000001"), release, "--dtype", "fp16")
            else:
                release = self.path(name + ".tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(release)
            model = None if name == "bytes" else sentencepiece.SentencePieceProcessor(
                model_file=self.path({"own": "own.model"}.get(name, "llama.model")))
            for text in [*hard, prose(50)]:
                expected = list(text.encode()) if model is None else model.encode(text)
                self.assertEqual(tokenizer.encode(text, add_special_tokens=False), expected, (name, text))
                self.assertEqual(tokenizer.decode(expected), text)
            self.assertEqual(tokenizer.eos_token_id, facts["eod"])
        self.sentencepiece("nfkc", corpus)
        told = cairn("data", corpus, "--tokenizer", f"sentencepiece:{self.path('nfkc.model')}", "--output-prefix", self.path("q"))
        self.assertIn("no tokenizer for transformers", told.stdout)
        self.assertFalse(os.path.exists(self.path("q.tokenizer")))

    def test_dry_run_reports_the_same_and_writes_nothing(self):
        text = self.write("a.txt", prose(3000))
        arguments = [text, "--train-sentencepiece", "--vocab-size", "400", "--json"]
        before = os.listdir(self.dir)
        dry = json.loads(cairn("data", *arguments, "--output-prefix", self.path("p"), "--dry-run").stdout)
        self.assertEqual(os.listdir(self.dir), before)
        facts, _ = self.data(*arguments[:-1])
        for key in ("documents", "tokens", "bytes", "vocab_size", "dtype", "model_bytes"):
            self.assertEqual(dry[key], facts[key], key)

    def test_errors_are_one_line_and_leave_nothing(self):
        text = self.write("a.txt", "text")
        empty = self.write("empty.txt", "")
        bad_json = self.write("bad.jsonl", '{"text": "a"}\n{')
        bad_model = self.write("bad.model", "no model")
        present = self.write("q.idx", "precious")
        cases = {
            ("none.txt", "--tokenizer", "bytes"): "none.txt",
            (self.dir, "--tokenizer", "bytes"): "is a directory",
            (empty, "--tokenizer", "bytes"): "no text in it",
            (text, bad_json, "--tokenizer", "bytes"): "bad.jsonl: line 2",
            (text, "--tokenizer", "gpt2"): "expected bytes, sentencepiece:FILE",
            (text, "--tokenizer", "sentencepiece:" + bad_model): "bad.model",
            (text,): "--train-sentencepiece",
            (text, "--train-sentencepiece"): "--vocab-size",
            (text, "--train-sentencepiece", "--vocab-size", "9000"): "9000",
            (text, "--tokenizer", "bytes", "--vocab-size", "9"): "--vocab-size",
        }
        before = sorted(os.listdir(self.dir))
        for arguments, message in cases.items():
            done = cairn("data", *arguments, "--output-prefix", self.path("p"), status=2)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertEqual(sorted(os.listdir(self.dir)), before)
        # The model's name is not too long, that of the tokens while they are written is: a second try may be shorter.
        long = ["--train-sentencepiece", "--vocab-size", "400", "--output-prefix", self.path("p" * 240)]
        cairn("data", self.write("a.txt", prose(3000)), *long, status=2)
        self.assertEqual(sorted(os.listdir(self.dir)), before)
        done = cairn("data", text, "--tokenizer", "bytes", "--output-prefix", self.path("q"), status=2)
        self.assertIn(present, done.stderr)
        with open(present) as file:
            self.assertEqual(file.read(), "precious")

    def test_samples_come_in_megatrons_order(self):
        random = numpy.random.default_rng(5)
        lines = "\n".join(json.dumps({"text": "x" * int(n)}) for n in random.integers(1, 60, size=80))
        _, documents = self.data(self.write("a.jsonl", lines), "--tokenizer", "bytes", "--append-eod")
        lengths = numpy.array([len(document) for document in documents])
        tokens = numpy.concatenate(documents)
        for samples, seq_length, seed in ((10, 16, 1234), (200, 16, 1), (300, 13, 77), (500, 7, 2**32 - 1), (3, 1000, 0)):
            for part, (first, end) in enumerate(((0, 56), (56, 72), (72, 80))):  # --split 70,20,10
                arguments = [part, samples, seq_length, seed, "70,20,10", self.path("p")]
                got = probed_samples(*arguments)
                want = megatron_samples(lengths, first, end - first, samples, seq_length, seed)[:samples]
                self.assertEqual(got, [tokens[positions].tolist() for positions in want], arguments)

    def test_tensorboard_reads_the_event_files(self):
        for _ in range(2):  # a second file in the same directory joins the first
            subprocess.run([os.environ["DATA_PROBE"], "events", self.path("logs")], check=True)
        self.assertEqual(len(os.listdir(self.path("logs"))), 2)
        for name in os.listdir(self.path("logs")):
            events = EventAccumulator(os.path.join(self.path("logs"), name))
            events.Reload()
            self.assertEqual(sorted(events.Tags()["scalars"]), ["learning rate", "lm loss"])
            losses = events.Scalars("lm loss")
            self.assertEqual([event.step for event in losses], list(range(1, 101)))
            numpy.testing.assert_array_equal(
                numpy.float32([event.value for event in losses]), numpy.float32(10) / numpy.arange(1, 101, dtype=numpy.float32)
            )
            self.assertGreater(losses[0].wall_time, 1.6e9)


class MegatronSamplesTest(Case):
    """Samples equal megatron-core's, over numbers of any size, documents of several sequences, splits and epochs."""

    def setUp(self):
        super().setUp()
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.random = numpy.random.default_rng(11)

    def seed(self):
        return int(self.random.integers(2**31))

    def write_dataset(self, name, dtype):
        """Written by megatron-core; returns (lengths of the sequences, all tokens)."""
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        sizes, tokens = [], []
        builder = IndexedDatasetBuilder(self.path(name + ".bin"), dtype=dtype)
        for _ in range(60):
            lengths = [int(n) for n in self.random.integers(0, 120, size=self.random.integers(1, 3))]
            numbers = self.random.integers(0, min(numpy.iinfo(dtype).max, 70_000), size=sum(lengths)).astype(dtype)
            builder.add_document(numbers, lengths)
            sizes += lengths
            tokens.append(numbers)
        builder.finalize(self.path(name + ".idx"))
        return numpy.array(sizes), numpy.concatenate(tokens)

    def write_several(self):
        """Writes 13 datasets; returns their paths and contents."""
        names = [f"b{i}" for i in range(13)]
        contents = [self.write_dataset(name, dtype) for name, dtype in zip(names, [numpy.uint16, numpy.int32] * 7)]
        return [self.path(name) for name in names], contents

    def megatron_cores_samples(self, part, samples, seq_length, seed, split, *words):
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.utils import get_blend_from_list

        class Tokenizer:
            eod, pad, eos, vocab_size, unique_identifiers = 0, -1, 0, 100, {"tokenizer": "none"}

        for place in words:  # where it keeps its indices
            shutil.rmtree(place, ignore_errors=True)
        blend = get_blend_from_list(list(words))
        config = GPTDatasetConfig(random_seed=seed, sequence_length=seq_length, blend=blend, split=split,
                                  path_to_cache=None, tokenizer=Tokenizer(), reset_position_ids=False,
                                  reset_attention_mask=False, eod_mask_loss=False, num_dataset_builder_threads=1)
        wanted = [samples if i == part else None if blend[1] is None else 1 for i in range(3)]
        dataset = BlendedMegatronDatasetBuilder(GPTDataset, wanted, lambda: True, config).build()[part]
        rows = []
        for i in range(samples):
            if len(words) == 1:
                source, k = dataset, i
            else:
                source, k = dataset.datasets[dataset.dataset_index[i]], int(dataset.dataset_sample_index[i])
            rows.append(list(map(int, source._query_document_sample_shuffle_indices(k)[0])))
        return rows

    def test_one_dataset_has_the_samples_of_megatron_core(self):
        for dtype, split, part in ((numpy.uint16, "969,30,1", 0), (numpy.int32, "70,20,10", 1), (numpy.uint8, "1,1,1", 0),
                                   (numpy.int64, "0.9,0.1,0", 1), (numpy.int32, "98,2", 0)):
            self.write_dataset("m", dtype)
            for samples, seq_length in ((3, 16), (200, 7), (700, 33)):
                case = (part, samples, seq_length, self.seed(), split, self.path("m"))
                self.assertEqual(probed_samples(*case), self.megatron_cores_samples(*case), (dtype, case))

    def test_blends_have_the_samples_of_megatron_core(self):
        paths, _ = self.write_several()
        for part, samples, seq_length, split, words in (
            (0, 1500, 16, "90,5,5", ["0.3", paths[0], "0.7", paths[1]]),
            (1, 90, 9, "70,20,10", ["3", paths[0], "1", paths[1], "6", paths[2]]),
            (2, 40, 16, "70,20,10", ["3", paths[0], "1", paths[1], "6", paths[2]]),
            (0, 1100, 33, "98,2,0", [word for i, path in enumerate(paths) for word in (str(0.1 + 0.07 * i), path)]),
            (0, 700, 16, "9,1", ["0.5", paths[3]]),  # one dataset: its weight orders it as a blend does
            (0, 500, 16, "90,5,5", paths[:3]),  # none has a weight: each is read once, in proportion
            (0, 470, 31, "1", paths[4:8]),
        ):
            case = (part, samples, seq_length, self.seed(), split, *words)
            self.assertEqual(probed_samples(*case), self.megatron_cores_samples(*case), case)

    def test_weighted_splits_have_the_samples_of_bigscience(self):
        """As build_dataset_group of BigScience's Megatron-DeepSpeed computes them."""
        from megatron.core.datasets import helpers

        paths, contents = self.write_several()
        for samples, seq_length, parts in (
            (900, 16, [("0.25", "0:0.9", 0), ("0.5", "0.1:1", 1), ("0.125", "0.33:0.777", 2)]),
            (600, 33, [(str(0.1 + 0.07 * i), "0:0.949", i) for i in range(13)]),
            (430, 9, [("1", "0.2:0.5", 3)]),
            (300, 9, [("1", "0:1", 3), ("0", "0:1", 4)]),
        ):
            seed = self.seed()
            group = "NAME: " + ", ".join(f"{weight} {part} {paths[i]}" for weight, part, i in parts)
            weights = [float(weight) for weight, _, _ in parts]
            weights = [weight / sum(weights) for weight in weights]
            sources = []
            for weight, (_, part, i) in zip(weights, parts):
                lengths, tokens = contents[i]
                first, end = (round(float(share) * float(len(lengths))) for share in part.split(":"))
                asked = samples if len(parts) == 1 else math.ceil(samples * weight * 1.005)
                places = megatron_samples(lengths, first, end - first, asked, seq_length, seed, threshold=0.95)
                sources.append([tokens[place].tolist() for place in places])
            size = sum(map(len, sources))
            which, what = numpy.zeros(size, numpy.int16), numpy.zeros(size, numpy.int64)
            normalized = numpy.array(weights) / numpy.sum(weights)
            helpers.build_blending_indices(which, what, normalized, len(parts), size, False)
            want = [sources[k][i] for k, i in zip(which[:samples], what[:samples])] if len(parts) > 1 else sources[0][:samples]
            self.assertEqual(probed_samples(0, samples, seq_length, seed, "-", group), want, group)


if __name__ == "__main__":
    unittest.main()
