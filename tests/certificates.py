"""A certificate authority of a test, with certificates of a broker on the loopback interface and of a client."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

_Made = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files."""

    ca: Path
    """The authority's certificate."""
    broker: Path
    """Private key and certificate of the broker, in one file, as Kafka's PEM key store."""
    client: Path
    """Certificate of the client."""
    client_key: Path
    """Its private key, encrypted."""
    client_key_password: str
    """The password of that key."""


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, and certificates by it."""
    password = "of-the-test-key"
    authority = _made("authority of a test", None)
    broker, broker_key = _made("broker", authority)
    client, client_key = _made("client", authority)
    made = Certificates(
        folder / "ca.pem", folder / "broker.pem", folder / "client.pem", folder / "client.key", password
    )
    made.ca.write_bytes(authority[0].public_bytes(Encoding.PEM))
    made.broker.write_bytes(_pem(broker_key, NoEncryption()) + broker.public_bytes(Encoding.PEM))
    made.client.write_bytes(client.public_bytes(Encoding.PEM))
    made.client_key.write_bytes(_pem(client_key, BestAvailableEncryption(password.encode())))
    return made


def _pem(key: ec.EllipticCurvePrivateKey, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _made(name: str, authority: _Made | None) -> _Made:
    """A certificate and its key, by ``authority``; ``None``: an authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if authority is None else (authority[0].subject, authority[1])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if authority is not None:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, SHA256()), key
