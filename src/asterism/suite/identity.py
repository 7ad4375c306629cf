"""What makes two runs the same: the settings that decide a result, flat, and digests of them.

Not among them: names, the paper's numbers, where images lie, and on what a run computes (but whether exactly).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from asterism.experiment import Experiment
from asterism.suite.plan import Planned

Settings = Mapping[str, Any]  # by dotted key
CIRCUMSTANCES = ("name", "seeds", "paper", "machine", "data.images", "data.root", "evaluation.every")
KNOWN = "m-L."  # before settings under which m^L was trained, where they are not the run's own


def decisive(planned: Planned, *, changed: bool = False) -> Settings:
    """The settings that decide a run's result; only those that differ from their defaults where ``changed``."""
    own = flat(planned.experiment, changed=changed)
    known = flat(planned.known, changed=changed)
    other = {key: value for key, value in known.items() if key not in own or own[key] != value}
    stages = ("split.novel", "novel")  # which a known stage does not have
    apart = {KNOWN + key: value for key, value in other.items() if not key.startswith(stages)}
    return {"dataset": planned.place.dataset, **own, **apart}


def decisive_for_known(planned: Planned) -> Settings:
    """The settings that decide m^L."""
    return {"dataset": planned.place.dataset, **flat(planned.known)}


def flat(experiment: Experiment, *, changed: bool = False) -> dict[str, Any]:
    """An experiment's settings by dotted key, without its circumstances."""
    tables = experiment.model_dump(mode="json", exclude_defaults=changed)
    kept = {key: value for key, value in _leaves(tables, "") if not _is_circumstance(key)}
    return kept | ({"machine.exact": True} if experiment.machine.exact else {})


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{key}.{i}")
    else:
        yield key, value


def _is_circumstance(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in CIRCUMSTANCES)


def digest(settings: Settings) -> str:
    """Twelve letters that stand for the settings."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def fits(then: Settings, now: Settings, changed: Settings) -> bool:
    """Whether a result of settings ``then`` is one of ``now``.

    A setting that came later speaks against it only where it is not at its default (is among ``changed``), so that
    results outlive the software that measured them.
    """
    if any(key not in now or now[key] != value for key, value in then.items()):
        return False
    return not any(key in changed for key in now.keys() - then.keys())
