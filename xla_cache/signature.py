"""Detached ed25519 signatures of a bundle's manifest, which names the digest of everything else."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from xla_cache.errors import CacheError, RefusedError

SIGNATURE = "manifest.json.sig"


def check_signature(data: bytes, signature: bytes, public_key: Path, *, name: str) -> None:
    """Refuse unless `signature` (base64) of `data` was made with the private half of `public_key`, a PEM file.

    Raises:
        RefusedError: no signature, or not a right one.
        CacheError: the key cannot be read, or the cryptography package is not installed.
    """
    serialization = _serialization()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not signature:
        raise RefusedError(f"{name} is not signed ({SIGNATURE} is missing), and a key was given")
    key = _load(serialization.load_pem_public_key, public_key, Ed25519PublicKey, "public")
    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), data)
    except (InvalidSignature, binascii.Error):
        raise RefusedError(f"the signature of {name} is not of this manifest and the key {public_key}") from None


def sign(data: bytes, private_key: Path) -> bytes:
    """The base64 signature of `data` with a PEM private key (`openssl genpkey -algorithm ed25519`).

    Raises:
        CacheError: the key cannot be read, or the cryptography package is not installed.
    """
    from functools import partial

    serialization = _serialization()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    load = partial(serialization.load_pem_private_key, password=None)
    key = _load(load, private_key, Ed25519PrivateKey, "private")
    return base64.b64encode(key.sign(data)) + b"\n"


def _serialization() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError:
        raise CacheError("signatures need the cryptography package: pip install 'jaxengine[sign]'") from None
    return serialization


def _load(load: Any, path: Path, kind: type, half: str) -> Any:
    try:
        key = load(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise CacheError(f"the {half} key {path} cannot be read: {error}") from error
    if not isinstance(key, kind):
        raise CacheError(f"the {half} key {path} must be an ed25519 key in PEM")
    return key
