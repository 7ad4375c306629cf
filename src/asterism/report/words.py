"""Numbers as a reader wants them: percentages, amounts, sizes, durations, and a run in one sentence."""

from __future__ import annotations

import unicodedata

from asterism.metrics import Scores
from asterism.report.read import RunRecord

NOTHING = "–"
SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
PARTS = ("known", "novel", "all")


def decimal(value: float | None, digits: int = 1) -> str:
    """``95.1``, or a dash where there is no value."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def spread(mean: float | None, deviation: float | None, digits: int = 1) -> str:
    """``95.1 ± 0.4``, without the second part where there is one seed only."""
    return decimal(mean, digits) + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def plain(value: float | None) -> str:
    """``0.6123``, to four significant digits, or a dash where there is no value."""
    return NOTHING if value is None else f"{value:.4g}".replace("-", "−")


def amount(value: int | None) -> str:
    """``123,456``, or a dash where there is no value."""
    return NOTHING if value is None else f"{value:,}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """``1 round`` or ``20 rounds``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def size(value: float) -> str:
    """``44.9 MB``, in powers of 1000."""
    power = 0
    while round(value, 1) >= 1000 and power < len(SIZES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.1f} {SIZES[power]}" if power else f"{value:.0f} B"


def duration(seconds: float) -> str:
    """``12.3 s``, ``4 min 05 s`` or ``2 h 07 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def printable(text: str) -> str:
    """``text`` with a mark for every character that no page may hold: controls and halves of surrogate pairs."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "�" for c in text)


def headline(record: RunRecord) -> str:
    """The run in one sentence, from its classes to its accuracy after the last round."""
    stages = record.results.stages
    rounds = " + ".join(str(stage.rounds) for stage in stages)
    facts = [_classes(record), *_participants(record), f"{rounds} round{'' if rounds == '1' else 's'}"]
    return f"{', '.join(facts)}: {_accuracies(stages[-1].headwise)}"


def participants(record: RunRecord) -> tuple[str, ...]:
    """Every participant's name, from the split or else from the first event."""
    if record.split:
        return record.split.participants
    return record.started.participants if record.started else ()


def _classes(record: RunRecord) -> str:
    first, *later = record.results.stages
    if not later:
        return f"{first.true:,} known class{'' if first.true == 1 else 'es'}"
    novel = sum(stage.true for stage in later)
    estimates = [stage.estimated for stage in later if stage.estimated is not None]
    estimated = f" ({sum(estimates):,}\u00a0estimated)" if len(estimates) == len(later) else ""
    return f"{first.true:,} known and {novel:,} novel classes{estimated}"


def _participants(record: RunRecord) -> list[str]:
    number = len(participants(record))
    return [counted(number, "participant")] if number else []


def _accuracies(scores: Scores) -> str:
    """``95.1% known accuracy``, or ``accuracy 95.1% known, …`` where there are novel classes."""
    if scores.novel is None:
        return f"{decimal(scores.known)}% known accuracy"
    return "accuracy " + ", ".join(f"{decimal(getattr(scores, part))}% {part}" for part in PARTS)
