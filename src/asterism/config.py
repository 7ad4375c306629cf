"""Settings as frozen values: TOML in, overrides by dotted key, errors that name the key and the nearest right one."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from asterism.errors import AsterismError


class Section(BaseModel):
    """A group of settings: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def with_preset(full: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A validator of sections with the presets ``paper``, their defaults, and ``full``, which these settings are."""

    def fill(given: Any) -> Any:
        return {**full, **given} if isinstance(given, Mapping) and given.get("preset") == "full" else given

    return fill


S = TypeVar("S", bound=Section)
CHOICES = (["algorithm"], ["estimator"])  # sections of which there are several, told apart by their name


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AsterismError("no such configuration file", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AsterismError(f"not a TOML file: {error}", where=str(path)) from None


def override(tables: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of ``tables`` with each ``a.b=c`` put in place; list items by index (``novel.0.rounds=4``)."""
    result: dict[str, Any] = _copy(tables)
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not dotted.strip():
            raise AsterismError(f"--set takes key=value, got {assignment!r}", fix="for example --set known.rounds=4")
        _put(result, dotted.strip().split("."), _value(text.strip()), where=dotted.strip())
    return result


def validate(model: type[S], tables: Mapping[str, Any], *, source: str) -> S:
    """``tables`` as a ``model``, or an error that names the dotted key, the value and the nearest known key."""
    try:
        return model.model_validate(dict(tables))
    except ValidationError as error:
        first = error.errors()[0]
        dotted = _dotted(tables, first["loc"])
        what, fix = _explain(model, dict(first), dotted)
        more = error.error_count() - 1
        suffix = f" (and {more} more)" if more else ""
        where = f"{dotted} in {source}" if dotted else source
        raise AsterismError(what + suffix, where=where, fix=fix) from None


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _value(text: str) -> Any:
    """``text`` as TOML would read it, or as a plain string where it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(tables: Any, keys: list[str], value: Any, *, where: str) -> None:
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        here: Any = int(key) if isinstance(tables, list) and key.isdigit() else key
        if isinstance(tables, list) and (not isinstance(here, int) or here >= len(tables)):
            raise AsterismError(f"{key!r} is no item of a list of {len(tables)}", where=where, fix="items count from 0")
        if following is None:
            if key == "name" and keys[-2:-1] in CHOICES and tables.get("name") != value:
                tables.clear()  # another choice begins with its own defaults
            tables[here] = value
            return
        nested = tables[here] if isinstance(tables, list) else tables.setdefault(here, {})
        if not isinstance(nested, (dict, list)):
            nested = tables[here] = {}
        tables = nested


def _dotted(tables: Any, location: Sequence[int | str]) -> str:
    """The dotted key a user would write; tags of unions, which pydantic puts in between, are left out."""
    names: list[str] = []
    for i, part in enumerate(location):
        last = i == len(location) - 1
        if isinstance(tables, Mapping) and (part in tables or last):
            names.append(str(part))
            tables = tables.get(part)
        elif isinstance(tables, list) and isinstance(part, int) and part < len(tables):
            names.append(str(part))
            tables = tables[part]
    return ".".join(names)


def _explain(model: type[Section], error: Mapping[str, Any], dotted: str) -> tuple[str, str]:
    key = dotted.rpartition(".")[2]
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, sorted(set(_names(model))), n=1)
        fix = f"did you mean {near[0]!r}?" if near else "see `asterism config schema` for every key"
        return f"unknown key {key!r}", fix
    if error["type"] == "literal_error":
        return f"{key} = {error['input']!r} is not known", f"one of {error['ctx']['expected']}"
    if error["type"] == "union_tag_invalid":
        return f"{key}.name = {error['ctx']['tag']!r} is not known", f"one of {error['ctx']['expected_tags']}"
    if error["type"] == "missing":
        return f"{key} is missing", f"add {dotted} = …"
    message = error["msg"].removeprefix("Value error, ")
    if not dotted:
        return message, ""
    return f"{key} = {error['input']!r} is refused", message[0].lower() + message[1:]


def _names(model: type[BaseModel]) -> Iterator[str]:
    """Every key that ``model`` or a section below it knows."""
    definitions = model.model_json_schema()
    for schema in [definitions, *definitions.get("$defs", {}).values()]:
        yield from schema.get("properties", {})
