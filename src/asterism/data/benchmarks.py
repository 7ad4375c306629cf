"""The benchmarks of the paper: where each is published, how large it is, how to know the file is right.

Where the numbers come from: CIFAR-100's MD5 stands on its authors' page, its SHA-256 in the data sets of
TensorFlow and Keras; CUB-200-2011's size and MD5 on its CaltechDATA record. The host of Tiny-ImageNet
publishes no hash: its MD5 is the one that Avalanche and other libraries check downloads against. Nothing here
imports more than the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asterism.errors import AsterismError


@dataclass(frozen=True)
class Archive:
    """One published file; hashes are empty where nobody publishes them."""

    url: str
    bytes: int
    sha256: str = ""
    md5: str = ""

    @property
    def file(self) -> str:
        """The name of the file, as in its address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by name. Without an archive it has to be put in place by hand, as ``source`` tells.

    ``folders`` are the names that it is looked for under, below the data root; the first is where ``fetch``
    puts it. ``size`` is the number of pixels per side in the paper.
    """

    name: str
    title: str
    classes: int
    size: int
    folders: tuple[str, ...]
    source: str
    archive: Archive | None = None


_ALL = (
    Benchmark(
        "cifar100",
        "CIFAR-100",
        classes=100,
        size=32,
        folders=("cifar100", "cifar-100-python"),
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        archive=Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            bytes=169001437,
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    Benchmark(
        "tiny-imagenet",
        "Tiny-ImageNet",
        classes=200,
        size=64,
        folders=("tiny-imagenet", "tiny-imagenet-200"),
        source="http://cs231n.stanford.edu",
        archive=Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            bytes=248100043,
            md5="90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
    Benchmark(
        "imagenet-subset",
        "ImageNet-Subset",
        classes=100,
        size=56,
        folders=("imagenet-subset",),
        source="register at https://www.image-net.org/download.php, then lay out train/<class> and val/<class>",
    ),
    Benchmark(
        "cub200",
        "CUB-200-2011",
        classes=200,
        size=64,
        folders=("cub200", "CUB_200_2011", "cub200-64"),
        source="https://data.caltech.edu/records/65de6-vp158",
        archive=Archive(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            bytes=1150585339,
            md5="97eceeb196236b17998738112f37df78",
        ),
    ),
    Benchmark(
        "cars",
        "Stanford Cars",
        classes=196,
        size=64,
        folders=("cars", "stanford_cars"),
        source="its host has stopped serving it: from a copy, lay out cars_train, cars_test and devkit, "
        "or train/<class> and test/<class>",
    ),
    Benchmark(
        "herbarium19",
        "Herbarium 19",
        classes=683,
        size=64,
        folders=("herbarium19", "herbarium_19"),
        source="register for https://www.kaggle.com/c/herbarium-2019-fgvc6, then lay out small-train/<class> "
        "and small-validation/<class>",
    ),
)
BENCHMARKS: Mapping[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def data_root(root: str) -> Path:
    """Where benchmarks lie: ``root``, else $ASTERISM_DATA, else ``asterism`` in the user's cache folder."""
    chosen = root or os.environ.get("ASTERISM_DATA", "")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "asterism"


def place(benchmark: Benchmark, root: Path) -> Path | None:
    """The folder below ``root`` in which a benchmark lies, or None."""
    return next((root / name for name in benchmark.folders if (root / name).is_dir()), None)


def missing(benchmark: Benchmark, root: Path) -> AsterismError:
    """Says where a benchmark was looked for, and how it gets there."""
    home = root / benchmark.folders[0]
    if benchmark.archive is None:
        fix = f"{benchmark.source}; all in {home}"
    else:
        file = benchmark.archive.file
        fix = f"asterism data fetch {benchmark.name} (it also takes {file} put into {root} by hand)"
    return AsterismError(f"{benchmark.title} is not on this machine", where=str(home), fix=fix)
