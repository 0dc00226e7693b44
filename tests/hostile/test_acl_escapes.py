"""Names, principals and hosts that look like those of an ACL: none gets its rights, nor escapes what it denies."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator

import pytest

from kreplog.core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from kreplog.core.security.authorizer import Access, AclIndex, Authorizer
from kreplog.core.security.principal import Principal

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
HOST = "10.0.0.1"


def acl(
    pattern: PatternType,
    name: str,
    permission: Permission = ALLOW,
    principal: str = "User:alice",
    host: str = "*",
    operation: Operation = Operation.READ,
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, pattern, name, principal, host, operation, permission)


def access(*acls: AclBinding, principal: str = "alice", host: str = HOST) -> Access:
    authorizer = Authorizer()
    authorizer.replace(AclIndex(acls))
    return authorizer.access(Principal(principal), host)


def reads(found: Access, name: str) -> bool:
    return found.allows(Operation.READ, ResourceType.TOPIC, name)


def lookalikes(name: str, draw: random.Random) -> Iterator[str]:
    """Other names, which a comparison that folds, trims, cuts or expands would take for it."""
    yield from (name.upper(), name.capitalize(), name.swapcase(), name[:-1], name[1:], name * 2)
    for around in (" ", "\t", "\n", "\0", ".", "/", "*", "%", "_", "\u200b", "\u00ad", "\ufeff"):
        yield from (name + around, around + name)
    yield from ("*", "", "?" * len(name), ".*", "%", "_" * len(name), f"[{name}]", f"^{name}$", f"./{name}", f"{name},")
    yield "".join(chr(ord(character) + 0xFEE0) for character in name)  # full width: NFKC makes the name of it
    yield unicodedata.normalize("NFD", name.replace("e", "\u00e9"))
    for _ in range(200):
        at = draw.randrange(len(name))
        yield name[:at] + chr(draw.randrange(32, 0x2FF)) + name[at + 1 :]


@pytest.mark.parametrize("seed", range(3))
def test_a_name_gets_the_rights_of_itself_alone(seed: int) -> None:
    draw = random.Random(seed)
    name = "orders"
    only = access(acl(LITERAL, name))
    assert reads(only, name)
    denied = access(acl(LITERAL, "*"), acl(LITERAL, name, DENY))
    assert not reads(denied, name)
    for other in lookalikes(name, draw):
        if other != name:
            assert not reads(only, other), ascii(other)
            assert reads(denied, other), ascii(other)


@pytest.mark.parametrize("seed", range(3))
def test_a_prefix_gives_rights_to_what_begins_with_it_alone(seed: int) -> None:
    draw = random.Random(seed)
    prefix = "pay-"
    given, denied = access(acl(PREFIXED, prefix)), access(acl(LITERAL, "*"), acl(PREFIXED, prefix, DENY))
    for other in (*lookalikes(prefix, draw), *lookalikes(prefix + "roll", draw)):
        assert reads(given, other) is other.startswith(prefix), ascii(other)
        assert reads(denied, other) is not other.startswith(prefix), ascii(other)


@pytest.mark.parametrize("name", ["ord*", "*rders", "order?", "order%", ".*", "orders*", "[o]rders", "**", "* "])
def test_wildcard_characters_within_a_name_are_characters(name: str) -> None:
    for pattern in (LITERAL, PREFIXED):
        assert not reads(access(acl(pattern, name)), "orders")
        assert reads(access(acl(pattern, name)), name)


def test_a_prefix_of_the_wildcard_is_a_character() -> None:
    assert not reads(access(acl(PREFIXED, "*")), "orders")
    assert reads(access(acl(PREFIXED, "*")), "*orders")


def test_a_principal_gets_the_rights_of_itself_alone() -> None:
    draw = random.Random(0)
    for other in lookalikes("alice", draw):
        if other not in ("alice", ""):
            assert not reads(access(acl(LITERAL, "orders"), principal=other), "orders"), ascii(other)
    for written in ("user:alice", "USER:alice", "Group:alice", "User: alice", "User:al*", "User:alic?"):
        assert not reads(access(acl(LITERAL, "orders", principal=written)), "orders"), written
    authorizer = Authorizer(("User:admin",))
    authorizer.replace(AclIndex(()))
    for other in lookalikes("admin", draw):
        if other not in ("admin", ""):
            assert not reads(authorizer.access(Principal(other), HOST), "orders"), ascii(other)


def test_an_address_gets_the_rights_of_itself_alone_however_it_is_written() -> None:
    given = acl(LITERAL, "orders", host=HOST)
    assert reads(access(given), "orders")
    assert reads(access(given, host=f"::ffff:{HOST}"), "orders")
    for other in ("10.0.0.10", "10.0.0", "110.0.0.1", "::10.0.0.1", "10.0.0.1 ", "010.0.0.1", "0x0a000001", "*", ""):
        assert not reads(access(given, host=other), "orders"), other
    everywhere = acl(LITERAL, "orders")
    for written in ("fe80::1", "FE80::1", "fe80:0::0:1", "FE80:0000:0000:0000:0000:0000:0000:0001"):
        denied = acl(LITERAL, "orders", DENY, host=written)
        assert not reads(access(everywhere, denied, host="fe80::1"), "orders"), written


def test_other_operations_are_not_given() -> None:
    found = access(acl(LITERAL, "orders"))
    implied = {Operation.READ, Operation.DESCRIBE}
    assert {each for each in Operation if found.allows(each, ResourceType.TOPIC, "orders")} == implied
    assert not any(
        found.allows(Operation.READ, kind, "orders") for kind in ResourceType if kind is not ResourceType.TOPIC
    )
