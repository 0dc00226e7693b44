"""Protobuf messages for the tests, made of descriptors, so that no compiler is needed.

// money.proto                              // orders.proto, imports money.proto
message Money { int64 cents = 1; }          message Note { string text = 1; }
                                            message Order { int64 id = 1; Money price = 2;
                                                            message Line { string item = 1; } }
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"int64": 3, "string": 9, "message": 11}


def _message(name: str, **fields: str) -> descriptor_pb2.DescriptorProto:
    message = descriptor_pb2.DescriptorProto(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        added = message.field.add(name=field, number=number, label=1, type=_TYPES.get(kind, 11))
        if kind not in _TYPES:
            added.type_name = kind
    return message


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="money.proto", package="shop", syntax="proto3", message_type=[_message("Money", cents="int64")]
        )
    )
    order = _message("Order", id="int64", price=".shop.Money")
    order.nested_type.append(_message("Line", item="string"))
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="orders.proto",
            package="shop",
            syntax="proto3",
            dependency=["money.proto"],
            message_type=[_message("Note", text="string"), order],
        )
    )
    return pool


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"shop.{name}"))


_POOL = _pool()
Money = _class("Money")
Note = _class("Note")
Order = _class("Order")
Line = _class("Order.Line")
