"""``cairn.open``: a checkpoint of any format that Cairn reads, as a mapping of lazy tensors."""

from __future__ import annotations

import difflib
import fnmatch
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from cairn._opened import Opened
from cairn._show import html_table, size_text
from cairn._tensor import Tensor
from cairn._values import DECODERS, from_json
from cairn._windows import read_boxes

Path = Union[str, os.PathLike]


class Pickle:
    """A value that was saved as a pickle, which can run any code when it is loaded. It was not loaded.

    ``data`` are its bytes. Where you trust them: ``torch.load(io.BytesIO(value.data), weights_only=False)``.
    """

    def __init__(self, data: bytes):
        self.data = data

    def __repr__(self) -> str:
        return f"<pickle of {len(self.data)} bytes, not loaded>"


class Objects(Mapping[str, Any]):
    """The values of a checkpoint of `cairn.torch` other than tensors, as plain Python, by name in the state dict: ``objects["step"]``."""

    def __init__(self, opened: Opened):
        self._opened = opened

    def __getitem__(self, name: str) -> Any:
        """Raises KeyError; ImportError for a numpy array if there is no numpy."""
        entry = self._opened.entry(name)
        return (
            Pickle(entry["pickle"]) if "pickle" in entry else from_json(json.loads(entry["json"]), DECODERS)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened.objects)

    def __len__(self) -> int:
        return len(self._opened.objects)

    def __repr__(self) -> str:
        return f"<{len(self)} objects: {', '.join(self)}>" if len(self) <= 20 else f"<{len(self)} objects>"


class Checkpoint(Mapping[str, Tensor]):
    """An opened checkpoint: ``checkpoint[name]`` is a lazy `Tensor`. Made by `cairn.open`; closed by ``with``, `close` or when it is dropped.

    Names are those of `cairn inspect` and `cairn diff`: "layers.0.mlp.up.weight", and "layers.0.mlp.up.weight/exp_avg" for
    another role of the same parameter, which ``checkpoint["layers.0.mlp.up.weight", "exp_avg"]`` is, too. In a step of `cairn.torch` it is
    the name in the state dict that was saved: "model.0.weight", "optim.state.0.weight.exp_avg" or ``checkpoint["model.0.weight", "exp_avg"]``.
    The names that other formats have for it ("0.weight", "0.weight/exp_avg") are taken, too.

    >>> import cairn
    >>> checkpoint = cairn.open("run")
    >>> checkpoint.roles()
    ['weight', 'master', 'exp_avg', 'exp_avg_sq', 'rng']
    >>> sorted(checkpoint.match("layers.0.mlp.*.weight", role="weight"))
    ['layers.0.mlp.down.weight', 'layers.0.mlp.up.weight']

    Any thread may read. After a fork, and if its process `cairn serve` was killed, the next read opens it again.
    """

    def __init__(self, path: Path, verify: bool = True, **options: Any):
        self._verify = verify
        self._options = options
        self._closed = False
        self._lock = threading.Lock()
        self._lock_of = os.getpid()
        self._opened = Opened(path, **options)
        self._again = (
            self._opened.directory if os.path.exists(path) else os.path.abspath(path)
        )  # a run may have a newer step then
        self._tensors = {fqn: Tensor(self, *numbered) for fqn, numbered in self._opened.tensors.items()}
        self._by_role = {(tensor.parameter, tensor.role): tensor for tensor in self._tensors.values()}

    @property
    def path(self) -> str:
        """The step that was opened, or the checkpoint of another system."""
        return self._opened.directory

    @property
    def step(self) -> int:
        """The training's iteration."""
        return self._opened.step

    @property
    def state(self) -> dict[str, Any]:
        """Facts of the training: iteration, consumed samples and tokens, param_groups, scheduler, as far as the checkpoint says them."""
        return {
            key: value for key, value in self._opened.state.items() if key != "source_account"
        }  # of no training

    @property
    def model(self) -> dict[str, Any]:
        """Facts of the model: architecture, hidden_size, num_layers ..., as far as the checkpoint says them."""
        return self._opened.model

    @property
    def objects(self) -> Objects:
        """Values of the saved state dict that are not tensors."""
        return Objects(self._opened)

    @property
    def nbytes(self) -> int:
        """Of all tensors, uncompressed."""
        return sum(tensor.nbytes for tensor in self.values())

    def roles(self) -> list[str]:
        """That its tensors have: "weight", "master", "exp_avg" ..."""
        return list(dict.fromkeys(tensor.role for tensor in self.values()))

    def match(self, glob: str = "*", role: Optional[str] = None) -> dict[str, Tensor]:
        """The tensors whose names match, of one role or of all: ``checkpoint.match("layers.*.mlp.*", role="weight")``."""
        names = fnmatch.filter(self, glob)
        return {name: self[name] for name in names if role is None or self[name].role == role}

    def __getitem__(self, name: Union[str, tuple[str, str]]) -> Tensor:
        """name: or (name of the parameter, role). Raises KeyError naming similar tensors."""
        found = self._of_role(*name) if isinstance(name, tuple) and len(name) == 2 else self._named(name)
        if found is None:
            raise KeyError(self._absent(name))
        return found

    def _of_role(self, name: str, role: str) -> Optional[Tensor]:
        named = self._tensors.get(name)
        return self._by_role.get((name if named is None else named.parameter, role))

    def _named(self, name: Any) -> Optional[Tensor]:
        if name in self._tensors:
            return self._tensors[name]
        parameter, _, role = str(name).rpartition("/")
        return self._by_role.get((parameter, role), self._by_role.get((str(name), "weight")))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __eq__(self, other: object) -> bool:
        return self is other  # a Mapping would compare tensors

    __hash__ = object.__hash__

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Tensors cannot be read any more. Their names and shapes stay."""
        if not self._closed:
            self._closed = True
            self._opened.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "_opened"):
            self._opened.drop()

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
        read_boxes(opened.helper, opened.handle, boxes, cached=opened.cached)
        if self._verify:
            opened.check()

    def _alive(self) -> Opened:
        if self._lock_of != os.getpid():  # another thread may have held it when this process was forked
            self._lock, self._lock_of = threading.Lock(), os.getpid()
        with self._lock:
            if not self._opened.helper.alive:
                again = Opened(self._again, **self._options)
                if again.tensors != self._opened.tensors:
                    raise ValueError(
                        f"{self.path} is another checkpoint than it was when it was opened; open it again"
                    )
                self._opened = again
            return self._opened

    def _title(self) -> str:
        objects = f", {len(self.objects)} objects" if self.objects else ""
        return f"{self.path}: step {self.step}, {len(self)} tensors, {size_text(self.nbytes)}{objects}"

    def _absent(self, name: Any) -> str:
        asked = "/".join(map(str, name)) if isinstance(name, tuple) else str(name)
        if asked in self._opened.objects:
            return f"{asked} is not a tensor: .objects[{asked!r}] is its value"
        if asked in self._opened.state.get("types_not_held", {}):
            return (
                f"{asked} is {self._opened.state['types_not_held'][asked]}, a type that Cairn does not hold"
            )
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
    """Opens a checkpoint to look into it. Its names and shapes are read now, values when they are asked for.

    path: a step, a run (its newest step that opens), `STORE:RUN@STEP`, or the file or directory of another system: all that
    `cairn inspect` takes.
    verify: compare the bytes read with every checksum that the format has. Steps of Cairn are compared in any case, chunk by chunk. In other
    systems' files a CRC-32 is of a whole record, which is read to its end when a slice of it is asked for; ``verify=False`` reads the
    slice alone.
    config: config.json of the model, or its directory, if the tensors have Hugging Face's names and nothing says which model it is: then
    they are found under canonical names.
    from_, allow, replicas, true_vocab_size: of other systems' checkpoints, as the flags of `cairn inspect`: the format if the files do
    not say it, globs of tensors to leave out, what to do if copies differ ("first", "mean"), rows of a padded vocabulary.

    Raises FileNotFoundError, CorruptError or NotSupported, which name the file, and ValueError.

    >>> import cairn
    >>> with cairn.open("run") as checkpoint:
    ...     weight = checkpoint["layers.0.mlp.up.weight"]
    ...     print(weight)
    ...     print(weight[:2, -3:].shape, checkpoint["layers.0.mlp.up.weight", "exp_avg"].dtype, checkpoint.step)
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
