"""Run folders in the documented format, fabricated: every number is drawn, none was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asterism import metrics
from asterism.privacy.chain import FIRST, digest
from asterism.seeds import number

Tables = Mapping[str, "np.ndarray[Any, np.dtype[np.int64]]"]
AT = "2025-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Sample:
    """What a fabricated run is like."""

    name: str = "demo"
    seed: int = 2023
    known: tuple[str, ...] = tuple(f"digit {c}" for c in range(7))
    novel: tuple[tuple[str, ...], ...] = ()
    held_back: tuple[str, ...] = ()  # classes of a last stage that is split but never learned
    sites: tuple[str, ...] = tuple(f"site-{k:02d}" for k in range(1, 11))
    rounds: int = 20
    failures: bool = False
    events: bool = True
    ledger: bool = True
    counts: bool = True
    paper: str = ""

    @property
    def stages(self) -> list[tuple[str, tuple[str, ...]]]:
        """Names and classes of the stages that ran."""
        return [("known", self.known), *((f"novel-{s}", names) for s, names in enumerate(self.novel, start=1))]


def write_run(folder: Path, sample: Sample | None = None) -> Path:
    """The folder, holding a fabricated run."""
    sample = sample or Sample()
    (folder / "tables").mkdir(parents=True)
    (folder / "config.toml").write_text(_config(sample), encoding="utf-8")
    rng = np.random.default_rng(number(sample.seed, sample.name))
    _write_json(folder / "split.json", _split(sample, rng))
    stages, events, ledger = [], [_started(sample)], list[dict[str, Any]]()
    seen: tuple[str, ...] = ()
    for name, classes in sample.stages:
        seen += classes
        for round in range(sample.rounds):
            tables = _count_tables(len(sample.known), len(seen), 0.35 + 0.6 * (round + 1) / sample.rounds, rng)
            answered = _answered(sample, name, round, rng)
            asked = [site for site in answered["asked"] if site not in _failed(answered)]
            ledger += [_message(site, name, round, len(seen)) for site in asked]
            events += [answered, {"at": AT, "event": "evaluated", "stage": name, "round": round + 1, **_scores(tables)}]
        _write_json(folder / "tables" / f"{name}.json", _tables_file(name, seen, len(sample.known), tables))
        stages.append(_stage_results(sample, name, len(classes), tables))
    events.append({"at": AT, "event": "finished"})
    _write_json(folder / "results.json", {"run": sample.name, "seed": sample.seed, "stages": stages})
    if sample.events:
        (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")
    if sample.ledger:
        (folder / "ledger.jsonl").write_text(_chained(ledger), encoding="utf-8")
    return folder


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


def _config(sample: Sample) -> str:
    return (
        "# asterism 0.1.0, python 3.11.7, torch 2.13.0\n# git 0123abc\n"
        f"name = {json.dumps(sample.name)}\nseed = {sample.seed}\n\n"
        f"[split]\nknown = {len(sample.known)}\nalpha = 0.1\n\n[train]\nbatch = 256\nlr = 0.05\n{sample.paper}"
    )


def _split(sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
    stages, counts, start = [], {}, 0
    held_back = [(f"novel-{len(sample.novel) + 1}", sample.held_back)] if sample.held_back else []
    for name, classes in [*sample.stages, *held_back]:
        shares = rng.dirichlet([0.3] * len(sample.sites), size=len(classes))
        images = np.array([rng.multinomial(140, share) for share in shares]).T
        counts[name] = {
            site: {c: int(n) for c, n in zip(classes, row, strict=True) if n}
            for site, row in zip(sample.sites, images, strict=True)
        }
        held = {}
        for site, row in zip(sample.sites, images, strict=True):
            held[site] = list(range(start, start := start + int(row.sum())))
        stages.append({"name": name, "classes": classes, "shares": held})
    split = {
        "format": 1,
        "data": {"images": start, "classes": [c for s in stages for c in s["classes"]], "labels": "0" * 64},
        "settings": {"known": len(sample.known), "partition": "class", "alpha": 0.1},
        "participants": sample.sites,
        "stages": stages,
    }
    return split | ({"counts": counts} if sample.counts else {})


def _started(sample: Sample) -> dict[str, Any]:
    versions = {"asterism": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
    return {
        "at": AT, "event": "started", "run": sample.name, "seed": sample.seed,
        "versions": versions, "device": "cpu", "participants": sample.sites,
    }  # fmt: skip


def _answered(sample: Sample, stage: str, round: int, rng: np.random.Generator) -> dict[str, Any]:
    asked = sorted(rng.choice(sample.sites, size=min(5, len(sample.sites)), replace=False).tolist())
    missed = sample.failures and round == 6
    failed = [{"participant": asked[0], "reason": "timeout", "detail": "no answer in 60 s"}]
    failing = sample.failures and (missed or round % 3 == 1)
    return {
        "at": AT, "event": "answered", "stage": stage, "round": round, "task": stage.partition("-")[0],
        "asked": asked, "replies": len(asked) - failing, "missed": missed, "failed": failed if failing else [],
        "seconds": 0.41, "images": 4700, "loss": None if missed else 0.3 + 1.9 * 0.85**round + rng.normal(0, 0.03),
        "bytes_up": 900_000, "bytes_down": 900_000,
    }  # fmt: skip


def _failed(answered: Mapping[str, Any]) -> set[str]:
    return {failure["participant"] for failure in answered["failed"]}


def _message(site: str, stage: str, round: int, classes: int) -> dict[str, Any]:
    size = 4 * (11_220_132 + 512 * classes)
    return {
        "at": AT, "site": site, "stage": stage, "round": round, "task": stage.partition("-")[0],
        "tensors": [{"name": "parameters", "shape": [size // 4], "bytes": size}], "bytes": size, "samples": 412,
    }  # fmt: skip


def _count_tables(known: int, classes: int, skill: float, rng: np.random.Generator) -> Tables:
    """Tables of 100 test images a class; novel classes stand one row further round than their order says."""
    joint = np.zeros((classes, classes), dtype=np.int64)
    for c in range(classes):
        right = min(0.99, skill * rng.uniform(0.8, 1.1)) * (1 if c < known else 0.8)
        row = c if c < known else known + (c - known + 1) % (classes - known)
        others = rng.dirichlet([0.3] * classes) * (1 - right)
        others[row] += right
        joint[c] = rng.multinomial(100, others / others.sum())
    inner = np.array([rng.multinomial(100, row / row.sum()) for row in joint[known:, known:] + 1e-9])
    novel = inner.reshape(classes - known, classes - known)
    own = np.array([rng.multinomial(100, row / row.sum()) for row in joint[:known, :known] + 1e-9])
    return {"known": own if classes > known else joint, "novel": novel, "joint": joint}


def _scores(tables: Tables) -> dict[str, Any]:
    known = len(tables["known"])
    headwise, joint = metrics.headwise(tables["known"], tables["novel"]), metrics.joint(tables["joint"], known)
    measured = tables["novel"].size > 0
    return {
        "headwise": vars(headwise), "joint": vars(joint),
        "nmi": 100 * (metrics.normalised_mutual_information(tables["novel"]) or 0) if measured else None,
        "ari": 100 * (metrics.adjusted_rand(tables["novel"]) or 0) if measured else None,
    }  # fmt: skip


def _stage_results(sample: Sample, stage: str, true: int, tables: Tables) -> dict[str, Any]:
    novel = stage != "known"
    return {
        "name": stage, "rounds": sample.rounds, "seconds": 12.3, "images": 94_000, "true": true,
        "estimated": true + 1 if novel else None, "forgetting": 3.2 if novel else None, **_scores(tables),
    }  # fmt: skip


def _tables_file(stage: str, classes: Sequence[str], known: int, tables: Tables) -> dict[str, Any]:
    rows = [*classes[:known], *(f"novel-{c + 1}" for c in range(len(classes) - known))]
    counts = {name: table.tolist() for name, table in tables.items()}
    return {"format": 1, "stage": stage, "classes": classes, "rows": rows, **counts}


def _chained(lines: Sequence[Mapping[str, Any]]) -> str:
    written: list[str] = []
    for line in lines:
        before = digest(written[-1].encode()) if written else FIRST
        written.append(json.dumps({**line, "before": before}))
    return "".join(f"{line}\n" for line in written)
