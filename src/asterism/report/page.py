"""One self-contained HTML page of a run, or of several side by side: no script, no address outside the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from asterism.files import write_text
from asterism.report import figures, words
from asterism.report.discovered import discovered, remembered
from asterism.report.pictures import novel_pictures, picture, pictures
from asterism.report.read import RunRecord, read_run
from asterism.report.rows import class_rows, failure_rows, messages, missed_rounds, newest_tables, site_rows
from asterism.report.summary import ACCURACIES, OTHERS, comparison, experiments, title, used

LONG_TABLE = 24

PARTITIONS: Mapping[str, str] = {
    "class": "Each class is dealt to the participants in shares drawn from a Dirichlet distribution with α = {alpha}, "
    "class by class, so participants also differ in size. The smaller α, the fewer participants hold a class: near 0 "
    "each class lies with one of them, from 100 on everyone holds about the same.",
    "client": "Each participant holds equally many images, in proportions over the classes drawn from a Dirichlet "
    "distribution with α = {alpha}. The smaller α, the fewer classes a participant holds; from 100 on everyone "
    "holds about the same.",
    "client-prior": "Each participant holds equally many images, in proportions over the classes drawn from a "
    "Dirichlet distribution with α = {alpha} times the share of each class, the paper's literal reading. That is "
    "strong: at α = 0.1 a participant holds about two classes of twenty.",
    "iid": "Images are dealt at random, so everyone holds about the same mix (α plays no part).",
    "by-site": "Every image lies with the participant that the manifest names (α plays no part).",
}


def write_report(folder: Path) -> Path:
    """``report.html`` in a run folder, made from that folder alone."""
    path = folder / "report.html"
    write_text(path, render_report(read_run(folder)))
    return path


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """A page at ``out`` that sets runs side by side; runs of one name are seeds of one experiment."""
    write_text(out, render_comparison([read_run(folder) for folder in folders]))
    return out


def render_report(record: RunRecord) -> str:
    """The page of one run; equal records give equal pages."""
    tables, rows = newest_tables(record), class_rows(record)
    last, stages = record.results.stages[-1], discovered(record)
    return _render(
        "page.html.jinja",
        record=record,
        results=record.results,
        headline=words.headline(record),
        last=last,
        columns=[part for part in words.PARTS if _has(record, part)],
        paper=_paper(record),
        pictures=pictures(record) | novel_pictures(record, stages),
        discovered=stages,
        remembered=remembered(record),
        alpha=_partition_words(record),
        class_rows=rows,
        tables=tables,
        site_rows=site_rows(record),
        failures=failure_rows(record),
        missed=missed_rounds(record),
        by_task=messages(record.ledger, "task"),
        by_site=messages(record.ledger, "site"),
        sent=sum(line.bytes for line in record.ledger),
        about=[line[1:].strip() for line in record.settings_text.splitlines() if line.startswith("#")],
    )


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The page of several runs."""
    rows = comparison(record.results for record in records)
    grouped = _grouped(records)
    overlaid = None
    if any(record.evaluated for record in records):
        label = "Joint accuracy over rounds of " + ", ".join(grouped)
        overlaid = picture(figures.overlaid_accuracy(grouped), "overlaid", label)
    return _render(
        "comparison.html.jinja",
        rows=rows,
        groups=grouped,
        tables=[("Accuracy", used(rows, ACCURACIES)), ("Discovery and cost", used(rows, OTHERS))],
        overlaid=overlaid,
        several=any(len(row.seeds) > 1 for row in rows),
    )


def _grouped(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    by_results = {id(record.results): record for record in records}
    groups = experiments(record.results for record in records)
    return {name: [by_results[id(result)] for result in seeds.values()] for name, seeds in groups.items()}


def _has(record: RunRecord, part: str) -> bool:
    return part == "known" or any(stage.headwise.novel is not None for stage in record.results.stages)


def _paper(record: RunRecord) -> dict[str, float]:
    """The paper's printed accuracies, where the configuration states any."""
    printed = record.settings.get("paper")
    values = printed if isinstance(printed, dict) else {}
    return {part: float(values[part]) for part in words.PARTS if isinstance(values.get(part), int | float)}


def _partition_words(record: RunRecord) -> str:
    settings = record.split.settings if record.split else {}
    text = PARTITIONS.get(str(settings.get("partition")), "")
    return text.format(alpha=settings.get("alpha"))


def _printable(value: object) -> object:
    """Any text of a run without the characters that HTML forbids; what is markup already went through here."""
    return words.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _render(template: str, **context: object) -> str:
    environment = Environment(
        loader=PackageLoader("asterism", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "decimal": words.decimal,
        "plain": words.plain,
        "amount": words.amount,
        "size": words.size,
        "duration": words.duration,
        "title_of": title,
    }
    environment.globals |= {"counted": words.counted, "LONG_TABLE": LONG_TABLE}
    return environment.get_template(template).render(**context) + "\n"
