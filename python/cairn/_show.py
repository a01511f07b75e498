"""Texts and tables for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

HTML_ROWS = 200  # shown in a notebook at most
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(count: int) -> str:
    """A size as the `cairn` command prints it.

    >>> size_text(1600), size_text(384), size_text(17_900_000)
    ('1.60 kB', '384 B', '17.9 MB')
    """
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    decimals = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f} {_UNITS[unit]}"


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], count: int) -> str:
    """A table of the first HTML_ROWS rows. count: the number of all rows."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    shown = [
        f"<tr>{''.join(f'<td>{html.escape(_text(value))}</td>' for value in row)}</tr>"
        for _, row in zip(range(HTML_ROWS), rows)
    ]
    more = f"<p>... and {count - HTML_ROWS} more</p>" if count > HTML_ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(shown)}</tbody></table>"
    return f"<p>{html.escape(title)}</p>{table}{more}"


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
