"""Codecs of keys and values, and records that they do not take."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog import Topic, errors
from kreplog.codecs import CODECS, ObjectCodec, codec_of

UPPER = (lambda text: text.upper().encode(), lambda data: data.decode().lower())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
)


@given(item=OBJECTS)
@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_objects_come_back(name: str, item: Any) -> None:
    codec = codec_of(name, "value", "")
    assert codec is not None
    data = codec.encoded(item, "value")
    assert (data is None) == (item is None)
    assert data is None or codec.decode(bytes(data)) == item


def test_json_without_orjson_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    item = {"a": [1, 2.5, "ü"], "b": None}
    faster = codec_of("json", "value", "")
    monkeypatch.setitem(sys.modules, "orjson", None)
    plain = codec_of("json", "value", "")
    assert faster is not None and plain is not None
    assert plain.encode(item) == faster.encode(item) == '{"a":[1,2.5,"ü"],"b":null}'.encode()
    with pytest.raises(errors.RecordEncodeError, match="json"):
        plain.encoded(float("nan"), "value")


def test_msgpack_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(errors.UsageError, match=r"kreplog\[codecs\]"):
        codec_of("msgpack", "value", "")


@pytest.mark.parametrize("given", ["yaml", 5, (str.encode,), ("a", "b")])
def test_what_is_no_codec(path: Path, given: Any) -> None:
    with pytest.raises(errors.UsageError, match="value_codec"):
        Topic.open(path, 1, value_codec=given)
    assert not Path(f"{path}-0").exists() and Topic.open(path, 1).partitions == 1


def test_a_topic_of_objects(path: Path) -> None:
    with Topic.open(path, 3, key_codec="str", value_codec="json") as topic:
        place = topic.append({"id": 1}, "alice")
        topic.append_many([{"id": 2}, None], ["alice", "bob"])
        assert sorted((r.key, r.value and r.value["id"]) for r in topic.read()) == [
            ("alice", 1),
            ("alice", 2),
            ("bob", None),
        ]
        assert place.partition == next(r for r in topic.read() if r.key == "alice").partition
    with Topic.open(path, read_only=True) as raw:
        assert {r.value for r in raw.read()} == {b'{"id":1}', b'{"id":2}', None}


def test_columns_in_arrow_are_taken_as_they_are(path: Path) -> None:
    with Topic.open(path, 1, key_codec="str", value_codec="json") as topic:
        topic.append_many(pa.table({"value": [b'{"id":1}'], "key": ["k"]}))
        topic.append_many(pa.array([b"[2]"]))
        assert [(r.key, r.value) for r in topic.read()] == [("k", {"id": 1}), (None, [2])]
        assert [b["value"].to_pylist() for b in topic.to_arrow()] == [[b'{"id":1}', b"[2]"]]


@pytest.mark.parametrize("codec", [UPPER, ObjectCodec("upper", *UPPER)])
def test_a_pair_of_functions(path: Path, codec: Any) -> None:
    with Topic.open(path, 1, value_codec=codec) as topic:
        topic.append("abc")
        assert [r.value for r in topic.read()] == ["abc"]
    with Topic.open(path, read_only=True) as topic:
        assert [r.value for r in topic.read()] == [b"ABC"]


def test_what_cannot_be_encoded_writes_nothing(path: Path) -> None:
    with Topic.open(path, 1, key_codec="str", value_codec="json") as topic:
        for call in (
            lambda: topic.append(object()),
            lambda: topic.append({}, 5),
            lambda: topic.append_many([{}, object()]),
            lambda: topic.append_many([{}], [5]),
        ):
            with pytest.raises(errors.RecordEncodeError):
                call()
        assert topic.offsets() == {0: range(0)}


class TestWhatDoesNotDecode:
    @pytest.fixture
    def topic(self, path: Path) -> Any:
        with Topic.open(path, 2) as raw:
            for value in (b"1", b"{", None, b"4"):
                raw.append(value, b"k", partition=1)
            raw.append(b"5", b"\xff", partition=1)
        with Topic.open(path, key_codec="str", value_codec="json") as topic:
            yield topic

    @pytest.mark.parametrize("order", ["partition", "time"])
    def test_it_is_named(self, topic: Topic, order: str) -> None:
        records = topic.read(order=order)
        assert next(records).value == 1
        with pytest.raises(
            errors.RecordDecodeError, match=r"orders-1: the value of the record at offset 1, of 1 byte"
        ) as e:
            next(records)
        assert (e.value.partition, e.value.offset, e.value.field) == ("orders-1", 1, "value")
        assert e.value.record.value == b"{" and e.value.record.key == b"k"
        copy = pickle.loads(pickle.dumps(e.value))
        assert copy.record == e.value.record and str(copy) == str(e.value)
        assert [r.value for r in topic.read(1, 2, 4)] == [None, 4], "a read from the next goes on"

    def test_it_is_skipped(self, topic: Topic) -> None:
        assert [r.value for r in topic.read(on_error="skip")] == [1, None, 4]

    def test_it_is_set_aside(self, topic: Topic) -> None:
        aside: list[errors.RecordDecodeError] = []
        assert [r.value for r in topic.read(on_error=aside.append)] == [1, None, 4]
        assert [(error.field, error.offset, error.record.value) for error in aside] == [
            ("value", 1, b"{"),
            ("key", 4, b"5"),
        ]

    @pytest.mark.parametrize("given", ["ignore", 5, None])
    def test_other_ways_are_refused(self, topic: Topic, given: Any) -> None:
        with pytest.raises(errors.UsageError, match="on_error"):
            topic.read(on_error=given)


def test_every_name_is_a_codec() -> None:
    for name in CODECS:
        codec_of(name, "key", "")
