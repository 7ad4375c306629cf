from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from asterism.config import Section, override, read_toml, validate
from asterism.errors import AsterismError


class Inner(Section):
    rounds: Annotated[int, Field(ge=1)] = 3
    mode: Literal["fast", "slow"] = "fast"


class Fruit(Section):
    name: Literal["fruit"] = "fruit"
    ripe: bool = True


class Stone(Section):
    name: Literal["stone"] = "stone"
    weight: float = 1.0


class Outer(Section):
    title: str
    inner: Inner = Inner()
    items: tuple[Inner, ...] = ()
    kind: Annotated[Fruit | Stone, Field(discriminator="name")] = Fruit()


def refused(tables: dict[str, object]) -> AsterismError:
    with pytest.raises(AsterismError) as caught:
        validate(Outer, {"title": "t", **tables}, source="file.toml")
    return caught.value


def test_unknown_key_is_named_with_its_dotted_path_and_the_nearest_right_one() -> None:
    error = refused({"inner": {"ronds": 4}})
    assert (error.what, error.where, error.fix) == (
        "unknown key 'ronds'",
        "inner.ronds in file.toml",
        "did you mean 'rounds'?",
    )


def test_unknown_key_without_a_near_one_points_to_the_schema() -> None:
    assert "schema" in refused({"zzzzz": 1}).fix


def test_value_out_of_range_is_named_with_its_value() -> None:
    error = refused({"items": [{}, {"rounds": 0}]})
    assert error.what == "rounds = 0 is refused"
    assert error.where == "items.1.rounds in file.toml"
    assert "greater than or equal to 1" in error.fix


def test_wrong_choice_lists_the_choices() -> None:
    assert "'fast' or 'slow'" in refused({"inner": {"mode": "quick"}}).fix
    assert "'fruit', 'stone'" in refused({"kind": {"name": "frut"}}).fix


def test_key_inside_a_chosen_union_member_has_no_tag_in_its_path() -> None:
    assert refused({"kind": {"name": "stone", "wight": 2}}).where == "kind.wight in file.toml"


def test_missing_key_is_named() -> None:
    with pytest.raises(AsterismError, match="title is missing"):
        validate(Outer, {}, source="file.toml")


def test_further_mistakes_are_counted() -> None:
    assert refused({"inner": {"rounds": 0, "mode": "x"}}).what.endswith("(and 1 more)")


def test_override_reaches_tables_list_items_and_new_tables_without_touching_its_input() -> None:
    tables = {"title": "a", "items": [{"rounds": 1}, {"rounds": 2}]}
    changed = override(tables, ["items.1.rounds=7", "inner.mode=slow", "title=b=c"])
    assert changed == {"title": "b=c", "items": [{"rounds": 1}, {"rounds": 7}], "inner": {"mode": "slow"}}
    assert tables == {"title": "a", "items": [{"rounds": 1}, {"rounds": 2}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("gal", "gal"),
        ('"4"', "4"),
        ("", ""),
        ("a b", "a b"),
    ],
)
def test_override_reads_values_as_toml_and_anything_else_as_text(text: str, value: object) -> None:
    assert override({}, [f"key={text}"]) == {"key": value}


@pytest.mark.parametrize("assignment", ["rounds", "=4", "items.5.rounds=1", "items.x=1"])
def test_override_that_makes_no_sense_is_refused(assignment: str) -> None:
    with pytest.raises(AsterismError):
        override({"items": [{}]}, [assignment])


def test_sections_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Inner().rounds = 5


def test_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match=r"gone\.toml"):
        read_toml(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(AsterismError, match="line 1"):
        read_toml(tmp_path / "bad.toml")
