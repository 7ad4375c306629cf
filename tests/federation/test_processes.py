"""Real processes on loopback, with TLS and node keys: what one process cannot show. ``make test-federation``."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from asterism.experiment import load
from asterism.files import Lines
from asterism.runs.sites import certificates
from asterism.runs.sites.gate import LARGEST_CALL
from asterism.runs.sites.serve import free_port
from tests.federation import life
from tests.federation.rehearse import SMALL, Federation, federation

pytestmark = pytest.mark.federation


@pytest.mark.slow
def test_life_with_a_site_and_the_server_killed_ends_in_the_bits_of_one_process(tmp_path: Path) -> None:
    with federation(tmp_path) as made:
        results = life.live(made, cuts=True)
        life.equal_to_one_process(made, results)
        assert len(made.events("resumed")) == 1
        assert life.sound_ledgers(made) > 0


SHORT = {**SMALL, "split.participants": 2, "federation.clients": 2, "known.rounds": 1, "novel.0.rounds": 1}


@pytest.mark.slow
def test_flowers_own_site_programs_give_the_same_bits(tmp_path: Path) -> None:
    with federation(tmp_path, experiment=load("demo", SHORT), site={"link": "supernode"}) as made:
        life.equal_to_one_process(made, life.live(made, cuts=False))


def test_short_life_over_tls_gives_the_bits_of_one_process_and_leaves_no_process_behind(tmp_path: Path) -> None:
    with federation(tmp_path, experiment=load("demo", SHORT)) as made:
        life.equal_to_one_process(made, life.live(made, cuts=False))
        made.wait(lambda: made.processes["server"].poll() == 0, "the server's own end")
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


@pytest.mark.slow
def test_site_that_hangs_past_the_deadline_is_left_out_of_the_round(tmp_path: Path) -> None:
    experiment = load("demo", {**SHORT, "federation.deadline": 15.0, "known.rounds": 3, "novel": [], "split.novel": []})
    with federation(tmp_path, experiment=experiment, server={"rejoin": 0.0, "minimum": 1}) as made:
        made.serve()
        for name in made.sites:
            made.join(name)
        made.wait(lambda: made.events("kept"), "the first round")
        os.kill(made.processes["site-01"].pid, signal.SIGSTOP)
        made.results()
        os.kill(made.processes["site-01"].pid, signal.SIGCONT)
        missing = [failure for event in made.events("answered") for failure in event["failed"]]
        assert {failure["participant"] for failure in missing} == {"site-01"}
        assert {failure["reason"] for failure in missing} <= {"timeout", "unavailable"}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["gate", "superlink", "superexec"])
def test_when_one_of_the_servers_programs_ends_all_start_again_and_the_life_goes_on(
    tmp_path: Path, program: str
) -> None:
    experiment = load("demo", {**SHORT, "known.rounds": 3})
    with federation(tmp_path, experiment=experiment) as made:
        made.serve()
        for name in made.sites:
            made.join(name)
        made.wait(lambda: made.events("kept"), "the first round")
        (serving,) = starts(made)
        os.kill(serving[program], signal.SIGKILL)
        results = made.results()
        assert len(starts(made)) == 2
        life.equal_to_one_process(made, results)


def starts(made: Federation) -> list[dict[str, int]]:
    """What the server said each time that it had started its programs."""
    return [line for line in Lines(made.run / "serve.jsonl") if line["event"] == "serving"]


@pytest.mark.slow
def test_slow_link_only_takes_longer(tmp_path: Path) -> None:
    with federation(tmp_path, experiment=load("demo", SHORT)) as made, throttled(made.port, 100_000) as port:
        made.write_site("site-01", server=f"127.0.0.1:{port}")
        life.equal_to_one_process(made, life.live(made, cuts=False))


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server that waits for its second site, with one connected."""
    folder = tmp_path_factory.mktemp("waiting")
    with federation(folder, experiment=load("demo", SHORT)) as made:
        made.serve()
        made.join("site-01")
        made.wait(lambda: status(made)["sites"]["site-01"]["state"] == "present", "the first site")
        yield made
        assert status(made)["sites"]["site-01"]["state"] == "present"  # whatever was thrown at the gate


def status(made: Federation) -> dict[str, dict[str, dict[str, str]]]:
    file = made.run / "status.json"
    empty: dict[str, dict[str, dict[str, str]]] = {"sites": {name: {"state": ""} for name in made.sites}}
    return dict(json.loads(file.read_text())) if file.exists() else empty


def client(made: Federation) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(made.folder / "keys" / "authority.pem"))
    return httpx.Client(verify=context, base_url=f"https://127.0.0.1:{made.port}", trust_env=False)


def refused(made: Federation, name: str, said: str) -> None:
    """A site of this name is started, says why it was refused, and is stopped again."""
    made.join(name)
    made.wait(lambda: said in made.said(name), said)
    process = made.processes.pop(name)
    process.terminate()
    process.wait(20)


def test_only_the_calls_of_sites_can_be_reached(waiting: Federation) -> None:
    with client(waiting) as outside:
        for path in ("/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node",
                     "/v1/runtime/pull-messages", "/v1/fleet/register-node", "/health", "/docs", "/"):  # fmt: skip
            assert outside.post(path, content=b"").status_code == 404, path
        assert outside.post("/v1/fleet/pull-messages", content=b"").status_code in (401, 415, 422)


def test_call_beyond_the_size_is_refused(waiting: Federation) -> None:
    with client(waiting) as outside:
        answer = outside.post("/v1/fleet/push-object", content=b"\0" * (LARGEST_CALL + 1))
        assert answer.status_code == 413


def test_garbage_and_plain_text_at_the_port_are_dropped(waiting: Federation) -> None:
    for garbage in (os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + os.urandom(500)):
        with socket.create_connection(("127.0.0.1", waiting.port), timeout=5) as connection, suppress(OSError):
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(100)
    with client(waiting) as outside:
        assert outside.get("/").status_code == 404


def test_key_that_is_not_listed_is_refused(waiting: Federation) -> None:
    stranger = waiting.folder / "keys" / "stranger"
    certificates.make_site_key(stranger.with_suffix(".key"), stranger.with_suffix(".pub"))
    waiting.write_site("stranger", split="", key="keys/stranger.key")
    refused(waiting, "stranger", "the server refuses this site")


def test_second_place_with_the_key_of_a_connected_site_is_refused(waiting: Federation) -> None:
    waiting.write_site("twin", key="keys/site-01.key")
    refused(waiting, "twin", "the server refuses this site")


def test_server_with_another_certificate_is_not_trusted(waiting: Federation) -> None:
    certificates.make(waiting.folder / "other", ["127.0.0.1"], [], 2)
    waiting.write_site("careful", key="keys/site-02.key", authority="other/authority.pem")
    refused(waiting, "careful", "certificate verify failed")


def test_client_without_tls_gets_nothing(waiting: Federation) -> None:
    waiting.write_site("careless", key="keys/site-02.key")
    done = subprocess.Popen(
        [sys.executable, "-m", "asterism", "join", str(waiting.folder / "careless.toml"), "--insecure"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.stdout is not None
    lines = [done.stdout.readline() for _ in range(2)]
    done.terminate()
    done.wait(20)
    done.stdout.close()
    assert '"disconnected"' in lines[1]


def test_site_with_other_class_names_is_told_before_it_sends_anything(waiting: Federation) -> None:
    import numpy as np
    from PIL import Image

    images = waiting.folder / "images"
    for name in ("zero", "uno"):
        for i in range(8):
            file = images / name / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.default_rng(i).integers(0, 255, (8, 8), dtype=np.uint8)).save(file)
    file = waiting.write_site("site-02", images="images", split="")
    waiting.join("site-02")
    waiting.wait(lambda: "refused" in str(status(waiting)["sites"]["site-02"]), "the refusal")
    process = waiting.processes.pop("site-02")
    process.terminate()
    process.wait(20)
    assert "class 'uno' is not one of the federation's 7 classes" in waiting.said("site-02")
    assert "uno" not in json.dumps(status(waiting))
    assert not (file.parent / "sites" / "site-02" / "ledger.jsonl").exists()


class throttled:  # reads as a word
    """A port whose connections to another carry so many bytes a second."""

    def __init__(self, target: int, rate: int) -> None:
        self._target, self._rate, self.port = target, rate, free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))

    def __enter__(self) -> int:
        threading.Thread(target=self._accept, daemon=True).start()
        return self.port

    def __exit__(self, *arguments: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(8192):
                time.sleep(len(data) / self._rate)
                sink.sendall(data)
        source.close()
        sink.close()
