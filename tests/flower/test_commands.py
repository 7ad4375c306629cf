"""The commands of a real federation, and what they refuse before anything starts."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import certifi
import pytest
from cryptography import x509
from typer.testing import CliRunner

from asterism.cli import app
from asterism.errors import AsterismError
from asterism.files import Lines
from asterism.flow import Collect, Reply, Version
from asterism.privacy.ledger import Ledger
from asterism.runs.flower.app import write_app
from asterism.runs.flower.commands import Inner
from asterism.runs.flower.node import private_key
from asterism.runs.parcel import Parcel
from asterism.runs.sites import certificates
from asterism.runs.sites.doorway import Doorway, asked
from asterism.runs.sites.gate import CALLS, application
from asterism.runs.sites.join import Joined
from asterism.runs.sites.programs import Program, Programs, end_left_over
from asterism.runs.sites.serve import Server
from asterism.runs.sites.settings import FederationFile, SiteFile, read_federation


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    written = Ledger(tmp_path / "ledger.jsonl", lambda: "now")
    ask = Collect(("north",), "prototypes", {}, Version("novel-1", 0, "x"))
    for _ in range(3):
        written("north", ask, Reply({}, metrics={"samples": 7.0}))
    return tmp_path / "ledger.jsonl"


def test_ledger_is_verified_and_summed_up(ledger: Path) -> None:
    told = json.loads(CliRunner().invoke(app, ["ledger", "verify", str(ledger)]).stdout)
    assert (told["lines"], told["tasks"], told["smallest_group"]) == (3, ["prototypes"], 7)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace("north", "south", 1), "line 2 does not follow"),
        (lambda text: text.split("\n", 1)[1], "line 1 does not follow"),
        (lambda text: text[:-3], "not finished"),
    ],
    ids=["changed", "taken out", "cut"],
)
def test_damaged_ledger_is_told_with_its_line(ledger: Path, damage: Any, said: str) -> None:
    ledger.write_text(damage(ledger.read_text()))
    done = CliRunner().invoke(app, ["ledger", "verify", str(ledger)])
    assert isinstance(done.exception, AsterismError)
    assert said in done.exception.what


def test_certificates_are_signed_named_and_private_keys_are_their_owners(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["certificates", "--out", str(tmp_path / "keys"), "--address", "fed.example.org", "--site", "north"]
    )
    assert done.exit_code == 0
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / "keys" / f"{name}.pem").read_bytes())
        for name in (certificates.AUTHORITY, certificates.SERVER)
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
    assert private_key(tmp_path / "keys" / "north.key").curve.name == "secp384r1"
    for file in (tmp_path / "keys").glob("*.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = CliRunner().invoke(app, ["certificates", "--out", str(tmp_path / "keys"), "--address", "x"])
    assert isinstance(again.exception, AsterismError)


def settings(**more: Any) -> FederationFile:
    given = {"experiment": "demo", "address": "127.0.0.1:1", "classes": ("a",), "shape": (1, 8, 8), "sites": {"a": "x"}}
    return FederationFile(**{**given, **more})


def test_without_certificates_nothing_is_served_unless_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="nothing would be encrypted"):
        Server(tmp_path / "federation.toml", settings())
    Server(tmp_path / "federation.toml", settings(), insecure=True)


def test_site_without_key_or_authority_does_not_join() -> None:
    site = SiteFile(name="north", server="127.0.0.1:1", images="digits")
    with pytest.raises(AsterismError, match="no key"):
        Joined(site)
    with pytest.raises(AsterismError, match="the server could be anybody"):
        Joined(site.model_copy(update={"key": "k"}))
    with pytest.raises(AsterismError, match="needs TLS"):
        Joined(site.model_copy(update={"key": "k", "link": "supernode"}), insecure=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("minimum = 3", "can never be met"), ('adress = "x"', "unknown key"), ("rejoin = -1", "refused")],
)
def test_mistake_in_the_servers_file_is_named(tmp_path: Path, wrong: str, said: str) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(
        f'experiment = "demo"\naddress = "127.0.0.1:1"\nclasses = ["a"]\nshape = [1, 8, 8]\n{wrong}\n[sites]\na = "x"\n'
    )
    with pytest.raises(AsterismError, match=said):
        read_federation(file)


def test_key_of_another_kind_is_refused_before_flower_sees_it(tmp_path: Path) -> None:
    (tmp_path / "north.pub").write_text("ssh-ed25519 AAAA\n")
    with pytest.raises(AsterismError, match="only ecdsa-sha2-nistp384"):
        Inner(tmp_path, 1).register({"north": tmp_path / "north.pub"})


def test_doorway_answers_its_own_user_only_and_survives_one_who_leaves(tmp_path: Path) -> None:
    doorway = Doorway(tmp_path / "socket", lambda parcel: Parcel(parcel.header.upper(), parcel.body[::-1]))
    try:
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        assert asked(tmp_path / "socket", Parcel("hi", b"abc")) == Parcel("HI", b"cba")
        from multiprocessing.connection import Client

        Client(str(tmp_path / "socket"), "AF_UNIX").close()
        assert asked(tmp_path / "socket", Parcel("x", b"")) == Parcel("X", b"")
    finally:
        doorway.close()
    with pytest.raises(AsterismError, match="does not answer"):
        asked(tmp_path / "socket", Parcel("x", b""))


def test_programs_end_together_and_a_dead_one_is_named(tmp_path: Path) -> None:
    programs = Programs()
    try:
        programs.start(Program("long", ["sleep", "60"], tmp_path / "long.log"))
        assert programs.dead() is None
        programs.start(Program("short", ["true"], tmp_path / "short.log"))
        while programs.dead() is None:
            pass
        assert programs.dead() == "short"
    finally:
        programs.stop()
    assert programs.processes() == {}


def test_what_is_used_of_flower_is_where_it_was_found() -> None:
    """The internals that the direct link and the quick pulling use; a release that moves them fails here."""
    from flwr.superlink.grid import http_grid

    from asterism.runs.flower import node, pulling

    assert callable(vars(node)["FleetHttpClient"].PullMessages)
    before = vars(http_grid)["pull_objects"]
    try:
        assert pulling.install(lambda: True)
        assert vars(http_grid)["pull_objects"] is not before
    finally:
        vars(http_grid)["pull_objects"] = before


def test_app_that_flower_is_given_holds_two_imports_and_no_code(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    texts = [file.read_text() for file in sorted((tmp_path / "app" / "asterism_app").glob("*.py"))]
    assert [text.count("import") for text in texts] == [0, 1, 1]
    with pytest.raises(FileExistsError):
        write_app(tmp_path / "app")


def test_gate_passes_the_calls_of_sites_and_nothing_else() -> None:
    paths = {route.path for route in application("127.0.0.1:1", certifi.where()).routes}  # type: ignore[attr-defined]
    assert all(path.startswith("/v1/fleet/") for path in paths)
    assert "/v1/fleet/register-node" not in paths
    assert len(paths) == len(CALLS)


def test_two_threads_of_a_site_may_note_at_once(tmp_path: Path) -> None:
    """A link that breaks says so from both of its threads: neither may take the other's half-written file."""
    site = Joined(SiteFile(name="north", server="127.0.0.1:1", images="digits", key="k", authority="a", base=tmp_path))
    site._folder, site._log = tmp_path, Lines(tmp_path / "log.jsonl")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: site.note("unreachable", number=i), range(200)))
    assert len(list(Lines(tmp_path / "log.jsonl"))) == 200
    assert json.loads((tmp_path / "status.json").read_text("utf-8"))["event"] == "unreachable"


def test_what_a_killed_server_left_is_ended_and_nothing_else() -> None:
    mark = {"ASTERISM_TEST_MARK": "this run"}
    command = [sys.executable, "-c", "import time; time.sleep(60)  # flwr-made-up"]
    left = subprocess.Popen(command, env={**os.environ, **mark})
    other = subprocess.Popen(command, env={**os.environ, "ASTERISM_TEST_MARK": "another run"})
    try:
        time.sleep(0.3)
        end_left_over("flwr-made-up", "ASTERISM_TEST_MARK", "this run")
        assert left.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()
