"""Distinguished names as texts of RFC 2253, as Java's X500Principal and so Kafka's principals have them."""

from __future__ import annotations

from collections.abc import Sequence

Subject = Sequence[Sequence[tuple[str, str]]]
"""A name: its RDNs in the certificate's order, each of pairs (attribute, value); attributes by OpenSSL's long names."""

_KEYWORDS = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 2253, section 2.3."""

_ENCODED = {"emailAddress": ("1.2.840.113549.1.9.1", 0x16), "serialNumber": ("2.5.4.5", 0x13)}
"""Attributes that have no keyword: the OID and the ASN.1 tag of the value, which is written in hexadecimal."""

_SPECIAL = ',+"\\<>;'


def distinguished_name(subject: Subject) -> str:
    """The text of a name, such as "CN=alice,OU=ops,O=Example": the last RDN first, special characters escaped.

    Attributes that neither RFC 2253 has a keyword of nor this module an OID keep OpenSSL's name."""
    return ",".join("+".join(_pair(attribute, value) for attribute, value in rdn) for rdn in reversed(subject))


def _pair(attribute: str, value: str) -> str:
    if attribute in _ENCODED:
        oid, tag = _ENCODED[attribute]
        return f"{oid}=#{_der(tag, value.encode()).hex()}"
    return f"{_KEYWORDS.get(attribute, attribute)}={_escaped(value)}"


def _der(tag: int, content: bytes) -> bytes:
    """DER of a primitive value."""
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _escaped(value: str) -> str:
    text = "".join(f"\\{character}" if character in _SPECIAL else character for character in value)
    text = text.replace("\0", "\\00")
    if value[:1] in ("#", " "):
        text = "\\" + text
    if len(value) > 1 and value[-1] == " ":
        text = text[:-1] + "\\ "
    return text
