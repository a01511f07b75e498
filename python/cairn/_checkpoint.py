"""``cairn.open``: opens a checkpoint of any format that Cairn reads, as a mapping of lazy tensors."""

from __future__ import annotations

import difflib
import fnmatch
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from cairn._boxes import read_boxes
from cairn._opened import Opened
from cairn._show import html_table, size_text
from cairn._tensor import Tensor
from cairn._values import DECODERS, from_json

Path = Union[str, os.PathLike]


class Pickle:
    """A value that was saved as a pickle. It was not loaded, because a pickle can run any code.

    ``data`` holds its bytes. If you trust them: ``torch.load(io.BytesIO(value.data), weights_only=False)``.
    """

    def __init__(self, data: bytes):
        self.data = data

    def __repr__(self) -> str:
        return f"<pickle of {len(self.data)} bytes, not loaded>"


class Objects(Mapping[str, Any]):
    """Values of a `cairn.torch` checkpoint that are not tensors, as plain Python values.

    Keys are names in the state dict: ``objects["step"]``.
    """

    def __init__(self, opened: Opened):
        self._opened = opened

    def __getitem__(self, name: str) -> Any:
        """Raises KeyError; ImportError if the value is a numpy array and numpy is not installed."""
        entry = self._opened.entry(name)
        if "pickle" in entry:
            return Pickle(entry["pickle"])
        return from_json(json.loads(entry["json"]), DECODERS)

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened.objects)

    def __len__(self) -> int:
        return len(self._opened.objects)

    def __repr__(self) -> str:
        return f"<{len(self)} objects: {', '.join(self)}>" if len(self) <= 20 else f"<{len(self)} objects>"


class Checkpoint(Mapping[str, Tensor]):
    """An opened checkpoint: ``checkpoint[name]`` is a lazy `Tensor`.

    `cairn.open` makes it. ``with``, `close` or dropping the last reference closes it.

    Names are those of `cairn inspect` and `cairn diff`: "layers.0.mlp.up.weight", and
    "layers.0.mlp.up.weight/exp_avg" for another role of the same parameter.
    ``checkpoint["layers.0.mlp.up.weight", "exp_avg"]`` is the same tensor. In a step of `cairn.torch` the
    name is that in the saved state dict: "model.0.weight", "optim.state.0.weight.exp_avg" or
    ``checkpoint["model.0.weight", "exp_avg"]``. The names that other formats use ("0.weight",
    "0.weight/exp_avg") work too.

    >>> import cairn
    >>> checkpoint = cairn.open("run")
    >>> checkpoint.roles()
    ['weight', 'master', 'exp_avg', 'exp_avg_sq', 'rng']
    >>> sorted(checkpoint.match("layers.0.mlp.*.weight", role="weight"))
    ['layers.0.mlp.down.weight', 'layers.0.mlp.up.weight']

    Any thread may read. In a forked child the first read opens it again.
    """

    def __init__(self, path: Path, verify: bool = True, **options: Any):
        self._verify = verify
        self._options = options
        self._closed = False
        self._lock = threading.Lock()
        self._lock_of = os.getpid()
        self._opened = Opened(path, **options)
        # The path to open again: the step itself, because the run may have a newer step by then.
        self._again = self._opened.directory if os.path.exists(path) else os.path.abspath(path)
        self._described = self._opened.tensors
        self._tensors: dict[str, Tensor] = {}  # those that were asked for

    @property
    def path(self) -> str:
        """The directory of the opened step, or of another system's checkpoint."""
        return self._opened.directory

    @property
    def step(self) -> int:
        """The training's iteration."""
        return self._opened.step

    @property
    def state(self) -> dict[str, Any]:
        """Facts about the training, as far as the checkpoint records them.

        Examples: iteration, consumed samples and tokens, param_groups, scheduler.
        """
        # source_account describes the source files, not the training.
        return {key: value for key, value in self._opened.state.items() if key != "source_account"}

    @property
    def model(self) -> dict[str, Any]:
        """Facts about the model, as far as they are recorded: architecture, hidden_size, num_layers ..."""
        return self._opened.model

    @property
    def objects(self) -> Objects:
        """Values of the saved state dict that are not tensors."""
        return Objects(self._opened)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors, uncompressed."""
        return sum(tensor.nbytes for tensor in self._described.values())

    def roles(self) -> list[str]:
        """The roles of its tensors: "weight", "master", "exp_avg" ..."""
        return list(dict.fromkeys(role for _, role in self._described.by_role))

    def match(self, glob: str = "*", role: Optional[str] = None) -> dict[str, Tensor]:
        """The tensors whose names match: ``checkpoint.match("layers.*.mlp.*", role="weight")``.

        role: None matches every role.
        """
        names = fnmatch.filter(self, glob)
        fits = (name for name in names if role is None or self._described[name].role == role)
        return {name: self[name] for name in fits}

    def __getitem__(self, name: Union[str, tuple[str, str]]) -> Tensor:
        """name: a tensor's name, or (parameter's name, role). Raises KeyError that lists similar names."""
        fqn = self._of_role(*name) if isinstance(name, tuple) and len(name) == 2 else self._named(name)
        if fqn is None:
            raise KeyError(self._absent(name))
        if fqn not in self._tensors:
            self._tensors[fqn] = Tensor(self, self._described[fqn])
        return self._tensors[fqn]

    def _of_role(self, name: str, role: str) -> Optional[str]:
        parameter = self._described[name].name if name in self._described else name
        return self._described.by_role.get((parameter, role))

    def _named(self, name: Any) -> Optional[str]:
        if name in self._described:
            return name
        parameter, _, role = str(name).rpartition("/")
        by_role = self._described.by_role
        return by_role.get((parameter, role), by_role.get((str(name), "weight")))

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __eq__(self, other: object) -> bool:
        return self is other  # a Mapping would compare tensors

    __hash__ = object.__hash__

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """After this, tensors cannot be read. Their names and shapes remain."""
        if not self._closed:
            self._closed = True
            self._opened.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "_opened"):
            self._opened.close()

    def __repr__(self) -> str:
        return f"<cairn checkpoint {self._title()}>"

    def _repr_html_(self) -> str:
        rows = (
            (name, one.role, one.dtype, list(one.shape), size_text(one.nbytes)) for name, one in self.items()
        )
        return html_table(self._title(), ("tensor", "role", "dtype", "shape", "size"), rows, len(self))

    def read(self, boxes: list) -> None:
        """Delivers the values of all boxes, verified."""
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        opened = self._alive()
        read_boxes(opened, boxes)
        if self._verify:
            opened.check()

    def _alive(self) -> Opened:
        if self._lock_of != os.getpid():  # another thread may have held the lock when this process was forked
            self._lock, self._lock_of = threading.Lock(), os.getpid()
        with self._lock:
            if self._opened.process != os.getpid():
                again = Opened(self._again, **self._options)
                if again.tensors != self._described:
                    raise ValueError(f"{self.path} has changed since it was opened; open it again")
                self._opened = again
            return self._opened

    def _title(self) -> str:
        objects = f", {len(self.objects)} objects" if self.objects else ""
        return f"{self.path}: step {self.step}, {len(self)} tensors, {size_text(self.nbytes)}{objects}"

    def _absent(self, name: Any) -> str:
        asked = "/".join(map(str, name)) if isinstance(name, tuple) else str(name)
        if asked in self._opened.objects:
            return f"{asked} is not a tensor: .objects[{asked!r}] is its value"
        if not_held := self._opened.state.get("types_not_held", {}).get(asked):
            return f"{asked} has type {not_held}, which Cairn does not support"
        alike = difflib.get_close_matches(asked, self, 3, 0.5)
        return f"{self.path} has no tensor {asked}" + (f"; is it {' or '.join(alike)}?" if alike else "")


def open(
    path: Path,
    *,
    verify: bool = True,
    from_: Optional[str] = None,
    config: Optional[Path] = None,
    allow: Sequence[str] = (),
    replicas: Optional[str] = None,
    true_vocab_size: Optional[int] = None,
) -> Checkpoint:
    """Opens a checkpoint for reading. Names and shapes are read now, values on demand.

    path: a step, a run (its newest step that opens), `STORE:RUN@STEP`, or the file or directory of another
    system: everything that `cairn inspect` takes.
    verify: compare the bytes read with every checksum of the format. Steps of Cairn are always verified,
    chunk by chunk. In other systems' files a CRC-32 covers a whole record, so reading a slice reads its
    record to the end; ``verify=False`` reads only the slice.
    config: the model's config.json, or its directory. Needed if the tensors have Hugging Face's names and the
    checkpoint does not record its model; tensors then have canonical names.
    from_, allow, replicas, true_vocab_size: for other systems' checkpoints, as the flags of `cairn inspect`:
    the format if the files do not record it, globs of tensors to leave out, how to resolve copies that differ
    ("first", "mean"), the rows of the vocabulary without padding.

    Raises FileNotFoundError, CorruptError or NotSupported, which name the file, and ValueError.

    >>> import cairn
    >>> with cairn.open("run") as checkpoint:
    ...     weight = checkpoint["layers.0.mlp.up.weight"]
    ...     print(weight)
    ...     moment = checkpoint["layers.0.mlp.up.weight", "exp_avg"]
    ...     print(weight[:2, -3:].shape, moment.dtype, checkpoint.step)
    <cairn tensor layers.0.mlp.up.weight: bf16 [64, 16], 2.05 kB>
    (2, 3) fp32 100
    """
    config = None if config is None else os.path.abspath(config)
    return Checkpoint(
        path,
        verify,
        from_=from_,
        config=config,
        allow=allow,
        replicas=replicas,
        true_vocab_size=true_vocab_size,
    )
