"""Distinguished names as texts of RFC 2253, and ssl.principal.mapping.rules."""

from __future__ import annotations

import pytest

from kreplog.core.security.distinguished_name import distinguished_name
from kreplog.core.security.principal_mapping import PrincipalMapping
from kreplog.errors import UsageError

ALICE = "CN=Alice,OU=ServiceUsers,O=Example,L=Berlin,ST=BE,C=DE"


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ([[("countryName", "DE")], [("organizationName", "Example")], [("commonName", "a")]], "CN=a,O=Example,C=DE"),
        ([[("commonName", "a"), ("userId", "7")]], "CN=a+UID=7"),
        ([[("commonName", 'a,b+c"d\\e<f>g;h=i')]], 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h=i'),
        ([[("commonName", " a ")]], "CN=\\ a\\ "),
        ([[("commonName", " ")]], "CN=\\ "),
        ([[("commonName", "#a#")]], "CN=\\#a#"),
        ([[("commonName", "a\0b")]], "CN=a\\00b"),
        ([[("commonName", "Zoë")]], "CN=Zoë"),
        ([[("emailAddress", "a@b.c")]], "1.2.840.113549.1.9.1=#16056140622e63"),
        ([[("emailAddress", "a" * 200)]], f"1.2.840.113549.1.9.1=#1681c8{'61' * 200}"),
        ([[("serialNumber", "7")]], "2.5.4.5=#130137"),
        ([[("1.2.3.4", "x")]], "1.2.3.4=x"),
        ([[("domainComponent", "com")], [("domainComponent", "example")]], "DC=example,DC=com"),
        ([], ""),
    ],
)
def test_names_are_those_of_java(subject: list[list[tuple[str, str]]], expected: str) -> None:
    assert distinguished_name(subject) == expected


def test_a_value_is_never_taken_for_another_attribute() -> None:
    """CN="x,O=Example" is not the name of somebody of Example."""
    forged = distinguished_name([[("commonName", "admin,O=Example")]])
    assert forged == "CN=admin\\,O=Example"
    assert forged != distinguished_name([[("organizationName", "Example")], [("commonName", "admin")]])


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", ALICE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/U , DEFAULT", "ALICE@SERVICEUSERS"),
        ("RULE:^cn=(.*?),.*$/$1/,RULE:^.*?CN=([a-zA-Z]+),.*$/$1/L", "alice"),
        ("RULE:CN=(.*?),.*/x$7y\\/z\\$1/", "x$7y/z$1"),
        ("RULE:.*\\/.*/slash/,\n RULE:.*/$0/L,DEFAULT", ALICE.lower()),
        ("RULE:CN=Bob,.*/bob/", None),
        ("RULE:CN=Alice/part/", None),
        ("RULE:.*//", ""),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_makes_the_principal(rules: str, expected: str | None) -> None:
    assert PrincipalMapping(rules).name_of(ALICE) == expected


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("RULE:a", "too few slashes"),
        ("RULE:a/b", "too few slashes"),
        ("RULE:a\\/b/c", "too few slashes"),
        ("RULE:a/b/x", "stands behind a rule"),
        ("RULE:a/b/ DEFAULT", "stands behind a rule"),
        ("DEFAULTS", "stands behind a rule"),
        ("alice", "is no rule"),
        ("RULE:(a/b/", "no regular expression"),
        ("RULE:(?=a)a/b/", "no regular expression of RE2, which has no lookaround"),
    ],
)
def test_other_texts_are_refused(rules: str, reason: str) -> None:
    with pytest.raises(UsageError, match=r"ssl\.principal\.mapping\.rules") as error:
        PrincipalMapping(rules)
    assert reason in str(error.value)
