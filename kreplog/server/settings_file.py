"""A broker's settings in TOML: in tables, dotted or quoted, by Kafka's names."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kreplog.errors import UsageError


def read_file(path: Path) -> dict[str, Any]:
    """Settings by name. Raises UsageError for a file that cannot be read or is not TOML."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the settings {path} cannot be read: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise UsageError(f"the settings {path} are not TOML: {error}", path=str(path)) from error


def parse(text: str) -> dict[str, Any]:
    """Settings by name, from TOML. Raises ValueError for any other text."""
    return dict(_flatten("", tomllib.loads(text)))


def _flatten(prefix: str, table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value
