"""Types of settings: each parses values from texts, and says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from kreplog.config import EXCLUDED, LISTS, RANGES
from kreplog.errors import UsageError

NAN = float("nan")
INTEGER_CHARACTERS = set("+-0123456789 ")
"""Not all that Python reads, such as 1_000."""


class ConfigType(IntEnum):
    """The types of settings, by their numbers in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a setting's values. allowed: the values, in words. parse: makes one from text, or from a value of the
    type; raises ValueError with the allowed ones. A list is comma-separated text."""

    config_type: ConfigType
    allowed: str
    parse: Callable[[Any], Any]


def field_type(config: Any, field: str) -> ValueType:
    """The type of a field of configs like `config`."""
    like = getattr(config, field)
    if isinstance(like, bool):
        own = BOOLEAN
    elif isinstance(like, float):
        own = SHARE
    elif field in RANGES:
        own = integer(*RANGES[field], EXCLUDED.get(field))
    else:
        choices = type(config).__dataclass_fields__[field].metadata.get("choices")
        kind = ConfigType.LIST if field in LISTS else ConfigType.STRING
        parse_text = TEXT.parse if field not in LISTS else _possibly_empty if choices and "" in choices else _joined
        allowed = "; ".join(choice or '""' for choice in choices) if choices else TEXT.allowed
        own = ValueType(kind, allowed, parse_text)

    def parse(value: Any) -> Any:
        found = own.parse(value)
        try:
            replace(config, **{field: found})
        except UsageError as error:
            raise ValueError(str(error).rpartition(": ")[2]) from error
        return found

    return replace(own, parse=parse)


def integer(low: int, high: int, excluded: int | None = None) -> ValueType:
    allowed = f"{low} to {high}" + ("" if excluded is None else f" but {excluded}")

    def parse(value: Any) -> int:
        try:
            found = int(value) if isinstance(value, str) and not set(value) - INTEGER_CHARACTERS else value
        except ValueError:
            found = None
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high or found == excluded:
            raise ValueError(f"must be an integer from {allowed}")
        return found

    return ValueType(ConfigType.INT if high < 2**31 else ConfigType.LONG, allowed, parse)


def one_of(*allowed: str) -> ValueType:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return ValueType(ConfigType.STRING, "; ".join(allowed), parse)


def texts(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("must be a list of texts, or a comma-separated text")
    if not parts or len(set(parts)) < len(parts):
        raise ValueError("at least one is needed, and none twice")
    return tuple(part.strip() for part in parts)


def number(low: float, high: float) -> ValueType:
    def parse(value: Any) -> float:
        try:
            found = NAN if isinstance(value, bool) else float(value)
        except (ValueError, TypeError):
            found = NAN
        if not low <= found <= high:
            raise ValueError(f"must be a number from {low} to {high}")
        return found

    return ValueType(ConfigType.DOUBLE, f"{low} to {high}", parse)


def _boolean(value: Any) -> bool:
    if value in (True, False):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true or false")


def _nonempty_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    return value


def _joined(value: Any) -> str:
    """A list as comma-separated text."""
    return _nonempty_text(",".join(texts(value)) if isinstance(value, list) else value)


def _possibly_empty(value: Any) -> str:
    return "" if value in ("", []) else _joined(value)


BOOLEAN = ValueType(ConfigType.BOOLEAN, "true or false", _boolean)
SHARE = number(0, 1)
TEXT = ValueType(ConfigType.STRING, "a text that is not empty", _nonempty_text)
SECRET = replace(TEXT, config_type=ConfigType.PASSWORD)
"""A text that neither errors nor DescribeConfigs show."""
