"""Values of settings from texts, by type. Each function, or the one that it returns, raises ValueError with the allowed
values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kreplog.config import RANGES
from kreplog.errors import UsageError

NAN = float("nan")
INTEGER_CHARACTERS = set("+-0123456789 ")
"""Not all that Python reads, such as 1_000."""


def config_value(config: Any, field: str, value: Any) -> Any:
    """The value for a field of a config like `config`, from `value`: of the field's type, or text.

    Raises ValueError with the allowed values.
    """
    like = getattr(config, field)
    parse: Callable[[Any], Any] = nonempty_text
    if isinstance(like, bool | int | float):
        parse = boolean if isinstance(like, bool) else share if isinstance(like, float) else integer(*RANGES[field])
    found = parse(value)
    try:
        replace(config, **{field: found})
    except UsageError as error:
        raise ValueError(str(error).rpartition(": ")[2]) from error
    return found


def value_like(default: bool | int, value: Any) -> bool | int:
    """A value of the kind of `default`: true or false, or an integer from 0 on. Raises ValueError with the allowed
    values."""
    return boolean(value) if isinstance(default, bool) else integer(0, 2**63 - 1)(value)


def integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            found = int(value) if isinstance(value, str) and not set(value) - INTEGER_CHARACTERS else value
        except ValueError:
            found = None
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return found

    return parse


def share(value: Any) -> float:
    return number(0, 1)(value)


def number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            found = NAN if isinstance(value, bool) else float(value)
        except (ValueError, TypeError):
            found = NAN
        if not low <= found <= high:
            raise ValueError(f"must be a number from {low} to {high}")
        return found

    return parse


def boolean(value: Any) -> bool:
    if value in (True, False):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true or false")


def nonempty_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    return value
