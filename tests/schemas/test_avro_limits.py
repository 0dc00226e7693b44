"""Schemas and records of somebody else, by which fastavro would end the process or take its memory: each case runs in a
process of its own."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog import Topic
from kreplog.errors import RecordDecodeError, RecordEncodeError, UsageError
from kreplog.schemas import Avro, Schema, SchemaFile
from kreplog.schemas.avro_limits import MAX_NESTING
from kreplog.schemas.registry import Reference
from kreplog.schemas.wire_format import with_id
from tests.waiting import InChild

LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
TREE = {"type": "record", "name": "T", "fields": [{"name": "children", "type": {"type": "array", "items": "T"}}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def nested(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = array(schema)
    return schema


def nested_text(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def chain(length: int) -> Any:
    """Types, each of which is a field of the next; the text is not nested."""
    names = [record("R0", "int"), *(record(f"R{number}", f"R{number - 1}") for number in range(1, length))]
    return record("All", *names)


def doubled(levels: int) -> Any:
    """A record with two of a record with two of ... 2 ** levels in all, without a byte."""
    names = [record("R0", "null"), *(record(f"R{n}", f"R{n - 1}", f"R{n - 1}") for n in range(1, levels))]
    return record("All", *names)


def number(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def read_by(path: Path, schema: Any, payload: bytes, reader: Any = None) -> str:
    """What becomes of a record by the schema in another process: its value, or the error, which may be skipped."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    SchemaFile(path.with_name("kreplog.schemas")).register("orders-value", Schema("AVRO", text))
    with Topic.open(path, 1) as topic:
        topic.append(with_id(1, payload))

    def read() -> str:
        with Topic.open(path, read_only=True, value_codec=Avro(reader)) as topic:
            try:
                return repr(next(topic.read()).value)[:200]
            except RecordDecodeError as error:
                assert list(topic.read(on_error="skip")) == []
                return str(error)

    answer = InChild(read).result()
    assert isinstance(answer, str)
    return answer


@pytest.mark.parametrize(
    ("schema", "payload", "message"),
    [
        (LIST, b"\2" * 1_000_000 + b"\0", "nested more than 100 deep"),
        (LIST, b"\2" * MAX_NESTING + b"\0", "nested more than 100 deep"),
        (TREE, b"\2" * 1_000_000, "nested more than 100 deep"),
        ({"type": "map", "values": LIST}, number(1) + b"\0" + b"\2" * 100_000, "nested more than 100 deep"),
        (nested(101), b"", "nested more than 100 deep"),
        (nested_text(250), b"", "types are nested more than 100 deep"),
        (nested_text(350), b"", "JSON is nested more than 300 deep"),
        (nested_text(30_000), b"", "JSON is nested more than 300 deep"),
        (chain(50_000), b"", "more than 1048576"),
        (chain(5000), b"", "types are nested more than 100 deep"),
        (record("A", "A"), b"", "always contains another, without end"),
        (record("A", record("B", "int", "A")), b"\2" * 100_000, "always contains another, without end"),
        (doubled(40), b"", "more than 1000000 values without a byte"),
        (array("null"), number(2**50) + b"\0", "more than 1000009 values"),
        (array(record("E")), number(2**61), "more than 1000009 values"),
        (
            array(record("W", "boolean", *["null"] * 5000)),
            number(300) + b"\1" * 300 + b"\0",
            "more than 1000303 values",
        ),
        ({"type": "fixed", "name": "F", "size": 2**40}, b"x", "Expected 1099511627776 bytes"),
        (record("A", LIST, {"type": "fixed", "name": "F", "size": 2**40}), b"\0x", "within a value of"),
        (record("A", LIST, "bytes"), b"\0" + number(2**50), "within a value of"),
        (record("A", LIST, "string"), b"\0\3ab", "within a value of -2 bytes"),
        (record("A", LIST, "long"), b"\0" + b"\xff" * 11, "more than 10 bytes"),
    ],
)
def test_hostile_schemas_and_records(path: Path, schema: Any, payload: bytes, message: str) -> None:
    assert message in read_by(path, schema, payload)


def test_what_is_within_the_limits(path: Path) -> None:
    assert "{'next': {'next': " in read_by(path, LIST, b"\2" * (MAX_NESTING - 1) + b"\0")


@pytest.mark.parametrize("schema", [nested(101), nested(900), nested_text(30_000), chain(5000), record("A", "A")])
def test_a_schema_of_the_program_itself(schema: Any) -> None:
    def make() -> str:
        with pytest.raises(UsageError) as caught:
            Avro(schema)
        return str(caught.value)

    assert any(reason in InChild(make).result() for reason in ("nested", "without end", "no JSON"))


def test_an_item_that_could_not_be_read_again_is_not_written(path: Path) -> None:
    deepest: Any = None
    for _ in range(MAX_NESTING):
        deepest = {"next": deepest}
    too_deep: Any = deepest
    for _ in range(100_000):
        too_deep = {"next": too_deep}

    def append() -> Any:
        with Topic.open(path, 1, value_codec=Avro(LIST)) as topic:
            topic.append(deepest)
            for item in ({"next": deepest}, too_deep):
                with pytest.raises(RecordEncodeError, match="nested more than 100 deep"):
                    topic.append(item)
            return [record.value for record in topic.read()] == [deepest]

    assert InChild(append).result()


def test_references_without_end(path: Path) -> None:
    file = SchemaFile(path.with_name("kreplog.schemas"))
    for number_ in range(1, 103):
        file.register(
            "chain", Schema("AVRO", json.dumps(record(f"R{number_}", "int")), _references("chain", number_ - 1))
        )
    file.register("a", Schema("AVRO", '"A"', _references("a", 1)))
    file.register("orders-value", Schema("AVRO", '"R102"', _references("chain", 102)))
    file.register("orders-value", Schema("AVRO", '"R100"', _references("chain", 100)))
    codec = Avro(None).for_topic(str(path), "value")
    with pytest.raises(ValueError, match="refers to more than 100"):
        codec.decode(with_id(104, b"\2"))
    with pytest.raises(ValueError, match="schema 103"):  # which refers to itself
        codec.decode(with_id(103, b"\2"))
    assert codec.decode(with_id(105, b"\2")) == {"f0": 1}


def _references(subject: str, version: int) -> tuple[Reference, ...]:
    return (Reference(f"R{version}", subject, version),) if version else ()


SCHEMAS = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string", "T", ["null", "T"]]),
    lambda inner: (
        inner.map(array)
        | inner.map(lambda values: {"type": "map", "values": values})
        | st.lists(inner, max_size=3).map(lambda types: record("", *types))
    ),
    max_leaves=6,
)


def with_names(schema: Any, names: Iterator[str]) -> Any:
    if isinstance(schema, dict):
        return {key: next(names) if part == "" else with_names(part, names) for key, part in schema.items()}
    return [with_names(part, names) for part in schema] if isinstance(schema, list) else schema


@given(SCHEMAS, st.binary(max_size=60))
def test_the_walk_takes_what_fastavro_takes(schema: Any, payload: bytes) -> None:
    names = (f"R{number}" for number in count())
    parsed = Avro(record("X", TREE, with_names(schema, names)))._parsed
    assert parsed is not None and parsed.limits.is_recursive
    try:
        parsed.limits.check_data(payload)
    except ValueError:
        return
    try:
        item: Any = fastavro.schemaless_reader(io.BytesIO(payload), parsed.schema, None)
    except UnicodeDecodeError:
        return
    again = parsed.encoded(item["item"])
    parsed.limits.check_data(again)
    for end in range(len(again)):
        with pytest.raises((ValueError, EOFError)):
            parsed.decoded(again[:end], None)
