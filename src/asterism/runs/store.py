"""The run folder: states as safetensors, the participants' own stores beside them, no pickle anywhere.

A state file is the commit of its round: the participants' entries of that round are written before it, under names
that carry the round, and entries from a later round than the newest state are dropped on resume. A run that is cut
at any instant therefore goes on from a moment at which server and participants agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from asterism.errors import AsterismError
from asterism.files import replacing
from asterism.flow import State, Tensors

FORMAT = 1
HEADER = "asterism"
STATE = re.compile(r"(?P<stage>.+)-round(?P<round>\d+)\.safetensors")
ENTRY = re.compile(r"(?P<key>.+)@(?P<step>\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A kept state with the step it was kept at and what the driver knew then."""

    step: int
    state: State
    progress: Mapping[str, Any]


class RunFolder:
    """One run on disk. ``step`` counts states over all stages, kept or not, and orders everything in the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stores = Stores(path / "sites")

    def keep(self, step: int, state: State, progress: Mapping[str, Any], *, every: bool = False) -> Path:
        """Writes a checkpoint; earlier rounds of the stage go, unless ``every`` state is to stay."""
        self.stores.write(step)
        header = {
            "step": step,
            "stage": state.stage,
            "round": state.round,
            "layout": state.layout,
            "classes": list(state.classes),
            "progress": dict(progress),
        }
        file = self.path / "states" / f"{state.stage}-round{state.round:03d}.safetensors"
        write_tensors(file, state.tensors, header)
        self.stores.forget(step)
        if not every:
            for older in self._states(state.stage):
                if older != file:
                    older.unlink()
        return file

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint, with the participants' stores put back to its step; None before the first."""
        files = self._states()
        if not files:
            return None
        checkpoint = read_checkpoint(max(files, key=lambda file: int(_header(file)["step"])))
        self.stores.restore(checkpoint.step)
        return checkpoint

    @property
    def step(self) -> int:
        """The step of the newest checkpoint, 0 before the first."""
        return max((int(_header(file)["step"]) for file in self._states()), default=0)

    def _states(self, stage: str | None = None) -> list[Path]:
        found = []
        for file in (self.path / "states").glob("*.safetensors"):
            match = STATE.fullmatch(file.name)
            if match and not file.name.startswith(".") and stage in (None, match["stage"]):
                found.append(file)
        return sorted(found)


def read_checkpoint(file: Path) -> Checkpoint:
    """The checkpoint in ``file``, refused with a sentence where it is damaged or of another format."""
    tensors, header = read_tensors(file)
    state = State(header["stage"], header["round"], tensors, header["layout"], tuple(header["classes"]))
    return Checkpoint(header["step"], state, header["progress"])


class Stores:
    """The local stores of simulated participants, in memory and, at every checkpoint, on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._stores: dict[str, LocalStore] = {}

    def of(self, participant: str) -> LocalStore:
        """The store of one participant, made when first asked for."""
        return self._stores.setdefault(participant, LocalStore())

    def write(self, step: int) -> None:
        """Writes every entry that changed since the last checkpoint."""
        if self.path is None:
            return
        for participant, store in self._stores.items():
            for key in sorted(store.changed):
                file = self.path / quote(participant, safe="") / f"{quote(key, safe='')}@{step:06d}.safetensors"
                write_tensors(file, store[key], {})
            store.changed.clear()

    def forget(self, step: int) -> None:
        """Removes entries that a newer one, no newer than ``step``, has replaced."""
        newest: dict[tuple[str, str], tuple[int, Path]] = {}
        for participant, key, at, file in self._entries():
            if at > step:
                continue
            kept = newest.get((participant, key))
            if kept is not None:
                min(kept, (at, file))[1].unlink()
            newest[participant, key] = max(kept, (at, file)) if kept else (at, file)

    def restore(self, step: int) -> None:
        """Puts every store back to what it was at ``step``; what came later is removed."""
        self._stores.clear()
        for _, _, at, file in self._entries():
            if at > step:
                file.unlink()
        self.forget(step)
        for participant, key, _, file in self._entries():
            self.of(participant)[key] = read_tensors(file)[0]
        for store in self._stores.values():
            store.changed.clear()

    def reread(self, participant: str) -> LocalStore:
        """The store of one participant, as another process left it on disk."""
        store = self.of(participant)
        store.clear()
        newest: dict[str, tuple[int, Path]] = {}
        for _, key, step, file in self._entries(quote(participant, safe="")):
            newest[key] = max(newest.get(key, (step, file)), (step, file))
        for key, (_, file) in newest.items():
            store[key] = read_tensors(file)[0]
        store.changed.clear()
        return store

    def _entries(self, folder: str = "*") -> Iterator[tuple[str, str, int, Path]]:
        if self.path is None:
            return
        for file in sorted(self.path.glob(f"{folder}/*.safetensors")):
            match = ENTRY.fullmatch(file.name)
            if match and not file.name.startswith("."):
                yield unquote(file.parent.name), unquote(match["key"]), int(match["step"]), file


class LocalStore(dict[str, Tensors]):
    """A participant's own store, which remembers what changed since it was last written."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[str] = set()

    def __setitem__(self, key: str, value: Tensors) -> None:
        self.changed.add(key)
        super().__setitem__(key, value)


def write_tensors(file: Path, tensors: Tensors, header: Mapping[str, Any]) -> None:
    """``file`` holds the tensors and the header, or what it held before; equal contents make equal bytes."""
    # As one entry: the library writes several in random order.
    described = {HEADER: json.dumps({"format": FORMAT, **header})}
    with replacing(file) as part:
        try:
            save_file(apart(tensors), part, described)
        except SafetensorError as error:  # how the library reports a full disk
            raise OSError(0, str(error)) from error


def apart(tensors: Tensors) -> dict[str, Tensor]:
    """The tensors on the CPU, none sharing memory with another, which the library refuses to write."""
    apart, seen = dict[str, Tensor](), set[int]()
    for name, value in tensors.items():
        own = value.detach().cpu().contiguous()
        apart[name] = own.clone() if own.untyped_storage().data_ptr() in seen else own
        seen.add(own.untyped_storage().data_ptr())
    return apart


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header in ``file``; in memory of their own, since what is mapped depends on the file."""
    with _opened(file) as opened:
        header = _header_of(opened, file)
        return {name: opened.get_tensor(name).clone() for name in opened.keys()}, header  # noqa: SIM118


def _header(file: Path) -> dict[str, Any]:
    with _opened(file) as opened:
        return _header_of(opened, file)


def _header_of(opened: Any, file: Path) -> dict[str, Any]:
    header: dict[str, Any] = json.loads((opened.metadata() or {}).get(HEADER, "{}"))
    if header.get("format") != FORMAT:
        raise AsterismError(f"format {header.get('format')!r} of this file is not known", where=str(file))
    return header


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise AsterismError(
            f"damaged state file: {error}", where=str(file), fix="remove it to go on from an older one, or run anew"
        ) from error
