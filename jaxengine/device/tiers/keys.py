"""Keys of blocks outside the process: which engines may read each other's pages, and who can tell what a key stands for.

    namespace = hash(all that the bytes of a page depend on besides its tokens)
    key       = hash under the secret (namespace, cache group, digest of the prefix's chain)

Two engines have equal namespaces if and only if they would compute the same bytes for the same prefix and keep them in the same
parts. The secret is the store's (`secret.py`) or, between engines, the configured one. The chain's digests have to be made under
the same one (`Prefixes(hash=keyed_hash(secret))`), or no engine finds what another wrote. Who has no secret can neither make a
key for a prompt nor learn from a key whether a prompt was seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

FORMAT = 1
"""The version of what keys are made of and of what is inside a block. What another version wrote is never found."""
KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """All that a page's bytes depend on besides its tokens.

    `computation` names the programs: the model's configuration, versions, sources and target, so that bytes are only taken from
    who rounds alike. `weights` is a digest of the numbers of all parameters as the devices have them, scales of a quantised cache
    among them; other weights in place are another namespace. `page_size` is in tokens. `layout` says of each cache group in
    which parts this host keeps a page: bounds, shape and type.
    """

    computation: Mapping[str, str]
    weights: bytes
    page_size: int
    layout: tuple[str, ...]

    @property
    def digest(self) -> bytes:
        """Of every field and of the format."""
        fields = {
            "format": FORMAT,
            "computation": dict(self.computation),
            "weights": self.weights.hex(),
            "page_size": self.page_size,
            "layout": self.layout,
        }
        return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=KEY_BYTES).digest()


class Keys:
    """Makes the keys of one namespace.

    Args:
        namespace: `Namespace.digest`.
        secret: up to 64 bytes.
    """

    def __init__(self, namespace: bytes, secret: bytes) -> None:
        self.namespace = namespace
        self._secret = secret
        self._keyed = hashlib.blake2b(namespace, key=secret, digest_size=KEY_BYTES)

    def of(self, namespace: bytes) -> Keys:
        """The keys of another namespace under the same secret."""
        return Keys(namespace, self._secret)

    def key(self, group: int, digest: bytes) -> bytes:
        """`KEY_BYTES` bytes that stand for a page of a cache group, by the digest of the prefix's chain."""
        state = self._keyed.copy()
        state.update(group.to_bytes(4, "little") + digest)
        return state.digest()
