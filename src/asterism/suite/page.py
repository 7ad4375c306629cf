"""One page of all tables: what reproduces, what does not, what nobody measured yet, and how to repeat each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.suite.table import Table
from asterism.suite.written import LEGEND, NEAR, markdown

OPENING = """# Reproduction

Every table of [the paper](https://arxiv.org/abs/2312.13500), its numbers beside ours. This page is generated from the
measurements in `results/` by

    asterism suite experiments/*.toml --table-only --page docs/reproduction.md

and holds no number that is not in one of those files. A cell that nobody has measured is empty. How a suite is
written, and how one is run in pieces, is told in [suites](suite.md).
"""
READING = """## How to read the tables

{legend}

- Two columns are named alike in the paper and here, and mean the same: its *known*, *novel* and *all* are read head by
  head. What a user of the model gets is the *joint* reading, which the paper does not print.
- The paper does not say whether its variance is that of the sample or of the population; we take its root as it is.
- Printed cells that contradict each other: the paper's "all" is the class-count mean of the other two in 256 of 298
  cells. The other 42 are named below their tables; no target can be made of those.
"""


# As in the paper; others follow.
ORDER = (
    "main", "gal", "two-stages", "algorithms", "init", "central", "central-own", "heterogeneity", "alpha",
    "partitions-cifar100", "partitions-tiny-imagenet", "partitions-imagenet-subset", "fine-grained", "class-numbers",
    "class-numbers-fine-grained", "sensitivity-eta", "sensitivity-beta", "participants", "forgetting", "recipes",
)  # fmt: skip


def place(table: Table) -> int:
    """Where a table stands on the page."""
    return ORDER.index(table.suite.name) if table.suite.name in ORDER else len(ORDER)


def reproduction(tables: Sequence[Table], audits: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page: one section for each table, and one for the attacks on prototypes."""
    tables = sorted(tables, key=place)
    said = [OPENING, overview(tables), READING.format(legend=LEGEND)]
    return "\n".join([*said, *(section(table) for table in tables), attacks(audits)])


def overview(tables: Sequence[Table]) -> str:
    """One line for each table: how much is measured, how close it is, how long it took."""
    lines = [
        "## What there is\n",
        f"| table | rows measured | headwise cells within {NEAR:g} points | minutes |",
        "| --- | ---: | ---: | ---: |",
    ]
    for table in tables:
        near, compared = closeness(table)
        close = f"{near} of {compared}" if compared else ""
        minutes = f"{table.seconds / 60:.0f}" if table.measured else ""
        title = f"[{table.suite.title}](#{anchor(table.suite.title)})"
        lines.append(f"| {title} | {table.measured} of {len(table.lines)} | {close} | {minutes} |")
    return "\n".join(lines) + "\n"


def anchor(title: str) -> str:
    """The anchor that a heading gets."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def closeness(table: Table) -> tuple[int, int]:
    """Compared cells that lie near the paper's, and all that could be compared."""
    found = [
        d for line in table.lines for part in ("known", "novel", "all") if (d := line.difference(part)) is not None
    ]
    return sum(abs(d) <= NEAR for d in found), len(found)


def section(table: Table) -> str:
    """A table with what reproduces and what does not, and the command that makes it."""
    text = markdown(table, level=2).replace("\n\n" + LEGEND, "")
    said = "\n".join([*verdicts(table), *contradictions(table)])
    repeat = f"To repeat it: `asterism suite experiments/{table.suite.name}.toml`."
    return "\n\n".join(part for part in (text.strip(), said, repeat) if part) + "\n"


def verdicts(table: Table) -> Iterator[str]:
    """What reproduces and what does not, row by row, where anything was compared."""
    for title, inside in ((f"Within {NEAR:g} points of the paper in novel accuracy", True), ("Farther away", False)):
        found = [
            f"{table.suite.row(line.row).shown} ({table.suite.shown(line.group)}, {d:+.1f})"
            for line in table.lines
            if (d := line.difference("novel")) is not None and (abs(d) <= NEAR) == inside
        ]
        if found:
            yield f"- {title}: {'; '.join(found)}."


def contradictions(table: Table) -> Iterator[str]:
    """The printed cells of the table that contradict their neighbours."""
    found = [
        f"{row} ({' '.join(dict.fromkeys([group, stage] if len(table.suite.stages) > 1 else [group]))}, {missed:+.1f})"
        for (stage, group, row), missed in table.paper.ill_fitting().items()
    ]
    if found:
        yield f'- Printed cells whose "all" is not the class-count mean of known and novel: {"; ".join(found)}.'


def read_audits(results: Path) -> list[dict[str, Any]]:
    """What `asterism audit --out` left below a folder of results."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(results.glob("reconstruction/*.json"))]


ATTACK = """## Reconstruction from prototypes

The paper shows recovered images of three prototypes and no number. Here: how well Adam matched the representation, and
how near the recovered images come to the nearest real image behind the prototype, by how many images stand behind it.
Blind is the PSNR of the site's mean image, which takes no attack: an attack below it has found nothing.
"""


def attacks(audits: Sequence[Mapping[str, Any]]) -> str:
    """The section on what prototypes give away; without a table where nothing was attacked yet."""
    said = [ATTACK]
    for audit in audits:
        said.append(f"### {audit['run']}, seed {audit['seed']}, {audit['stage']}\n")
        said.append("| prototypes | images behind | number | match | PSNR | blind PSNR | cosine |")
        said.append("| --- |" + " ---: |" * 6)
        said += [attacked(group) for group in audit["groups"]]
    said.append("\nTo repeat it: `asterism audit RUN --out results/reconstruction/NAME.json` on the run of a GAL row.")
    return "\n".join(said) + "\n"


def attacked(group: Mapping[str, Any]) -> str:
    """One line of the section: prototypes with so many images behind them."""
    numbers = f"{group['match']:.1e} | {group['psnr']:.1f} | {group['blind_psnr']:.1f} | {group['cosine']:.2f}"
    return f"| {group['kind']} | {group['images']} | {group['prototypes']} | {numbers} |"
