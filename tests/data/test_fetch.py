"""Downloads against a server on this machine that cuts, lies, refuses and moves, as servers do."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asterism.data.benchmarks import BENCHMARKS, Archive, Benchmark
from asterism.data.fetch import download, fetch
from asterism.data.unpack import unpack
from asterism.errors import AsterismError


@dataclass
class Server:
    """What the server does next, and which ranges it was asked for."""

    port: int = 0
    content: bytes = b""
    cut: int | None = None  # bytes of a body after which the line goes dead
    ranges: bool = True
    status: int = 200
    moved: str = ""
    asked: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/files/archive.tar.gz"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        status = 302 if self.moved else 206 if start else self.status
        body = self.content[start:] if status in (200, 206) else b""
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.moved:
            request.send_header("Location", self.moved)
        request.end_headers()
        request.wfile.write(body[: self.cut])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server(content=archive_of({"pictures/train/ant/1.txt": b"one" * 50_000}))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


def archive_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def archive(server: Server) -> Archive:
    return Archive(server.url, len(server.content), sha256=hashlib.sha256(server.content).hexdigest())


def benchmark(server: Server) -> Benchmark:
    return Benchmark("birds", "Birds", 1, 32, folders=("birds",), source="a page", archive=archive(server))


def silent(done: int, total: int) -> None:
    assert 0 <= done <= total


def refused(server: Server, target: Path) -> AsterismError:
    with pytest.raises(AsterismError) as error:
        download(archive(server), target, progress=silent)
    assert error.value.fix
    return error.value


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_benchmark_is_fetched_checked_unpacked_and_swept_up(server: Server, tmp_path: Path) -> None:
    seen: list[int] = []
    folder = fetch(benchmark(server), tmp_path, progress=lambda done, total: seen.append(done))
    assert (folder / "pictures/train/ant/1.txt").read_bytes() == b"one" * 50_000
    assert seen == sorted(seen) and seen[-1] == len(server.content)
    assert names(tmp_path) == ["birds"]


def test_what_is_there_already_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(benchmark(server), tmp_path, progress=silent) == tmp_path / "birds"
    assert len(server.asked) == 1


def test_archive_put_by_hand_is_checked_used_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz").write_bytes(server.content)
    fetch(benchmark(server), tmp_path, progress=silent)
    assert (server.asked, names(tmp_path)) == ([], ["archive.tar.gz", "birds"])


def test_wrong_archive_put_by_hand_is_refused_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz").write_bytes(b"another file")
    with pytest.raises(AsterismError, match="not the published archive"):
        fetch(benchmark(server), tmp_path, progress=silent)
    assert names(tmp_path) == ["archive.tar.gz"]


def test_truncated_file_is_named_kept_and_resumed(server: Server, tmp_path: Path) -> None:
    target, server.cut = tmp_path / "archive.tar.gz", 70_000
    error = refused(server, target)
    assert (error.what, error.where) == (f"the transfer stopped after 70000 of {len(server.content)} bytes", server.url)
    assert names(tmp_path) == ["archive.tar.gz.part"]
    server.cut = None
    download(archive(server), target, progress=silent)
    assert server.asked == [None, "bytes=70000-"]
    assert (target.read_bytes(), names(tmp_path)) == (server.content, ["archive.tar.gz"])


def test_server_without_ranges_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz.part").write_bytes(b"x" * 999)
    server.ranges = False
    download(archive(server), tmp_path / "archive.tar.gz", progress=silent)
    assert (tmp_path / "archive.tar.gz").read_bytes() == server.content


def test_part_that_is_whole_already_needs_no_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz.part").write_bytes(server.content)
    download(archive(server), tmp_path / "archive.tar.gz", progress=silent)
    assert server.asked == []


def test_part_that_is_too_long_is_begun_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.gz.part").write_bytes(server.content + b"more")
    download(archive(server), tmp_path / "archive.tar.gz", progress=silent)
    assert server.asked == [None]


@pytest.mark.parametrize("change", [b"X", b"longer than it should be"])
def test_wrong_content_is_refused_and_thrown_away(server: Server, tmp_path: Path, change: bytes) -> None:
    published = archive(server)
    server.content = server.content[:-1] + change
    with pytest.raises(AsterismError, match="size or hash is wrong"):
        download(published, tmp_path / "archive.tar.gz", progress=silent)
    assert names(tmp_path) == []


def test_md5_is_checked_where_nothing_better_is_published(server: Server, tmp_path: Path) -> None:
    published = replace(archive(server), sha256="", md5=hashlib.md5(server.content).hexdigest())
    download(published, tmp_path / "right", progress=silent)
    with pytest.raises(AsterismError, match="hash is wrong"):
        download(replace(published, md5="0" * 32), tmp_path / "wrong", progress=silent)


@pytest.mark.parametrize("status", [403, 404, 503])
def test_refusal_of_the_server_is_named_with_the_way_around_it(server: Server, tmp_path: Path, status: int) -> None:
    server.status = status
    error = refused(server, tmp_path / "archive.tar.gz")
    assert error.what.startswith(f"the server answered {status}")
    assert error.fix == f"put archive.tar.gz into {tmp_path} by hand"


def test_without_network_the_way_around_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = Server(port=closed.getsockname()[1], content=b"never sent")
        error = refused(server, tmp_path / "archive.tar.gz")
    assert error.what.startswith("no connection: ") and "refused" in error.what
    assert f"put archive.tar.gz into {tmp_path} by hand" in error.fix


def test_what_is_no_web_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def gibberish() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=gibberish)
        thread.start()
        error = refused(Server(port=listening.getsockname()[1], content=b"never sent"), tmp_path / "a.tar.gz")
        thread.join()
    assert error.what.startswith("no connection: ")


def test_full_disk_is_named_and_what_came_is_kept(server: Server, tmp_path: Path) -> None:
    def full(done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(AsterismError, match="No space left") as error:
        download(archive(server), tmp_path / "archive.tar.gz", progress=full)
    assert error.value.where == str(tmp_path / "archive.tar.gz.part")
    assert names(tmp_path) == ["archive.tar.gz.part"]


def test_too_little_room_is_said_before_anything_is_sent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(AsterismError, match="0 are free"):
        fetch(benchmark(server), tmp_path, progress=silent)
    assert server.asked == []


def test_root_that_cannot_be_made_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AsterismError, match="cannot write here") as error:
        fetch(benchmark(server), tmp_path / "file" / "data", progress=silent)
    assert error.value.where == str(tmp_path / "file" / "data")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a.tar.gz"])
def test_only_the_web_is_fetched_from(tmp_path: Path, url: str) -> None:
    with pytest.raises(AsterismError, match="only http and https"):
        download(Archive(url, 5, md5="0"), tmp_path / "a.tar.gz", progress=silent)


@pytest.mark.parametrize(
    ("place", "reason"), [("file:///etc/hostname", "not allowed"), ("ftp://127.0.0.1/a.tar.gz", "unknown url type")]
)
def test_redirection_away_from_the_web_is_not_followed(server: Server, tmp_path: Path, place: str, reason: str) -> None:
    server.moved = place
    assert reason in refused(server, tmp_path / "archive.tar.gz").what
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", [n for n, b in BENCHMARKS.items() if b.archive is None])
def test_benchmark_that_needs_registration_says_where_and_how(tmp_path: Path, name: str) -> None:
    with pytest.raises(AsterismError, match="cannot be fetched") as error:
        fetch(BENCHMARKS[name], tmp_path, progress=silent)
    assert "lay out" in error.value.where
    assert error.value.fix == f"put the folders below {tmp_path / name}"


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return packed.getvalue()


def link_outside() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "../../outside"
        tar.addfile(member)
    return packed.getvalue()


ARCHIVES: dict[str, tuple[bytes, str]] = {
    "tar that climbs": (archive_of({"../outside.txt": b""}), "not safe"),
    "tar with a link": (link_outside(), "not safe"),
    "zip that climbs": (zipped(**{"../outside.txt": b""}), "not safe"),
    "zip with a root": (zipped(**{"/outside.txt": b""}), "not safe"),
    "tar cut short": (archive_of({"a.txt": b"a" * 9999})[:5000], "damaged"),
    "zip cut short": (zipped(a=b"a" * 9999)[:-30], "damaged"),
    "text": (b"no archive at all", "damaged"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_bad_archive_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    content, what = ARCHIVES[kind]
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(AsterismError, match=what) as error:
        unpack(tmp_path / "archive", tmp_path / "inside" / "target")
    assert error.value.where == str(tmp_path / "archive")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "archive"]


def test_zip_is_unpacked_and_leftovers_of_a_crash_are_swept_up(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(zipped(**{"deep/a.txt": b"a"}))
    (tmp_path / ".target.part").mkdir()
    (tmp_path / ".target.part" / "half.txt").write_text("half")
    unpack(tmp_path / "archive", tmp_path / "target")
    content: dict[str, Any] = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert content["a.txt"] == b"a"
    assert sorted(content) == ["a.txt", "archive"]
