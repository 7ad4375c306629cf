"""Downloads a benchmark: resumable, checked by its published hash, and never seen half-done.

The archive grows as ``<file>.part`` below the data root. A transfer that stops is resumed by the next call
with an HTTP range, or begun again where the server knows no ranges. A file whose hash is wrong is thrown
away. Unpacking happens in a hidden folder that is renamed at the end. An archive that somebody put below the
root by hand is used as it is, after the same check, so a machine without network can be served from a USB
stick.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from asterism.data.benchmarks import Archive, Benchmark, place
from asterism.data.unpack import unpack
from asterism.errors import AsterismError

Progress = Callable[[int, int], None]  # bytes so far, bytes in all
NETWORK = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
BLOCK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
UNPACKED = 2.0  # room to find free for what is unpacked, in sizes of the archive


def fetch(benchmark: Benchmark, root: Path, *, progress: Progress) -> Path:
    """The folder of a benchmark below ``root``, downloaded and unpacked unless it is there already."""
    here = place(benchmark, root)
    if here is not None:
        return here
    archive, target = benchmark.archive, root / benchmark.folders[0]
    if archive is None:
        raise AsterismError(
            f"{benchmark.title} cannot be fetched",
            where=benchmark.source,
            fix=f"put the folders below {target}",
        )
    _check_room(archive, root)
    stored = root / archive.file
    by_hand = stored.exists()
    if not by_hand:
        download(archive, stored, progress=progress)
    elif not _hash_fits(archive, stored):
        raise AsterismError("this is not the published archive", where=str(stored), fix="remove it and fetch again")
    unpack(stored, target)
    if not by_hand:
        stored.unlink()
    return target


def download(archive: Archive, target: Path, *, progress: Progress) -> None:
    """Brings an archive to ``target``: whole and with the right hash, or not at all."""
    if urllib.parse.urlsplit(archive.url).scheme not in ("http", "https"):
        raise AsterismError("only http and https addresses are fetched", where=archive.url)
    part = target.with_name(target.name + ".part")
    if part.exists() and part.stat().st_size > archive.bytes:
        part.unlink()
    if not part.exists() or part.stat().st_size < archive.bytes:
        _transfer(archive, part, progress)
    size = part.stat().st_size
    if size < archive.bytes:
        raise AsterismError(
            f"the transfer stopped after {size} of {archive.bytes} bytes",
            where=archive.url,
            fix=f"run the same command again: it goes on from {part}",
        )
    if size > archive.bytes or not _hash_fits(archive, part):
        part.unlink()
        raise AsterismError(
            "what came is not the published archive: its size or hash is wrong",
            where=archive.url,
            fix=f"run the same command again, or put {target.name} into {target.parent} by hand",
        )
    part.replace(target)


def _transfer(archive: Archive, part: Path, progress: Progress) -> None:
    try:
        _receive(archive, part, progress)
    except http.client.IncompleteRead:
        return  # a cut, like any other that the size tells
    except (OSError, http.client.HTTPException) as error:
        raise _explained(error, archive, part) from None


def _explained(error: Exception, archive: Archive, part: Path) -> AsterismError:
    by_hand = f"put {part.stem} into {part.parent} by hand"
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return AsterismError(f"the server answered {error.code} {error.reason}", where=archive.url, fix=by_hand)
    again = "run the same command again"
    if isinstance(error, NETWORK):
        reason = getattr(error, "reason", error)
        return AsterismError(
            f"no connection: {reason}", where=archive.url, fix=f"check the network and {again}, or {by_hand}"
        )
    return AsterismError(f"cannot write: {error}", where=str(part), fix=f"free some space and {again}")


def _receive(archive: Archive, part: Path, progress: Progress) -> None:
    """Appends to ``part`` what the server sends, until it stops or sends more than the archive has."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(archive.url, headers={"User-Agent": "asterism"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with _opener().open(request, timeout=TIMEOUT) as answer:
        resumed = answer.status == http.client.PARTIAL_CONTENT and _starts_at(answer, have)
        with part.open("ab" if resumed else "wb") as file:
            done = have if resumed else 0
            while done <= archive.bytes and (block := answer.read(BLOCK)):
                file.write(block)
                done += len(block)
                progress(min(done, archive.bytes), archive.bytes)


def _opener() -> urllib.request.OpenerDirector:
    """An opener that knows http and https only, so that no redirection leaves the web."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _starts_at(answer: http.client.HTTPResponse, offset: int) -> bool:
    return (answer.headers.get("Content-Range") or "").startswith(f"bytes {offset}-")


def _hash_fits(archive: Archive, path: Path) -> bool:
    """Whether the file has the published hash: SHA-256 where one is known, else MD5."""
    kind, expected = ("sha256", archive.sha256) if archive.sha256 else ("md5", archive.md5)
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == expected


def _check_room(archive: Archive, root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AsterismError(
            f"cannot write here: {error.strerror}", where=str(root), fix="name another folder with --root"
        ) from None
    needed = int(archive.bytes * (1 + UNPACKED))
    free = shutil.disk_usage(root).free
    if free < needed:
        raise AsterismError(
            f"{archive.file} needs about {needed >> 20} MiB of disk, {free >> 20} are free",
            where=str(root),
            fix="free some space, or name another folder with --root",
        )
