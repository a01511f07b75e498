"""Progress while `cairn data` runs, and its facts as text at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

from cairn._show import size_text as human


class Progress:
    """A line on stderr: rewritten on a terminal, else one every ten seconds. Quiet in the first second."""

    def __init__(self, total: int, enabled: bool):
        self._total, self._enabled = total, enabled
        self._terminal = sys.stderr.isatty()
        self._start = time.monotonic()
        self._next = self._start + (1 if self._terminal else 10)
        self._printed = False

    def update(self, done: int) -> None:
        now = time.monotonic()
        if not self._enabled or now < self._next:
            return
        self._next = now + (0.2 if self._terminal else 10)
        self._printed = True
        rate = done / (now - self._start)
        left = _human_seconds(max(self._total - done, 0) / rate) if rate else "unknown time"
        share = 100 * done / self._total if self._total else 100
        line = f"tokenizing {human(done)} of {human(self._total)} ({share:.0f} %), "
        line += f"{human(int(rate))}/s, {left} left"
        sys.stderr.write(f"\r{line}\033[K" if self._terminal else line + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._printed and self._terminal:
            sys.stderr.write("\r\033[K")


def text_of(facts: dict[str, Any], unpublished: str) -> str:
    """unpublished: why there is no P.tokenizer, or nothing."""
    prefix, seconds = facts["output_prefix"], facts["seconds"]
    tokens, vocabulary = facts["tokens"], facts["vocab_size"]
    files = [f"{prefix}.bin ({human(facts['bin_bytes'])})", f"{prefix}.idx ({human(facts['idx_bytes'])})"]
    if size := facts["model_bytes"]:
        files.append(f"{prefix}.model ({human(size)})")
    if size := facts["tokenizer_bytes"]:
        files.append(f"{prefix}.tokenizer for transformers ({human(size)})")
    lines = [
        f"documents {facts['documents']}, tokens {tokens} ({facts['dtype']}), vocabulary {vocabulary}",
        ("would write " if facts["dry_run"] else "wrote ") + ", ".join(files),
    ]
    if unpublished:
        lines.append(f"no tokenizer for transformers: its tokenizer.json has no place for {unpublished}")
    rate, peak = facts["input_bytes"] / 1e6 / seconds, facts["peak_memory_bytes"]
    lines.append(f"{_human_seconds(seconds)}, {rate:.1f} MB/s, peak memory {human(peak)}")
    before, after = facts["before_each_document"], facts["behind_each_document"]
    if before or after:
        around = f"{before} before it and {after} behind it"
        lines.append(f"each document has the tokens {around}, as the post_processor says")
    if lost := facts["bytes_without_token"]:
        loss = f"no token for {lost} of the 256 bytes: text with them loses them"
        lines.append(f"this tokenizer has {loss}, as in tokenizers")
    return "\n".join(lines)


def _human_seconds(value: float) -> str:
    seconds = int(value + 0.5)
    if value < 10:
        return f"{value:.1f} s"
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds // 60 % 60} min"
