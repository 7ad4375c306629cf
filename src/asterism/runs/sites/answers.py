"""What a site must remember over a cut: its own store, and the newest answer it gave to each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asterism.files import read_json, replacing, write_json
from asterism.runs.parcel import Parcel
from asterism.runs.store import Stores


class AnswerFolder:
    """A site's memory on disk: its store and its newest answer to each task, written as one."""

    def __init__(self, folder: Path) -> None:
        self._stores, self._answers = Stores(folder / "store"), folder / "answers"
        self._index = self._answers / "index.json"
        found: dict[str, Any] = read_json(self._index) if self._index.exists() else {"step": 0, "answers": {}}
        self._step, self._kept = int(found["step"]), dict(found["answers"])
        self._stores.restore(self._step)
        self.store = self._stores.of("own")

    def answer_to(self, task: str, digest: str) -> Parcel | None:
        """The answer that was given to this very order, if it was the newest of its task."""
        kept = self._kept.get(task)
        if kept is None or kept["digest"] != digest:
            return None
        return Parcel(kept["header"], (self._answers / kept["file"]).read_bytes())

    def keep(self, task: str, digest: str, reply: Parcel) -> None:
        """Makes the store and the answer durable; the index is written last and decides."""
        step = self._step + 1
        self._stores.write(step)
        file, old = f"{task}@{step:06d}", self._kept.get(task)
        with replacing(self._answers / file) as part:
            part.write_bytes(reply.body)
        kept = {**self._kept, task: {"digest": digest, "header": reply.header, "file": file}}
        write_json(self._index, {"format": 1, "step": step, "answers": kept})
        self._step, self._kept = step, kept
        self._stores.forget(step)
        if old is not None:
            (self._answers / old["file"]).unlink(missing_ok=True)

    def forget(self) -> None:
        """Puts the store back to what the newest answer left."""
        fresh = Stores(self._stores.path)
        fresh.restore(self._step)
        self.store.clear()
        self.store.update(fresh.of("own"))
        self.store.changed.clear()
