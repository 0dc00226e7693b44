"""Avro and Protobuf: in a topic, beside Confluent's serializers, and what they refuse."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from kreplog import Topic
from kreplog.errors import (
    ArgumentTypeError,
    LogClosedError,
    RecordDecodeError,
    RecordEncodeError,
    SchemaRegistryError,
    StorageError,
    UsageError,
)
from kreplog.schemas import Avro, HttpRegistry, Protobuf, Schema, SchemaFile
from kreplog.schemas.wire_format import with_id
from tests.schemas.messages import Line, Money, Note, Order
from tests.schemas.reader import as_who_may_only_read
from tests.schemas.registry_server import SchemaRegistryServer, registry_server

NEEDS = "needs confluent-kafka with its schema registry, of the extra `dev`"
confluent_avro = pytest.importorskip("confluent_kafka.schema_registry.avro", reason=NEEDS)
confluent_protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf", reason=NEEDS)
confluent_registry = pytest.importorskip("confluent_kafka.schema_registry", reason=NEEDS)
serialization = pytest.importorskip("confluent_kafka.serialization", reason=NEEDS)

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with registry_server() as server:
        yield server


def value_of(topic: Topic) -> Any:
    return [record.value for record in topic.read()]


def test_avro_with_the_schemas_beside_the_topic(path: Path) -> None:
    with Topic.open(path, 1, key_codec=Avro("string"), value_codec=Avro(ORDER)) as topic:
        topic.append({"id": 1, "item": "pen"}, "alice")
        topic.append_many([{"id": 2, "item": "ink"}, None], ["bob", "alice"])
    with Topic.open(path, key_codec=Avro('"string"'), value_codec=Avro(LATER)) as topic:
        topic.append({"id": 3, "item": "cup", "note": "blue"}, "bob")
        assert [(record.key, record.value) for record in topic.read()] == [
            ("alice", {"id": 1, "item": "pen", "note": None}),
            ("bob", {"id": 2, "item": "ink", "note": None}),
            ("alice", None),
            ("bob", {"id": 3, "item": "cup", "note": "blue"}),
        ]
    with Topic.open(path, value_codec=Avro(ORDER), read_only=True) as topic:
        assert value_of(topic)[3] == {"id": 3, "item": "cup"}
    with Topic.open(path, value_codec=Avro(None)) as topic:
        assert value_of(topic)[0] == {"id": 1, "item": "pen"}
        with pytest.raises(RecordEncodeError, match="no schema of its own"):
            topic.append({"id": 4, "item": "mat"})
    file = SchemaFile(path.with_name("kreplog.schemas"))
    assert [file.version("orders-value", number) is None for number in (1, 2, 3)] == [False, False, True]
    assert file.schema(1) == Schema("AVRO", '"string"') or file.schema(2) == Schema("AVRO", '"string"')


def test_protobuf_with_the_schemas_beside_the_topic(path: Path) -> None:
    order = Order(id=1, price=Money(cents=250))
    with Topic.open(path, 1, value_codec=Protobuf(Order)) as topic:
        topic.append(order)
        topic.append(None)
        with pytest.raises(RecordEncodeError, match=r"no shop\.Order"):
            topic.append(Note(text="x"))
    with Topic.open(path, value_codec=Protobuf(Order), read_only=True) as topic:
        assert value_of(topic) == [order, None]
    other = r"offset 0.*it is a shop\.Order, not a shop\.Note"
    with Topic.open(path, value_codec=Protobuf(Note)) as topic, pytest.raises(RecordDecodeError, match=other):
        value_of(topic)
    file = SchemaFile(path.with_name("kreplog.schemas"))
    schema = file.version("orders-value", 1)
    assert schema is not None and [tuple(reference) for reference in schema.references] == [
        ("money.proto", "money.proto", 1)
    ]


@pytest.mark.parametrize("message", [Order(id=5), Note(text="x"), Line(item="pen"), Money(cents=1)])
def test_protobuf_is_that_of_confluent(path: Path, server: SchemaRegistryServer, message: Any) -> None:
    client = confluent_registry.SchemaRegistryClient({"url": server.url})
    context = serialization.SerializationContext("orders", serialization.MessageField.VALUE)
    theirs = confluent_protobuf.ProtobufSerializer(type(message), client)(message, context)
    ours = Protobuf(type(message), server.url).for_topic(str(path), "value")
    assert ours.encoded(message, "value") == theirs
    assert ours.decode(theirs) == message
    assert confluent_protobuf.ProtobufDeserializer(type(message))(ours.encode(message), context) == message


def test_avro_is_that_of_confluent(path: Path, server: SchemaRegistryServer) -> None:
    client = confluent_registry.SchemaRegistryClient({"url": server.url})
    context = serialization.SerializationContext("orders", serialization.MessageField.VALUE)
    item = {"id": -5, "item": "ü"}
    ours = Avro(ORDER, server.url).for_topic(str(path), "value")
    data = ours.encode(item)
    text = client.get_schema(1).schema_str
    assert text is not None
    theirs = confluent_avro.AvroSerializer(client, text)(item, context)
    assert theirs == data
    assert confluent_avro.AvroDeserializer(client)(data, context) == ours.decode(theirs) == item
    assert server.subjects == {"orders-value": [1]}


def test_avro_with_named_types_of_other_subjects(path: Path, server: SchemaRegistryServer) -> None:
    money = '{"type":"record","name":"Money","namespace":"shop","fields":[{"name":"cents","type":"long"}]}'
    order = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"price","type":"shop.Money"}]}'
    server.register("money", {"schemaType": "AVRO", "schema": money, "references": []})
    references = [{"name": "shop.Money", "subject": "money", "version": 1}]
    server.register("orders-value", {"schemaType": "AVRO", "schema": order, "references": references})
    codec = Avro(None, server.url).for_topic(str(path), "value")
    assert codec.decode(with_id(2, b"\x08")) == {"price": {"cents": 4}}
    server.subjects.clear()
    codec = Avro(None, server.url).for_topic(str(path), "value")
    with pytest.raises(SchemaRegistryError, match="no version 1 of money"):
        codec.decode(with_id(2, b"\x08"))


def test_avro_with_several_types_in_a_topic(path: Path, server: SchemaRegistryServer) -> None:
    """As Confluent has it: a union of schemas of other subjects, which share a third."""
    money = '{"type":"record","name":"Money","namespace":"shop","fields":[{"name":"cents","type":"long"}]}'
    server.register("money", {"schemaType": "AVRO", "schema": money, "references": []})
    references = [{"name": "shop.Money", "subject": "money", "version": 1}]
    for name in ("Order", "Refund"):
        fields = [{"name": "of", "type": "shop.Money"}]
        schema = json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": fields})
        server.register(name, {"schemaType": "AVRO", "schema": schema, "references": references})
    references = [{"name": f"shop.{name}", "subject": name, "version": 1} for name in ("Order", "Refund")]
    union = {"schemaType": "AVRO", "schema": '["shop.Order","shop.Refund"]', "references": references}
    number = server.register("orders-value", union)["id"]
    codec = Avro(None, server.url).for_topic(str(path), "value")
    assert codec.decode(with_id(number, b"\2\x08")) == {"of": {"cents": 4}}


def test_the_same_schema_has_one_id(path: Path) -> None:
    """Keys of another id would be in other partitions."""
    parsed = fastavro.parse_schema({"type": "array", "items": {"type": "string"}, "doc": "x"})
    spellings: list[Any] = [{"items": "string", "type": "array", "doc": "x"}, parsed, json.dumps(parsed)]
    data = {Avro(spelling).for_topic(str(path), "key").encode(["a"]) for spelling in spellings}
    assert len(data) == 1
    names: list[Any] = ["string", '"string"', {"type": "string"}]
    assert len({Avro(name).for_topic(str(path), "key").encode("a") for name in names}) == 1
    assert SchemaFile(path.with_name("kreplog.schemas")).version("orders-key", 3) is None


def test_equal_messages_have_equal_bytes(path: Path) -> None:
    codec = Protobuf(struct_pb2.Struct).for_topic(str(path), "key")
    items = [(f"name {number}", number) for number in range(20)]
    assert codec.encode(struct_pb2.Struct(fields=_values(items))) == codec.encode(
        struct_pb2.Struct(fields=_values(items[::-1]))
    )


def _values(items: list[tuple[str, int]]) -> dict[str, Any]:
    return {name: struct_pb2.Value(number_value=number) for name, number in items}


def test_a_dead_letter_has_the_schema_of_its_record(path: Path) -> None:
    other = {**ORDER, "name": "Other"}
    with Topic.open(path.with_name("orders.dead"), 1, value_codec=Avro(other)) as dead:
        dead.append({"id": 9, "item": "of its own"})
    with (
        Topic.open(path, 1, value_codec=Avro(ORDER)) as topic,
        topic.work_queue("q", dead_letter="orders.dead", delivery_count_limit=1) as queue,
    ):
        topic.append({"id": 1, "item": "pen"})
        queue.nack(queue.take()[0])
    with Topic.open(path.with_name("orders.dead"), value_codec=Avro(None)) as dead:
        assert value_of(dead)[1] == {"id": 1, "item": "pen"}


def test_a_schema_file_that_is_missing_is_no_fault_of_a_record(path: Path) -> None:
    with Topic.open(path, 1, value_codec=Avro(ORDER)) as topic:
        topic.append({"id": 1, "item": "pen"})
    path.with_name("kreplog.schemas").unlink()
    with Topic.open(path, value_codec=Avro(ORDER)) as topic, pytest.raises(StorageError, match=r"kreplog\.schemas"):
        list(topic.read(on_error="skip"))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_follow_goes_on_once_the_registry_is_back(path: Path, server: SchemaRegistryServer, at_once: bool) -> None:
    with Topic.open(path, 1, value_codec=Avro(ORDER, server.url)) as topic:
        topic.append_many([{"id": number, "item": "pen"} for number in range(4)])
    with Topic.open(path, value_codec=Avro(ORDER, server.url)) as topic:
        follow: Any = topic.follow_batches(timeout=0.01) if at_once else topic.follow(timeout=0.01)
        server.broken = 503, b""
        for _ in range(3):
            with pytest.raises(SchemaRegistryError):
                next(follow)
        server.broken = None
        found = [record for batch in follow for record in batch] if at_once else list(follow)
        assert [record.value["id"] for record in found] == [0, 1, 2, 3]


def test_a_schema_is_registered_and_read_once(path: Path, server: SchemaRegistryServer) -> None:
    server.versions_in_answers = False
    with Topic.open(path, 1, value_codec=Avro(ORDER, server.url, subject="o/v")) as topic:
        topic.append_many([{"id": number, "item": "pen"} for number in range(3)])
        assert server.requests == ["POST /subjects/o%2Fv/versions", "POST /subjects/o%2Fv"]
        assert len(value_of(topic)) == 3 and len(value_of(topic)) == 3
    assert server.requests[2:] == ["GET /schemas/ids/1"]


def test_a_registry_that_fails_is_no_fault_of_a_record(path: Path, server: SchemaRegistryServer) -> None:
    """on_error would skip records that can be read once it is back."""
    with Topic.open(path, 1, value_codec=Avro(ORDER, server.url)) as topic:
        topic.append({"id": 1, "item": "pen"})
    server.broken = 503, b"no backend"
    with Topic.open(path, value_codec=Avro(LATER, server.url)) as topic:
        with pytest.raises(SchemaRegistryError, match="answers 503"):
            list(topic.read(on_error="skip"))
        with pytest.raises(SchemaRegistryError, match="answers 503"):
            topic.append({"id": 1, "item": "pen"})
        server.broken = 409, b'{"error_code": 409, "message": "incompatible"}'
        with pytest.raises(SchemaRegistryError, match="incompatible"):
            topic.append({"id": 1, "item": "pen"})
        server.broken = None
        assert len(list(topic.read(on_error="skip"))) == 1
        assert topic.append({"id": 2, "item": "pen"}).offset == 1


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"[]", b"<html>", b'{"id": "x"}', b"\xff", b'{"schema": 5}', b'{"references": 1}', b"[" * 10**5),
        b'{"id": -1, "version": 1, "schema": 5}',
        b'{"id": 4294967296, "version": 1, "schema": 5}',
        b'{"id": 1, "schema": "", "references": [{"name": "", "subject": "", "version": 1e999}]}',
    ],
)
def test_what_is_no_registry(server: SchemaRegistryServer, answer: bytes) -> None:
    server.broken = 200, answer
    registry = HttpRegistry(server.url)
    with pytest.raises(SchemaRegistryError, match=r"127\.0\.0\.1"):
        registry.schema(1)
    with pytest.raises(SchemaRegistryError, match=r"127\.0\.0\.1"):
        registry.register("s", Schema("AVRO", '"long"'))


@pytest.mark.parametrize("answer", [b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"])
def test_a_registry_that_hangs_up(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def respond() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(SchemaRegistryError, match="try again"):
            HttpRegistry(url).schema(1)
        thread.join()


def test_a_registry_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SchemaRegistryError, match="timed out"):
            HttpRegistry(url, timeout=0.05).schema(1)


def test_a_path_may_end_in_a_slash(path: Path) -> None:
    with Topic.open(f"{path}/", 1, value_codec=Avro(ORDER)) as topic:
        topic.append({"id": 1, "item": "pen"})
    assert SchemaFile(path.with_name("kreplog.schemas")).version("orders-value", 1) is not None


def test_another_host_is_not_sent_the_password(server: SchemaRegistryServer) -> None:
    with registry_server() as other:
        server.redirected_to = other.url
        assert HttpRegistry(server.url.replace("//", "//user:pass@")).schema(1) is None
        assert (server.authorization, other.authorization) == ("Basic dXNlcjpwYXNz", None)
        assert other.requests == ["GET /schemas/ids/1"]


def test_a_registry_that_is_not_there() -> None:
    with registry_server() as server:
        url = server.url
    with pytest.raises(SchemaRegistryError, match="try again"):
        HttpRegistry(url).schema(1)


def test_a_user_is_sent_and_not_shown(server: SchemaRegistryServer) -> None:
    registry = HttpRegistry(server.url.replace("//", "//a%40b:pass@"))
    assert registry.schema(1) is None
    assert server.authorization == "Basic YUBiOnBhc3M="
    assert "pass" not in repr(registry)


@pytest.mark.parametrize(
    "url", ["localhost:8081", "ftp://localhost", "http://", "", "http://host:port", "http://host:99999", "http://[x"]
)
def test_what_is_no_url(path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="schema registry"):
        Topic.open(path, 1, value_codec=Avro("long", url))
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("item", [{"id": 1}, {"id": "1", "item": ""}, {"id": 1, "item": "", "more": 2}, [], 2**70])
def test_what_a_schema_does_not_take_is_not_written(path: Path, item: Any) -> None:
    with Topic.open(path, 1, value_codec=Avro(ORDER)) as topic:
        with pytest.raises(RecordEncodeError, match="Avro"):
            topic.append(item)
        assert topic.offsets()[0].stop == 0
    assert not path.with_name("kreplog.schemas").exists()


@pytest.mark.parametrize(
    "data", [b"", b"{}", with_id(9, b"\2\2x"), with_id(1, b"\2"), with_id(1, b"\2\2xy"), with_id(2, b"")]
)
def test_what_does_not_decode(path: Path, data: bytes) -> None:
    file = SchemaFile(path.with_name("kreplog.schemas"))
    file.register("orders-value", Schema("AVRO", json.dumps(ORDER, sort_keys=True)))
    file.register("orders-value", Schema("PROTOBUF", "a"))
    with Topic.open(path, 1) as topic:
        topic.append(data)
    with Topic.open(path, value_codec=Avro(ORDER)) as topic:
        topic.append({"id": 1, "item": "x"})
        with pytest.raises(RecordDecodeError, match="orders-0: the value of the record at offset 0"):
            value_of(topic)
        assert len(list(topic.read(on_error="skip"))) == 1


def test_another_registry_is_no_fault_of_a_record(path: Path, server: SchemaRegistryServer) -> None:
    """on_error would skip all of the topic, where the URL is wrong."""
    with registry_server() as other:
        HttpRegistry(other.url).register("customers-value", Schema("AVRO", '"long"'))
        with Topic.open(path, 1, value_codec=Avro(ORDER, other.url, subject="customers-value")) as topic:
            topic.append({"id": 1, "item": "pen"})  # schema 2
            data = next(iter(topic.log(0).read())).value
    context = serialization.SerializationContext("orders", serialization.MessageField.VALUE)
    with pytest.raises(
        confluent_registry.error.SchemaRegistryError
    ):  # nor does Confluent's client say it of the record
        confluent_avro.AvroDeserializer(confluent_registry.SchemaRegistryClient({"url": server.url}))(data, context)
    HttpRegistry(server.url).register("other-value", Schema("AVRO", '"long"'))
    for codec in (Avro(ORDER, server.url), Protobuf(Order, server.url)):
        with (
            Topic.open(path, read_only=True, value_codec=codec) as topic,
            pytest.raises(SchemaRegistryError, match="id 2, nor the subject orders-value: give the registry"),
        ):
            list(topic.read(on_error="skip"))


def test_a_number_that_the_right_registry_does_not_have_is_a_fault_of_the_record(
    path: Path, server: SchemaRegistryServer
) -> None:
    with Topic.open(path, 1) as topic:
        topic.append(with_id(77, b"garbage"))
    with Topic.open(path, value_codec=Avro(ORDER, server.url)) as topic:
        topic.append({"id": 1, "item": "pen"})
        with pytest.raises(RecordDecodeError, match="no Avro schema of id 77"):
            list(topic.read())
        assert [record.value["id"] for record in topic.read(on_error="skip")] == [1]
    lookups = server.requests.count("GET /subjects/orders-value/versions/latest")
    assert lookups == 1, "once it is known that the registry is the right one"
    with (
        Topic.open(path, read_only=True, value_codec=Avro(ORDER, server.url, subject="o")) as topic,
        pytest.raises(SchemaRegistryError, match="nor the subject o"),
    ):
        list(topic.read(on_error="skip"))


@pytest.mark.parametrize("registry", ["file", "server"])
@pytest.mark.parametrize("kind", ["Avro", "Protobuf"])
def test_to_look_a_key_up_registers_nothing(path: Path, server: SchemaRegistryServer, kind: str, registry: str) -> None:
    where = server.url if registry == "server" else None
    codec: Any = Avro("string", where) if kind == "Avro" else Protobuf(Order, where)
    keys: Any = ["a", "b"] if kind == "Avro" else [Order(id=1), Order(id=2)]
    with Topic.open(path, 1, key_codec=codec) as topic, topic.table() as table:
        assert table.get(keys[0]) is None and keys[0] not in table
        with pytest.raises(KeyError):
            table[keys[0]]
        with pytest.raises(RecordEncodeError, match="key"):
            table.get(5)
        assert not path.with_name("kreplog.schemas").exists() and not server.schemas
        topic.append(b"x", keys[0])
        table.refresh()
        assert (table[keys[0]], table.get(keys[1])) == (b"x", None)

    def read() -> Any:
        with Topic.open(path, key_codec=codec, read_only=True) as topic, topic.table() as table:
            return table.get(keys[0]), table.get(keys[1])

    assert as_who_may_only_read(path, read) == (b"x", None)


@pytest.mark.parametrize("call", ["append", "append_many"])
def test_an_append_that_is_refused_registers_nothing(path: Path, call: str) -> None:
    Topic.open(path, 1).close()
    codec = Avro(ORDER)
    item = {"id": 1, "item": "pen"}

    def append(topic: Topic) -> None:
        topic.append(item) if call == "append" else topic.append_many([item])

    with Topic.open(path, read_only=True, value_codec=codec) as reader, pytest.raises(UsageError, match="read-only"):
        append(reader)
    topic = Topic.open(path, value_codec=codec)
    topic.close()
    with pytest.raises(LogClosedError):
        append(topic)
    assert not path.with_name("kreplog.schemas").exists()


@given(st.binary(max_size=40))
def test_no_payload_does_more_than_not_decode(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzzed") / "orders"
    for codec, item in ((Avro(ORDER), {"id": 1, "item": ""}), (Protobuf(Order), Order())):
        bound = codec.for_topic(f"{path}-{type(codec).__name__}", "value")
        bound.encoded(item, "value")
        try:
            again = bound.decode(with_id(2 if isinstance(codec, Protobuf) else 1, payload))
        except Exception as error:
            assert not isinstance(error, SchemaRegistryError)
        else:
            assert bound.decode(bytes(bound.encode(again))) == again


def test_wrong_arguments(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        Avro({"type": "record"})
    with pytest.raises(UsageError, match="no JSON"):
        Avro("{")
    with pytest.raises(ArgumentTypeError, match="protoc"):
        Protobuf(int)
    with pytest.raises(ArgumentTypeError, match="registry is a URL"):
        Topic.open(path, 1, value_codec=Avro("long", 5))  # type: ignore[arg-type]  # on purpose
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    reader = partial(Topic.open, path / "read", 1, value_codec=Avro(None))
    for codec in (lambda: Avro("long"), lambda: Protobuf(Order), reader):
        with pytest.raises(UsageError, match=r"kreplog\[schemas\]"):
            codec()


def test_a_text_of_protobuf_is_taken_for_the_message(path: Path) -> None:
    """As Java programs register it."""
    file = SchemaFile(path.with_name("kreplog.schemas"))
    file.register("orders-value", Schema("PROTOBUF", 'syntax = "proto3"; message Order { int64 id = 1; }'))
    codec = Protobuf(Order).for_topic(str(path), "value")
    assert codec.decode(with_id(1, b"\0\x08\x05")) == Order(id=5)


def test_fields_that_a_message_does_not_know_come_back(path: Path) -> None:
    codec = Protobuf(Money).for_topic(str(path), "value")
    data = codec.encode(Money(cents=1)) + b"\x92\x03\x03new"
    assert codec.encode(codec.decode(data)) == data
