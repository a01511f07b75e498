"""``cairn.diff``, ``report``, ``ls`` and ``verify`` run the commands of those names and return rows."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from cairn._command import CairnError, run
from cairn._opened import Opened
from cairn._show import html_table

Path = Union[str, os.PathLike]
Paths = Union[Path, Iterable[Path]]


class Rows(list[dict[str, Any]]):
    """A list of dicts with the same keys, for ``pandas.DataFrame(rows)``. A notebook shows it as a table."""

    title: str = ""

    def column(self, name: str) -> list:
        """The values of one column; None for a row without one."""
        return [row.get(name) for row in self]

    def _repr_html_(self) -> str:
        filled = (key for row in self for key, value in row.items() if value not in (None, "", [], {}))
        columns = list(dict.fromkeys(filled))
        return html_table(self.title, columns, ([row.get(key) for key in columns] for row in self), len(self))


class Differences(Rows):
    """The result of `cairn.diff`: one row for each tensor that differs, the worst first."""

    a: str
    b: str
    equal: bool  # bit for bit
    within_tolerance: bool
    tensors_compared: int
    tensors_equal: int


class Problems(Rows):
    """The result of `cairn.verify`: one row for each problem.

    A row has "checkpoint", "file", "offset", "tensor" and "what".
    """

    ok: bool
    bytes_checked: int


def diff(
    a: Path,
    b: Path,
    *,
    ignore: Sequence[str] = (),
    tolerance: Optional[Mapping[str, Union[float, tuple[float, float]]]] = None,
    atol: Optional[float] = None,
    rtol: Optional[float] = None,
    **options: Any,
) -> Differences:
    """Compares two checkpoints of any topology and format, tensor by tensor, in little memory.

    a, b: a step, a run, `STORE:RUN@STEP`, or another system's checkpoint.
    ignore: "optimizer", "dtype", or globs of tensors.
    tolerance: limits by glob, ABS or (ABS, REL): |a-b| <= ABS + REL*|b|.
    options: other flags of `cairn diff`, with underscores: ``max_memory="1GB"``, ``from_="hf"``.

    A row has "tensor" and "difference". If that is "values", the row also has "elements", "differing",
    "beyond_tolerance", "max_abs", "max_rel", "max_ulp", "relative_norm", "cosine" and "first_element". Other
    differences are "only in A", "only in B", and shapes or types, with "a" and "b".
    Raises FileNotFoundError, CorruptError, NotSupported or CairnError, which name the file.

    >>> import cairn
    >>> rows = cairn.diff("run", "other", ignore=["optimizer"])
    >>> rows.equal, len(rows), rows[0]["difference"]
    (False, 36, 'values')
    >>> cairn.diff("run", "release", ignore=["optimizer"]).equal
    True
    """
    allowed = [f"{glob}={_tolerance(limits)}" for glob, limits in (tolerance or {}).items()]
    flags = _flags(ignore=list(ignore), tolerance=allowed, atol=atol, rtol=rtol, **options)
    found = _json("diff", [a, b], flags, {name: options[name] for name in Opened.READING if name in options})
    rows = Differences(_uniform(found["differences"]))
    for name in ("a", "b", "equal", "within_tolerance", "tensors_compared", "tensors_equal"):
        setattr(rows, name, found[name])
    equal = f"{rows.tensors_equal} of {rows.tensors_compared} tensors compared are equal bit for bit"
    rows.title = f"{rows.a} and {rows.b}: {equal}"
    return rows


def report(logs: Paths, **options: Any) -> Rows:
    """Averages of trainings from the logs of Megatron-LM, DeepSpeed, Hugging Face's Trainer or cairn train.

    logs: one or more files.
    options: flags of `cairn report`, which add facts that the logs lack, or choose which iterations count:
    ``gpus=64, seq_length=1024, skip=5, sort="sec_per_it"``.

    A row is a run: "file", "status", "sec_per_it", "tflops", "tokens_per_s", "loss", "tp", "pp", "dp" ...;
    None means unknown.
    Raises FileNotFoundError, ValueError for an unknown option, and CairnError.

    >>> import cairn
    >>> cairn.report("train.log", gpus=8)[0]["sec_per_it"]
    0.8125
    """
    rows = Rows(_uniform(_json("report", _listed(logs), _flags(**options))))
    rows.title = f"{len(rows)} run" + "s" * (len(rows) != 1)
    return rows


def ls(paths: Paths, **options: Any) -> Rows:
    """Lists runs: one row per step, with "run", "step", "state", "bytes", "directory", "topology.tp" ...

    paths: runs, steps, or directories of runs. options: flags of `cairn ls`: ``store="/archive"``,
    ``purge_days=60``.
    Raises FileNotFoundError and CairnError.

    >>> import cairn
    >>> [(row["step"], row["state"], row["topology.tp"]) for row in cairn.ls("run")]
    [(100, 'committed', 2)]
    """
    found = _json("ls", _listed(paths), _flags(**options))
    facts = [{key: value for key, value in one.items() if key != "steps"} for one in found]
    steps = [_flat({**facts[at], **step}) for at, one in enumerate(found) for step in one["steps"]]
    rows = Rows(_uniform(steps))
    rows.title = f"{len(rows)} step" + "s" * (len(rows) != 1)
    return rows


def verify(path: Path, **options: Any) -> Problems:
    """Checks a checkpoint: by default its structure and every byte. ``.ok`` and an empty list mean: good.

    path: a step, a run (its newest step), `STORE:RUN@STEP`, or another system's checkpoint.
    options: flags of `cairn verify`: ``values=True``, ``sample="5%"``, ``all=True``, ``record=False``.
    Raises FileNotFoundError and CairnError if it cannot be checked. Damage is returned as rows, not raised.

    >>> import cairn
    >>> cairn.verify("run", record=False).ok
    True
    """
    if options.pop("record", True) is False:
        options["no_record"] = True
    found = _json("verify", [path], _flags(**options))
    rows = Problems(
        {"checkpoint": one["checkpoint"], **problem} for one in found for problem in one["problems"]
    )
    rows.ok = all(one["ok"] for one in found)
    rows.bytes_checked = sum(one["bytes_checked"] for one in found)
    rows.title = f"{path}: {'good' if rows.ok else 'damaged'}"
    return rows


def _json(verb: str, paths: Sequence[Path], flags: Sequence[str], reading: Optional[dict] = None) -> Any:
    """The command's output.

    reading: options for opening the paths if they are checkpoints; opening one gives the best error message.
    """
    for path in paths:
        if not os.path.exists(path) and "@" not in os.fspath(path):  # STORE:RUN@STEP is not a path
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", os.fspath(path))
    done = run([verb, "--json", *flags, *paths], capture=True, check=False)
    if done.returncode in (0, 1):
        return json.loads(done.stdout)
    if reading is not None:
        for path in paths:
            Opened(path, **reading).close()
    message = done.stderr.strip().removeprefix("cairn: ") or f"cairn {verb}: exit status {done.returncode}"
    if "cairn " + verb + " --help" in message:
        raise ValueError(message)
    raise CairnError(message, done.returncode)


def _flags(**options: Any) -> list:
    """``max_memory="1GB"`` as the command's flag.

    None and False give no flag, True one without a value, a list one for each item.
    """
    flags: list = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags += [f"{flag}={one}" for one in (value if isinstance(value, (list, tuple)) else [value])]
    return flags


def _tolerance(limits: Union[float, tuple]) -> str:
    return ",".join(map(repr, limits if isinstance(limits, tuple) else (limits,)))


def _listed(paths: Paths) -> list:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _flat(row: dict) -> dict:
    """{"topology": {"tp": 2}} as {"topology.tp": 2}, as pandas.json_normalize does."""
    flat: dict = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[key] = value
    return flat


def _uniform(rows: list) -> list:
    """Gives all rows the same keys."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{**keys, **row} for row in rows]
