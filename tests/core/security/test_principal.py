"""Principals and their texts."""

from __future__ import annotations

import pytest

from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.errors import UsageError


@pytest.mark.parametrize("text", ["User:alice", "User:CN=alice,OU=a:b", "Group:x"])
def test_a_principal_is_read_as_it_is_written(text: str) -> None:
    assert str(Principal.parse(text)) == text


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice"])
def test_a_text_without_kind_or_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="User:NAME"):
        Principal.parse(text)


def test_the_anonymous_principal_is_kafkas() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
