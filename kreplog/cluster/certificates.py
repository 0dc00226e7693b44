"""A private CA and its certificates, for clusters to try TLS with. Imported with the extra `tls` alone.

Keys are of the curve P-256. Whoever reads a file of a private key can be what its certificate says.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=825)
"""How long certificates are valid; some platforms refuse longer ones."""

_CLOCK_SKEW = timedelta(hours=1)
"""How long before now they begin to be valid, for hosts whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its private key, and the certificate that others trust."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str) -> Authority:
        """A new CA, which signs its own certificate. name: its common name."""
        return cls._signed(name, ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def _signed(cls, name: str, key: ec.EllipticCurvePrivateKey) -> Authority:
        builder = _builder(name, name, key, VALIDITY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    def renewed(self) -> Authority:
        """The same key and name with a certificate that is valid from now: certificates that the one has signed are
        trusted by the other, too."""
        return self._signed(self.name, self.key)

    @classmethod
    def load(cls, key_pem: bytes, pem: bytes) -> Authority:
        """The CA of `pem` and its key, as `create` made them. Raises ValueError for other files."""
        key = load_pem_private_key(key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"the CA's key is no key of a curve, but a {type(key).__name__}")
        return cls(key, x509.load_pem_x509_certificate(pem))

    @property
    def name(self) -> str:
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    @property
    def expires(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def pem(self) -> bytes:
        """The certificate, for truststores."""
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        """The private key, not encrypted."""
        return _key_pem(self.key)

    def issue(self, name: str, hosts: Sequence[str] = (), validity: timedelta = VALIDITY) -> bytes:
        """PEM of a new private key and its certificate, for a client, and with `hosts` for their server too.

        name: the subject's common name. hosts: names and IP addresses. validity: from now; a negative one is over."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(name, self.name, key, validity)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
        return _key_pem(key) + builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey, validity: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begins = min(now - _CLOCK_SKEW, now + validity - _CLOCK_SKEW)
    builder = x509.CertificateBuilder(_name(issuer), _name(name), key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(begins).not_valid_after(now + validity)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
