"""Fixtures of the whole suite; what they are made of is in ``tests.synthetic``, which tests may also import."""

from __future__ import annotations

import pytest

from asterism.data.images import ImageSet
from asterism.model import Architecture
from asterism.site import Share
from asterism.worker import Worker
from tests import synthetic


@pytest.fixture
def images() -> ImageSet:
    """48 grey 8×8 pictures of four classes, twelve each."""
    return synthetic.pictures()


@pytest.fixture
def share(images: ImageSet) -> Share:
    """All of ``images``."""
    return synthetic.everything(images)


@pytest.fixture
def worker() -> Worker:
    """The small network with four head rows for ``images``."""
    return Worker.of(Architecture(name="small"), synthetic.SHAPE, len(synthetic.CLASSES), seed=7)


@pytest.fixture
def tiny() -> synthetic.Tiny:
    """Three participants that learn ``images`` in two rounds of FedAvg."""
    return synthetic.Tiny()
