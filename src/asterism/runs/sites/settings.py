"""Settings of the two commands of a real federation: ``federation.toml`` of the server, ``site.toml`` of a site.

Neither file ever travels. Relative paths are meant from the folder of the file that names them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from asterism.config import Section, read_toml, validate

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
FILE = "ASTERISM_FEDERATION"  # of an environment: the federation.toml to serve
ADDRESS = r"^(\[[0-9a-fA-F:]+\]|[^:\s/]+):[0-9]{1,5}$"


class Tls(Section):
    """Certificate of the server, its private key, and the authority that signed it; PEM files."""

    certificate: str
    key: str
    authority: str


class Stages(Section):
    """When a novel stage begins."""

    start: Literal["policy", "by-hand"] = "policy"  # by-hand: `asterism stage start`
    sites: Annotated[int, Field(ge=1)] = 1  # that must have enough
    images: Annotated[int, Field(ge=1)] = 100  # unlabelled images, called novel where screening is on
    every: Seconds = 60.0  # between two looks


class FederationFile(Section):
    """``federation.toml``: everything the server side must know."""

    experiment: str  # a configuration file or built-in name, as for `asterism run`; its data and split stay unused
    overrides: tuple[str, ...] = ()  # settings changed in it, as with --set
    folder: str = "federation-run"  # the run folder, made when it is not there
    address: Annotated[str, Field(pattern=ADDRESS)]  # where sites reach the server
    classes: Annotated[tuple[str, ...], Field(min_length=1)]  # known class names, in the order of the head's rows
    shape: tuple[int, int, int]  # channels, height and width of every image
    novel: tuple[tuple[str, ...], ...] = ()  # true classes of novel stages: only where a rehearsal has labels for them
    tls: Tls | None = None  # without it only `--insecure` serves
    sites: dict[Name, str]  # who may take part: names, and files with their public keys
    minimum: Annotated[int, Field(ge=1)] = 1  # sites that must be there for a stage to begin or go on
    wait: Seconds = 3600.0  # how long to wait for them
    rejoin: Seconds = 0.0  # how long a round waits for a site that was lost in it
    messages: Literal["memory", "disk"] = "memory"  # where they wait; on disk they lie unencrypted, and cost time
    largest_reply: Annotated[int, Field(ge=1)] = 1024  # MiB
    health: Annotated[int, Field(ge=0, le=65535)] = 0  # port on loopback that answers /health; 0: none
    stages: Stages = Stages()
    base: Path = Path()  # the folder that relative paths are meant from

    @model_validator(mode="after")
    def _fits_together(self) -> FederationFile:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("a class is named twice")
        if self.minimum > len(self.sites):
            raise ValueError(f"minimum = {self.minimum} can never be met by {len(self.sites)} sites")
        return self

    def path(self, name: str) -> Path:
        """The file or folder that a setting names."""
        return self.base / Path(name).expanduser()

    @property
    def experiment_source(self) -> str | Path:
        """The experiment's file, or the name of a built-in one."""
        return self.path(self.experiment) if self.path(self.experiment).is_file() else self.experiment


class SiteFile(Section):
    """``site.toml``: everything a site must know, and what its owner forbids."""

    name: Name  # as the server's operator registered it
    server: Annotated[str, Field(pattern=ADDRESS)]
    images: str  # a folder with a folder per class and `_unlabelled`, a manifest, or what else `asterism run` reads
    root: str = ""  # where fetched benchmarks lie, as in data.root
    folder: str = "site"  # what the site keeps: its state, its ledger, its log
    key: str = ""  # this site's private key; without it only `--insecure` joins
    authority: str = ""  # certificate of the authority that signed the server's
    split: str = ""  # a saved split: a rehearsal, in which this site holds what the split gives to its name
    device: str = "auto"
    threads: Annotated[int, Field(ge=0)] = 0  # of torch on the CPU; 0: as torch finds it
    floor: Annotated[int, Field(ge=0)] = 5  # least images behind anything that leaves row by row
    withhold: tuple[str, ...] = ()  # tasks that this site never answers, such as "prototypes"
    link: Literal["direct", "supernode"] = "direct"  # supernode: Flower's own programs carry the messages
    base: Path = Path()

    def path(self, name: str) -> Path:
        """The file or folder that a setting names."""
        return self.base / Path(name).expanduser()


def read_federation(file: Path) -> FederationFile:
    """The settings in a ``federation.toml``."""
    return validate(FederationFile, _with_base(file), source=str(file))


def read_site(file: Path) -> SiteFile:
    """The settings in a ``site.toml``."""
    return validate(SiteFile, _with_base(file), source=str(file))


def _with_base(file: Path) -> dict[str, Any]:
    return {**read_toml(file), "base": file.resolve().parent}
