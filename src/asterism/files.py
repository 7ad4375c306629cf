"""Files that are whole or not there: atomic writes, append-only lines that survive a cut, folders of one process."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asterism.errors import AsterismError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path whose file takes the place of ``path`` when the block ends well, and is removed when not."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(OSError):  # a folder that could not be made holds nothing to remove
            part.unlink(missing_ok=True)


def _cannot_write(path: Path, error: OSError) -> AsterismError:
    return AsterismError(
        f"cannot write: {error.strerror}",
        where=str(path),
        fix="free some space or mend the folder; nothing kept is lost",
    )


def write_text(path: Path, text: str) -> None:
    """``path`` holds ``text``, or what it held before."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """``path`` holds ``value`` as JSON, or what it held before."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def now() -> str:
    """The time in UTC as every log writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_json(path: Path) -> Any:
    """The JSON document in ``path``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AsterismError(f"cannot be read: {error}", where=str(path), fix="remove it, or put a copy back") from None


class Lines:
    """An append-only file of JSON objects; a last line that a cut left unfinished is taken off when it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            text = path.read_bytes()
            whole = text.rfind(b"\n") + 1
            if whole < len(text):
                os.truncate(path, whole)

    def append(self, line: dict[str, Any]) -> str:
        """Adds one object as one line, handed to the operating system before this returns; gives the line."""
        text = json.dumps(line, ensure_ascii=False)
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(text + "\n")
        except OSError as error:
            raise _cannot_write(self._path, error) from error
        return text

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every object in the file."""
        return (json.loads(line) for line in self._texts())

    def last(self) -> str | None:
        """The last line as it stands in the file, if any."""
        return next(reversed(self._texts()), None)

    def _texts(self) -> list[str]:
        # Not splitlines(), which also splits at separators that JSON leaves as they are.
        return self._path.read_text(encoding="utf-8").split("\n")[:-1] if self._path.exists() else []


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else works in ``folder`` while the block runs; the lock goes with the process, however it ends."""
    descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise AsterismError(
            "another process works on this run", where=str(folder), fix="wait for it, or stop it"
        ) from None
    finally:
        os.close(descriptor)
