"""The command line of ``cairn data``."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn, Optional

from cairn.data._dataset import STOPS, TYPES, Dataset, index_bytes, type_for
from cairn.data._errors import DataError, exists, failed
from cairn.data._facts import Progress, text_of
from cairn.data._import import Counts, import_text
from cairn.data._texts import Texts
from cairn.data._tokenizers import SentencePiece, Tokenizer, load, load_gpt2, train_sentencepiece

# In the layout of the other verbs. The parser is made of it.
_HELP = """\
turn text or JSON lines into P.bin and P.idx, Megatron's indexed format
Usage: cairn data [OPTIONS] INPUT...

Positionals:
  INPUT TEXT ... REQUIRED     text files, or JSON lines (.jsonl, .ndjson, .json)

Options:
  -h,--help                   Print this help message and exit
  --output-prefix PREFIX REQUIRED
                              prefix P of the files to write, P.bin and P.idx
  --tokenizer TOKENIZER       bytes (257 tokens), sentencepiece:FILE, or Hugging Face's: a directory
                              or tokenizer.json, of any kind that the tokenizers library loads
  --vocab-file FILE           GPT-2's vocab.json, instead; with --merge-file
  --merge-file FILE           GPT-2's merges.txt
  --train-sentencepiece       first train a SentencePiece model on the inputs, as P.model
  --vocab-size UINT           tokens of the model to train
  --format auto|text|jsonl    format of the inputs: auto (by name), text, jsonl
  --json-key KEY [text]       key of a JSON line's text
  --append-eod                end each document with the end-of-document token
  --split-documents-on-blank-lines
                              make each paragraph of a text file a document, instead of the file
  --dry-run                   count documents, tokens and bytes; write nothing
  --json                      print the facts as JSON

A text file is one document, or one for each paragraph; so is a line of JSON lines.
Train on the result with cairn train --data-path P --vocab-size N, N being the vocabulary that was
printed. P.tokenizer has the tokenizer as transformers' AutoTokenizer loads it; each step of that
training, and what is released of it, has a copy.

Example:
  cairn data shakespeare.txt --output-prefix shakespeare --train-sentencepiece --vocab-size 4000
--append-eod
  cairn data pile.jsonl --output-prefix pile --tokenizer sentencepiece:shakespeare.model
--append-eod

Exit status: 0 done, 2 misuse or trouble.
"""
_OPTION = re.compile(r"^  (--[\w-]+)(?: (\S+))?(?: \[\w+\])?( REQUIRED)?(?:  |\n)", re.M)


class Stopped(BaseException):
    """A signal asked to stop: everything that was made is removed, and the signal then ends the process."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message}; see cairn data --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("inputs", metavar="INPUT", nargs="+")
    parser.add_argument("-q", "--quiet", "--no-progress", action="store_true")  # of every verb
    for name, value, required in _OPTION.findall(_HELP):
        more: dict[str, Any] = {"action": "store_true"}
        if value:
            more = {"default": "", "required": bool(required)}
        if value == "UINT":
            more = {"default": 0, "type": int}
        if "|" in value:
            more = {"default": "auto", "choices": value.split("|")}
        parser.add_argument(name, **more)
    parser.set_defaults(json_key="text")
    return parser


def _check_request(options: argparse.Namespace) -> None:
    if bool(options.vocab_file) != bool(options.merge_file):
        raise DataError("--vocab-file and --merge-file must be given together")
    if sum(map(bool, (options.train_sentencepiece, options.tokenizer, options.vocab_file))) != 1:
        raise DataError(
            "give one of --tokenizer TOKENIZER, --vocab-file with --merge-file, and --train-sentencepiece "
            "with --vocab-size N"
        )
    if options.train_sentencepiece and options.vocab_size <= 0:
        raise DataError("--train-sentencepiece needs --vocab-size N, for example 8000")
    if not options.train_sentencepiece and options.vocab_size != 0:
        raise DataError("--vocab-size belongs to --train-sentencepiece; other tokenizers bring their own")


def _check_outputs(prefix: str, trains: bool) -> None:
    """Before any work is done for nothing."""
    at = os.path.realpath(prefix)
    while at != os.path.dirname(at):
        if _is_committed_step(at):
            raise DataError(f"{prefix}: it is inside the committed step {at}; choose another path")
        at = os.path.dirname(at)
    for ending in (".bin", ".idx", ".tokenizer", *([".model"] if trains else [])):
        if os.path.lexists(prefix + ending):
            raise exists(prefix + ending)


def _is_committed_step(directory: str) -> bool:
    manifest = os.path.join(directory, "manifest.json")
    if re.fullmatch(r"step-\d+", os.path.basename(directory)):
        return os.path.isfile(manifest)
    try:
        with open(manifest, "rb") as file:
            return json.load(file)["format"] == "cairn"
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _prepare(options: argparse.Namespace) -> tuple[Tokenizer, bytes]:
    """The tokenizer, and the model if it was trained here."""
    if options.vocab_file:
        return load_gpt2(options.vocab_file, options.merge_file), b""
    if not options.train_sentencepiece:
        return load(options.tokenizer), b""
    model = train_sentencepiece(_texts(options), options.vocab_size)
    return SentencePiece(model, options.output_prefix + ".model"), model


def _texts(options: argparse.Namespace) -> Texts:
    return Texts(options.inputs, options.format, options.json_key, options.split_documents_on_blank_lines)


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Writes the dataset; returns the facts, and why no tokenizer for transformers was written."""
    _check_request(options)
    _check_outputs(options.output_prefix, options.train_sentencepiece)
    start = time.monotonic()
    texts = _texts(options)
    tokenizer, model = _prepare(options)
    dtype = type_for(tokenizer.vocab_size)
    progress = Progress(texts.total, not (options.json or options.quiet))

    def run(dataset: Optional[Dataset]) -> Counts:
        counts = import_text(texts, tokenizer, options.append_eod, dataset, progress.update)
        if counts.documents == 0:
            more = " and the other inputs" if len(options.inputs) > 1 else ""
            raise DataError(f"{options.inputs[0]}{more}: no text in it, so there is no dataset to write")
        if dataset:
            dataset.publish(model, tokenizer.files)
        return counts

    try:
        if options.dry_run:
            counts = run(None)
        else:
            _stop_cleanly()
            with Dataset(options.output_prefix, dtype) as dataset:
                counts = run(dataset)
    finally:
        progress.end()
    files = {
        "bin_bytes": counts.tokens * TYPES[dtype][1],
        "idx_bytes": index_bytes(counts.documents),
        "model_bytes": len(model),
        "tokenizer_bytes": sum(map(len, tokenizer.files.values())),
    }
    facts = {
        "output_prefix": options.output_prefix,
        "documents": counts.documents,
        "tokens": counts.tokens,
        "vocab_size": tokenizer.vocab_size,
        "eod": tokenizer.eod,
        "dtype": dtype,
        "bytes": sum(files.values()),
        **files,
        "input_bytes": counts.bytes_read,
        "seconds": time.monotonic() - start,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "dry_run": options.dry_run,
        "bytes_without_token": tokenizer.lost_bytes,
        "before_each_document": tokenizer.before,
        "behind_each_document": tokenizer.after,
    }
    return facts, tokenizer.unpublished


def _stop_cleanly() -> None:
    def stop(number: int, _: object) -> NoReturn:
        for each in stops:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    stops = [each for each in STOPS if signal.getsignal(each) != signal.SIG_IGN]
    for each in stops:
        signal.signal(each, stop)


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    """Runs the command line (sys.argv) and exits with 0 or 2, or by the signal that stopped it."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing was made yet
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # names of files have any bytes
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the threads are those of import_text()
    try:
        try:
            if {"-h", "--help"} & set(words):
                shown = _HELP.rstrip()
            else:
                options = _parser().parse_args(words)
                facts, unpublished = _run(options)
                shown = json.dumps(facts, indent=2) if options.json else text_of(facts, unpublished)
            print(shown, flush=True)
        except OSError as error:
            raise failed(error, "standard output") from None
        except ImportError as error:
            raise DataError(f"cairn data needs {error.name}: pip install 'cairn-checkpoints[data]'") from None
    except DataError as error:
        print(f"cairn: {error}", file=sys.stderr)
        if "--json" in words:
            print(json.dumps({"error": str(error)}, indent=2))
        sys.exit(2)
    except Stopped as stopped:
        signal.signal(stopped.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), stopped.args[0])
    sys.exit(0)


if __name__ == "__main__":
    main()
