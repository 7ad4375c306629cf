"""One page of all tables: what reproduces, what does not, what nobody measured yet, and how to repeat each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
- Printed cells that contradict each other: the paper's "all" is the class-count mean of the other two in most cells.
  A test (`tests/suite/test_paper.py`) lists every cell in which it is not; no target can be made of those.
"""


def reproduction(tables: Sequence[Table]) -> str:
    """The page, one section for each table."""
    said = [OPENING, overview(tables), READING.format(legend=LEGEND)]
    return "\n".join([*said, *(section(table) for table in tables)])


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
    said = "\n".join(verdicts(table))
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
