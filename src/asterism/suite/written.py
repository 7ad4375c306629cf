"""A suite's table as Markdown, CSV and HTML. A cell that was not measured is empty."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from asterism.files import write_text
from asterism.report.style import as_file
from asterism.suite.table import COMPARED, MEASURES, Line, Table, average_count_error, words

LEGEND = (
    "Ours: mean ± sample standard deviation (n − 1) over seeds, after the last round. Paper: as printed; the figure "
    "behind its ± is a variance, and is shown here as its root, a standard deviation. Δ: ours − paper. Headwise is "
    "the paper's protocol; joint is one arg-max over every row of the head. Seconds: of one run without its known "
    "stage, which rows share. Empty: not measured, or not printed."
)
Columns = Mapping[str, str]  # cell by heading


def cells(table: Table, line: Line) -> Columns:
    """A line as text, column by column."""
    row = {"method": table.suite.row(line.row).shown}
    for part in ("known", "novel", "all"):
        row[part] = words(line.ours.get(COMPARED[part]))
        row[f"paper {part}"] = words(line.theirs.get(part))
        row[f"Δ {part}"] = _signed(line.difference(part))
    for part in ("known", "novel", "all"):
        row[f"joint {part}"] = words(line.ours.get(f"joint.{part}"))
    row["classes"] = ("given" if line.given else words(line.ours.get("estimated"))) if line.seeds else ""
    row["paper classes"] = words(line.theirs.get("estimated"), 0)
    row["true"] = "" if line.true is None else str(line.true)
    row["seconds"] = words(line.ours.get("seconds"), 0)
    row["seeds"] = str(len(line.seeds)) if line.seeds else ""
    return row | ({"failed": "; ".join(line.failed)} if line.failed else {})


def _signed(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+.1f}".replace("-", "−")


def columns(table: Table, lines: Sequence[Line]) -> tuple[list[str], list[Columns]]:
    """Headings and rows; columns of which a part can have nothing, whatever is measured, are left out."""
    rows = [cells(table, line) for line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    optional = {"paper classes", "true", "failed", "classes", *(f"paper {part}" for part in COMPARED)}
    if not any(line.theirs for line in lines):
        optional |= {f"Δ {part}" for part in COMPARED}
    unwanted = _unwanted(lines)
    return [n for n in names if n not in unwanted and (n not in optional or any(row.get(n) for row in rows))], rows


def _unwanted(lines: Sequence[Line]) -> set[str]:
    """Columns that say nothing: accuracies where the paper counts classes, novel ones where there are none."""
    printed = {part for line in lines for part in line.theirs}
    parts: tuple[str, ...] = ("known", "novel", "all") if printed == {"estimated"} else ()
    parts = ("novel", "all") if all(line.stage == "known" for line in lines) else parts
    return {f"{kind}{part}" for kind in ("", "joint ", "Δ ", "paper ") for part in parts}


def heading(table: Table, stage: str, group: str) -> str:
    """What a part of a table is about."""
    shown = table.suite.shown(group)
    several = len(table.suite.stages) > 1
    return f"{shown}, after {stage}" if several else shown


def markdown(table: Table, *, level: int = 1) -> str:
    """The table as a Markdown section."""
    suite, mark = table.suite, "#" * level
    said = [f"{mark} {suite.title}", *([suite.note.strip()] if suite.note else []), summary(table)]
    for stage, group in table.parts:
        names, rows = columns(table, table.part(stage, group))
        said.append(f"{mark}# {heading(table, stage, group)}")
        said.append("\n".join(_markdown_lines(names, rows)))
    said += [errors] if (errors := count_errors(table)) else []
    said += [explained] if (explained := departures(table)) else []
    return "\n\n".join([*said, LEGEND]) + "\n"


def _markdown_lines(names: Sequence[str], rows: Sequence[Columns]) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "| " + " | ".join("---" if name in ("method", "failed") else "---:" for name in names) + " |"
    for row in rows:
        yield "| " + " | ".join(row.get(name, "").replace("|", "\\|").replace("\n", " ") for name in names) + " |"


def summary(table: Table) -> str:
    """How much of the table was measured, at what cost, and how far from the paper."""
    total = len(table.lines)
    said = f"Measured: {table.measured} of {total} rows, {table.seconds / 60:.0f} minutes of runs"
    devices = dict.fromkeys(str(record.machine.get("device", "")) for record in table.records)
    said += f" on {', '.join(devices)}." if devices and table.measured else "."
    differences = [
        d for line in table.lines for part in ("known", "novel", "all") if (d := line.difference(part)) is not None
    ]
    if differences:
        near = sum(abs(d) <= NEAR for d in differences)
        said += f" {near} of {len(differences)} headwise cells lie within {NEAR:g} points of the paper's."
    return said


NEAR = 2.0


def departures(table: Table) -> str:
    """Which departures can explain a difference, row by row; those of all rows are told once."""
    shared = set(table.suite.departures)
    said = [f"All rows: {'; '.join(table.suite.departures)}."] if shared else []
    for row in table.suite.rows:
        own = [d for line in table.lines if line.row == row.name for d in line.departures if d not in shared]
        said += [f"{row.shown}: {'; '.join(dict.fromkeys(own))}."] if own else []
    return "Departures that can explain a difference (see departures). " + " ".join(said) if said else ""


def count_errors(table: Table) -> str:
    """Average errors of the estimated class numbers beside the printed ones, where the paper prints them."""
    said = []
    for row, theirs in table.paper.average_error.items():
        ours = average_count_error(table, row) if any(r.name == row for r in table.suite.rows) else None
        said.append(f"{row}: {'' if ours is None else f'{ours.mean:.1f}'} (paper {theirs:.1f})")
    return "Average count error in percent, where every group was measured: " + "; ".join(said) + "." if said else ""


def comma_separated(table: Table) -> str:
    """The table as CSV: one line for each stage, group and row, every number in a column of its own."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    spread = [name for m in MEASURES for name in (m, f"{m}.std")]
    theirs = [name for part in COMPARED for name in (f"paper.{part}", f"paper.{part}.std", f"difference.{part}")]
    writer.writerow(["stage", "group", "row", "seeds", "true", "given", *spread, *theirs, "failed", "departures"])
    for line in table.lines:
        writer.writerow([
            line.stage, line.group, line.row, " ".join(map(str, line.seeds)), line.true, line.given,
            *_numbers(line), "; ".join(line.failed), "; ".join(line.departures),
        ])  # fmt: skip
    return stream.getvalue()


def _numbers(line: Line) -> Iterator[str]:
    for measure in MEASURES:
        ours = line.ours.get(measure)
        yield from ("", "") if ours is None else (_plain(ours.mean), _plain(ours.deviation))
    for part in COMPARED:
        printed = line.theirs.get(part)
        yield from ("", "") if printed is None else (_plain(printed.mean), _plain(printed.deviation))
        yield _plain(line.difference(part))


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def web_page(table: Table, pictures: Sequence[str] = ()) -> str:
    """The table as one self-contained page; ``pictures`` are svg elements."""
    suite = table.suite
    said = [f"<h1>{escape(suite.title)}</h1>"]
    said += [f"<p>{escape(suite.note)}</p>"] if suite.note else []
    said.append(f"<p>{escape(summary(table))}</p>")
    said += pictures
    for stage, group in table.parts:
        names, rows = columns(table, table.part(stage, group))
        said.append(f"<h2>{escape(heading(table, stage, group))}</h2>")
        said.append("".join(_web_table(names, rows)))
    said += [f"<p>{escape(text)}</p>" for text in (count_errors(table), departures(table), LEGEND) if text]
    return PAGE.format(title=escape(suite.title), body="\n".join(said))


def _web_table(names: Sequence[str], rows: Sequence[Columns]) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(_web_cell(row.get(name, "")) for name in names) + "</tr>"
    yield "</table>"


def _web_cell(text: str) -> str:
    return f"<td>{escape(text)}</td>" if text else '<td class="empty"></td>'


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 "DejaVu Sans", sans-serif; color: #1f2933; margin: 2rem auto; max-width: 75rem; }}
table {{ border-collapse: collapse; font-size: 0.85em; }}
th, td {{ padding: 0.2em 0.6em; border-bottom: 1px solid #d5dbe1; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
td.empty {{ background: #f3f5f7; }}
svg {{ display: block; width: 100%; }}
</style>
{body}
</html>
"""


def write(table: Table, folder: Path, pictures: Mapping[str, str] | None = None) -> list[Path]:
    """The files of the table in ``folder``: table.md, table.csv, table.html and its pictures, by name."""
    pictures = pictures or {}
    texts = {
        "table.md": markdown(table),
        "table.csv": comma_separated(table),
        "table.html": web_page(table, tuple(pictures.values())),
    }
    texts |= {f"{file_name(name)}.svg": as_file(picture) for name, picture in pictures.items()}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def file_name(name: str) -> str:
    """The name of a picture as one of a file."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
