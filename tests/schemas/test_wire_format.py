"""What stands before a key or value that has a schema."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog.schemas.wire_format import decoded_indexes, encoded_indexes, id_and_payload, with_id


def test_the_id_is_big_endian_behind_a_zero() -> None:
    assert with_id(7, b"payload") == b"\0\0\0\0\7payload"
    assert with_id(0xFFFFFFFF, b"") == b"\0\xff\xff\xff\xff"
    assert id_and_payload(b"\0\0\0\0\7payload") == (7, b"payload")


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\7x", b'{"a":1}'])
def test_what_has_no_schema(data: bytes) -> None:
    with pytest.raises(ValueError, match="id of a schema"):
        id_and_payload(data)


@pytest.mark.parametrize(
    ("indexes", "encoded"),
    [((0,), b"\0"), ((1,), b"\2\2"), ((1, 0), b"\4\2\0"), ((0, 0), b"\4\0\0"), ((64, 300), b"\4\x80\1\xd8\4")],
)
def test_message_indexes(indexes: tuple[int, ...], encoded: bytes) -> None:
    assert encoded_indexes(indexes) == encoded
    assert decoded_indexes(encoded + b"rest") == (indexes, b"rest")


def test_a_first_message_may_be_written_at_length() -> None:
    assert decoded_indexes(b"\2\0rest") == ((0,), b"rest")


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=100))
def test_indexes_come_back(indexes: list[int]) -> None:
    assert decoded_indexes(encoded_indexes(tuple(indexes))) == (tuple(indexes), b"")


@given(st.binary(max_size=30))
def test_no_bytes_do_more_than_raise_a_value_error(data: bytes) -> None:
    try:
        indexes, rest = decoded_indexes(data)
    except ValueError:
        return
    assert data.endswith(rest) and all(index >= 0 for index in indexes)


@pytest.mark.parametrize("data", [b"", b"\4\2", b"\1", b"\2\1", b"\xd0\1", b"\xff\xff\xff\xff\xff\1"])
def test_wrong_indexes(data: bytes) -> None:
    with pytest.raises(ValueError, match="index"):
        decoded_indexes(data)
