"""Certificates and keys for a federation: an authority, the server's, and one key per client.

They suit a trial, or a few organisations that exchange keys in person. The authority's own private
key is not stored, so nothing else can be signed with it.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isonomy.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

DAYS = 365
HEADERS = ("flwr-public-key", "flwr-signature", "flwr-timestamp")  # of Flower's signed requests
_NAME = re.compile(r"[\w][\w .-]{0,63}")


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for names that cannot be file names, or that occur twice."""
    for name in names:
        if not _NAME.fullmatch(name) or name in ("ca", "server"):
            raise ConfigError(
                f"'{name}' cannot be a client's name; use letters, digits, '-' and '_', and not "
                "'ca' or 'server'."
            )
    if len(set(names)) < len(names):
        raise ConfigError("two clients have the same name; give every client a different one.")


def make(folder: Path, names: Sequence[str], hosts: Sequence[str] = ()) -> list[Path]:
    """Write ca.crt, server.crt, server.key and, for each client, NAME and NAME.pub."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    check_names(names)
    if (folder / "ca.crt").exists():
        raise ConfigError(f"'{folder}' already holds keys; choose another folder with --to.")
    folder.mkdir(parents=True, exist_ok=True)
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    end = begin + dt.timedelta(days=DAYS)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(text: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(text))
            .issuer_name(named("isonomy federation"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )

    def private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
        plain = serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, form, plain)

    written = []

    def write(name: str, content: bytes, secret: bool) -> None:
        path = folder / name
        mode = 0o600 if secret else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        written.append(path)

    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    root = certificate("isonomy federation", authority)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
    )
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = root.add_extension(usage, critical=True)
    own = certificate("isonomy server", server)
    alternatives = x509.SubjectAlternativeName([_alternative(h) for h in _hosts(hosts)])
    own = own.add_extension(alternatives, critical=False)
    own = own.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    own = own.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
    )
    pem = serialization.Encoding.PEM
    write("ca.crt", root.sign(authority, hashes.SHA384()).public_bytes(pem), False)
    write("server.crt", own.sign(authority, hashes.SHA384()).public_bytes(pem), False)
    write("server.key", private(server, serialization.PrivateFormat.PKCS8), True)
    for name in names:
        key = ec.generate_private_key(ec.SECP384R1())
        write(name, private(key, serialization.PrivateFormat.OpenSSH), True)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write(f"{name}.pub", public + b"\n", False)
    return written


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """The public key in a file, as `ssh-keygen -t ecdsa` writes it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(
            f"'{path}' is not a public key of the kind ecdsa; make one with `isonomy keys`, or "
            "with `ssh-keygen -t ecdsa -b 384`."
        )
    return key


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file, as `isonomy keys` or `ssh-keygen -t ecdsa` writes it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"'{path}' is not a private key of the kind ecdsa without a password; give the key "
            "that belongs to this federation."
        )
    return key


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half of a key, as Flower sends it."""
    from cryptography.hazmat.primitives import serialization

    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def headers_of(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """The headers by which a request shows a private key, as Flower's requests do."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    stamp = dt.datetime.now(dt.UTC).isoformat()
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    values = b64encode(public_bytes(key)).decode(), b64encode(signature).decode(), stamp
    return dict(zip(HEADERS, values, strict=True))


def signed_headers(path: Path) -> dict[str, str]:
    """As `headers_of`, of the private key in a file."""
    return headers_of(private_key(path))


def check_certificate(path: Path, host: str) -> None:
    """Raise ConfigError if participants would refuse a server's certificate."""
    from cryptography import x509

    own = x509.load_pem_x509_certificate(path.read_bytes())
    now = dt.datetime.now(dt.UTC)
    begin, end = own.not_valid_before_utc, own.not_valid_after_utc
    if not begin <= now <= end:
        raise ConfigError(
            f"'{path}' is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and now "
            f"it is {now:%Y-%m-%d %H:%M}; make new keys with `isonomy keys`, or correct the clock."
        )
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if host not in ("0.0.0.0", "::") and _alternative(host) not in names:
        known = ", ".join(str(name.value) for name in names)
        raise ConfigError(
            f"'{path}' is for {known}, and not for {host}, so participants would refuse it; make "
            f"keys with `isonomy keys ... --host {host}`, or serve at --address 0.0.0.0:PORT."
        )


def _hosts(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
