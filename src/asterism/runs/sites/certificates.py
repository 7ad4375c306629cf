"""Keys and certificates for rehearsals and first steps; an organisation with an authority of its own uses that.

Everything is made by the cryptography library: an authority, a server certificate signed by it, and a signing key
for each site. Private keys are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from asterism.errors import AsterismError

AUTHORITY, SERVER = "authority", "server"
Key = ec.EllipticCurvePrivateKey


def make(folder: Path, addresses: Sequence[str], sites: Sequence[str], days: int) -> list[Path]:
    """An authority, a server certificate for ``addresses``, and a key pair a site, as files in ``folder``."""
    files = [folder / f"{name}.{end}" for name in (AUTHORITY, SERVER) for end in ("key", "pem")]
    files += [folder / name for site in sites for name in (f"{site}.key", f"{site}.pub")]
    for file in files:
        if file.exists():
            raise AsterismError("there is a key or certificate already", where=str(file), fix="another --out")
    folder.mkdir(parents=True, exist_ok=True)
    authority, signer = make_authority(days)
    _write(files[0], private_bytes(signer), secret=True)
    _write(files[1], authority.public_bytes(serialization.Encoding.PEM))
    certificate, key = make_server(authority, signer, addresses, days)
    _write(files[2], private_bytes(key), secret=True)
    _write(files[3], certificate.public_bytes(serialization.Encoding.PEM))
    for site in sites:
        make_site_key(folder / f"{site}.key", folder / f"{site}.pub")
    return files


def make_authority(days: int) -> tuple[x509.Certificate, Key]:
    """A certificate that signs others, and its key."""
    key, name = _key(), _name("Asterism test authority")
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return certificate, key


def make_server(
    authority: x509.Certificate, signer: Key, addresses: Sequence[str], days: int
) -> tuple[x509.Certificate, Key]:
    """A certificate for the names and numbers by which sites dial the server, and its key."""
    key = _key()
    certificate = (
        _builder(_name("Asterism server"), authority.subject, key, days)
        .add_extension(x509.SubjectAlternativeName([_alternative(a) for a in addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return certificate, key


def make_site_key(private: Path, public: Path) -> None:
    """A site's key pair in OpenSSH files; the kind that Flower takes (P-384)."""
    key = _key()
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write(private, key.private_bytes(*encoding), secret=True)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(public, line + b"\n")


def private_bytes(key: Key) -> bytes:
    """A private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(minutes=5)  # clocks differ a little
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(**used: bool) -> x509.KeyUsage:
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: used.get(name, False) for name in every})


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write(file: Path, content: bytes, *, secret: bool = False) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
