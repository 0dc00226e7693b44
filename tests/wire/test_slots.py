"""Dataclasses made and read where their fields lie: the same objects as their own __init__ makes, or an error."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import pytest

from kreplog._native.wire import Slots, topic_id_bytes, topic_id_of
from kreplog.core.messages import FetchedPartition
from kreplog.errors import ArgumentTypeError, InvariantError, UsageError
from kreplog.types import EpochEndOffset


def test_what_is_made_is_what_init_makes() -> None:
    make = Slots(EpochEndOffset, "leader_epoch", "end_offset").make
    made = make(7, 3)
    assert made == EpochEndOffset(7, 3)
    assert hash(made) == hash(EpochEndOffset(7, 3))
    assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    assert repr(made) == "EpochEndOffset(leader_epoch=7, end_offset=3)"
    with pytest.raises(FrozenInstanceError):
        made.end_offset = 4  # type: ignore[misc]  # it is frozen: that is what is tried
    with pytest.raises(ArgumentTypeError, match="2 fields, not 1"):
        make(7)


def test_what_is_made_is_freed_with_what_it_holds() -> None:
    class Held:
        pass

    names = [field.name for field in fields(FetchedPartition)]
    make = Slots(FetchedPartition, *names).make
    held = Held()
    gone = weakref.ref(held)
    made = make(*(held if name == "records" else None for name in names))
    assert gc.is_tracked(made)
    del held
    assert gone() is not None
    del made
    assert gone() is None


@dataclass(frozen=True)
class Unslotted:
    field: int


@dataclass(frozen=True, slots=True)
class Slotted:
    first: int
    second: int


@pytest.mark.parametrize(
    ("cls", "names"),
    [(Unslotted, ["field"]), (Slotted, ["first"]), (Slotted, ["second", "first"]), (Slotted, ["first", "third"])],
)
def test_a_class_of_another_form_is_refused(cls: type[Any], names: list[str]) -> None:
    """A message that gains a field must gain it in the codec, too."""
    with pytest.raises(InvariantError):
        Slots(cls, *names)


def test_topic_ids_are_kafkas_base64() -> None:
    raw = bytes(range(16))
    assert topic_id_of(raw) == "AAECAwQFBgcICQoLDA0ODw"
    assert topic_id_bytes("AAECAwQFBgcICQoLDA0ODw") == raw
    assert topic_id_of(bytes(16)) == ""
    assert topic_id_bytes("") == bytes(16)
    for wrong in ("short", "AAECAwQFBgcICQoLDA0ODxAA", "ü" * 22, "A"):
        with pytest.raises(UsageError, match="is no topic id"):
            topic_id_bytes(wrong)
