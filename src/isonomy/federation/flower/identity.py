"""Who signed which keys: participants sign what they advertise, and check what others have signed.

The charter lists every participant's public key. Without signatures, an organiser could give each
participant keys of its own in place of the others', and so read all shares.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import ssh_key_fingerprint

from isonomy.errors import ConfigError

SIGNATURE = 160  # bytes for a signature, the first of which is its length


def public_line(key: ec.EllipticCurvePublicKey) -> str:
    """A public key as a line of text, without a comment."""
    form = serialization.PublicFormat.OpenSSH
    return key.public_bytes(serialization.Encoding.OpenSSH, form).decode()


def parsed(line: object) -> ec.EllipticCurvePublicKey:
    """The public key of such a line; raises ValueError if it is none."""
    if not isinstance(line, str):
        raise ValueError("not a line of text")
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or public_line(key) != line:
        raise ValueError("not a key of the kind ecdsa")
    return key


def fingerprint(line: str) -> str:
    """The fingerprint of a public key, as `ssh-keygen -l` shows it."""
    found = ssh_key_fingerprint(parsed(line), hashes.SHA256())
    return "SHA256:" + b64encode(found).decode().rstrip("=")


class Identity:
    """A participant's own private key, and everyone's public keys in the order of their numbers."""

    def __init__(self, own: ec.EllipticCurvePrivateKey, peers: Sequence[str]) -> None:
        self._own, self._peers = own, [parsed(line) for line in peers]

    def sign(self, content: bytes) -> bytes:
        """A signature, with its length in front, and filled up with zeros."""
        made = self._own.sign(b"isonomy keys " + content, ec.ECDSA(hashes.SHA256()))
        return (bytes([len(made)]) + made).ljust(SIGNATURE, b"\0")

    def signed(self, k: int, content: bytes, signature: bytes) -> bool:
        """Whether this is participant k's signature."""
        made = signature[1 : 1 + signature[0]]
        try:
            self._peers[k].verify(made, b"isonomy keys " + content, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, IndexError, ValueError):
            return False
        return True


def identity_of(
    own: ec.EllipticCurvePrivateKey | None, name: str, peers: Mapping[str, str] | None
) -> Identity | None:
    """A participant's identity in a charter, None if the charter lists no keys.

    Raises ConfigError if the charter has another key for this participant.
    """
    if peers is None:
        return None
    if own is None:
        raise ConfigError(
            "the charter lists the participants' keys, and you have joined without one; join with "
            "--key."
        )
    if peers[name] != public_line(own.public_key()):
        raise ConfigError(
            f"the charter has another public key for '{name}' than the one in --key, so others "
            "would trust somebody else; tell the organiser."
        )
    return Identity(own, list(peers.values()))
