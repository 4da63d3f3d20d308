"""A bundle: the programs of one model, engine, grid and target, closed by one manifest, as a directory or a single file.

    manifest.json          sealed JSON: what it is for, and the record of every program
    manifest.json.sig      optional ed25519 signature of those bytes
    objects/<sha256>.zst   the executables, as in a store

A store becomes a bundle when a manifest is written beside its objects. The single file is an uncompressed zip of the same.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from xla_cache.errors import CacheError, CorruptError, RefusedError
from xla_cache.files import write_whole
from xla_cache.key import Difference, Key
from xla_cache.location import check_trusted
from xla_cache.record import SCHEMA, Record
from xla_cache.sealed import seal, unseal
from xla_cache.signature import SIGNATURE, check_signature, sign
from xla_cache.store import Store, checked, object_name

MANIFEST = "manifest.json"
# No manifest comes near these sizes; a file that claims more is not read into memory.
MAX_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Manifest:
    """What a bundle is for and what it holds.

    `description` is for readers and for the engine that adopts it: model, engine options, grid, target, command. `context`
    holds the key parts that all programs share.
    """

    description: Mapping[str, Any]
    context: Mapping[str, str]
    records: tuple[Record, ...]
    created: float

    def to_bytes(self) -> bytes:
        return seal(
            {
                "schema": SCHEMA,
                "description": dict(self.description),
                "context": dict(self.context),
                "created": self.created,
                "programs": [record.to_json() for record in self.records],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Manifest:
        """Read a manifest.

        Raises:
            CorruptError: a byte was changed, or it has another schema.
        """
        body = unseal(data, name=name)
        if body.get("schema") != SCHEMA:
            raise CorruptError(
                f"{name} has schema {body.get('schema')!r}, and this version reads {SCHEMA}: build it again"
            )
        match body:
            case {
                "description": dict(description),
                "context": dict(context),
                "created": (int() | float()) as created,
                "programs": list(programs),
                **rest,
            } if set(rest) == {"schema"} and all(isinstance(value, str) for value in context.values()):
                records = tuple(
                    Record.from_json(record, name=f"{name}: program {i}") for i, record in enumerate(programs)
                )
                return cls(description, context, records, created)
        raise CorruptError(f"{name} has missing or unknown fields: {', '.join(sorted(body))}")


class Bundle:
    """A bundle that was opened, its manifest verified. Executables are verified as they are read."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path, *, public_key: Path | None = None) -> Bundle:
        """Verify who can write it, or with `public_key` who signed it, and the digest of its manifest.

        Raises:
            CorruptError: missing, truncated or changed.
            RefusedError: others can write it and it is not signed, or the signature is wrong.
        """
        if not path.exists():
            raise CorruptError(f"there is no bundle {path}")
        if public_key is None:
            check_trusted(path / MANIFEST if (path / MANIFEST).exists() else path)
        data = _read(path, MANIFEST)
        if public_key is not None:
            check_signature(data, _read(path, SIGNATURE, missing=b""), public_key, name=str(path))
        return cls(path, Manifest.from_bytes(data, name=f"{path}: {MANIFEST}"))

    @cached_property
    def _by_key(self) -> dict[str, Record]:
        return {record.key.digest: record for record in self.manifest.records}

    def find(self, key: Key) -> Record | None:
        return self._by_key.get(key.digest)

    def records(self) -> Iterator[Record]:
        return iter(self.manifest.records)

    def packed(self, record: Record) -> bytes:
        """The compressed executable that a record names, digest checked.

        Raises:
            CorruptError: missing, truncated or changed.
        """
        return checked(_read(self.path, object_name(record.file), limit=record.packed), record)

    def differences(self, context: Mapping[str, str]) -> tuple[Difference, ...]:
        """Which parts that all programs share are not as they are here."""
        return Key(context).differences(Key(self.manifest.context))

    def verify(self) -> list[str]:
        """Read every executable; what is wrong, one line each."""
        problems = []
        for record in self.manifest.records:
            try:
                self.packed(record)
            except CorruptError as error:
                problems.append(str(error))
        return problems


def write_bundle(
    path: Path, source: Any, records: Sequence[Record], *, context: Mapping[str, str], description: Mapping[str, Any]
) -> Manifest:
    """Close a bundle over `records` of `source`, a store or bundle: at `path` a directory, or a single file if it ends in .zip.

    Where `source` is the store in that same directory, only the manifest is written. The order of `records` does not matter:
    the same ones make the same bytes.

    Raises:
        CacheError: an executable is damaged, or the place cannot be written.
    """
    created = max((record.created for record in records), default=0.0)
    manifest = Manifest(description, context, tuple(sorted(records, key=lambda record: record.program)), created)
    try:
        if path.suffix == ".zip":
            _write_zip(path, manifest, source)
        else:
            store = Store.open(path)
            if not isinstance(source, Store) or source.path.resolve() != path.resolve():
                for record in records:
                    store.write_object(record, source.packed(record))
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path / MANIFEST, manifest.to_bytes())
    except OSError as error:
        raise CacheError(f"{path} cannot be written: {error}") from error
    return manifest


def sign_bundle(path: Path, private_key: Path) -> Path:
    """Sign the manifest of a bundle, a directory or a single file, and return where the signature is.

    Raises:
        CacheError: the bundle or the key cannot be read, or the signature cannot be written.
    """
    manifest = _read(path, MANIFEST)
    Manifest.from_bytes(manifest, name=f"{path}: {MANIFEST}")
    signature = sign(manifest, private_key)
    try:
        if path.is_dir():
            write_whole(path / SIGNATURE, signature)
            return path / SIGNATURE
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist() if name != SIGNATURE}
        write_whole(path, _zipped({**members, SIGNATURE: signature}))
    except OSError as error:
        raise CacheError(f"{path} cannot be written: {error}") from error
    return path


def _write_zip(path: Path, manifest: Manifest, source: Any) -> None:
    members = {MANIFEST: manifest.to_bytes()}
    members |= {object_name(record.file): source.packed(record) for record in manifest.records}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _zipped(members))


def _zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            # no times and no order of writing: equal contents give an equal file
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def _read(path: Path, name: str, *, limit: int = MAX_MANIFEST_BYTES, missing: bytes | None = None) -> bytes:
    try:
        if path.is_dir():
            file = path / name
            if file.stat().st_size > limit:
                raise CorruptError(f"{file} has {file.stat().st_size} bytes, and at most {limit} are right")
            return file.read_bytes()
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(name).file_size > limit:
                raise CorruptError(
                    f"{path}: {name} has {archive.getinfo(name).file_size} bytes, and at most {limit} are right"
                )
            return archive.read(name)
    except (FileNotFoundError, KeyError):
        if missing is not None:
            return missing
        raise CorruptError(f"{path} has no {name}") from None
    except CorruptError:
        raise
    except Exception as error:  # a damaged zip file raises whatever its decompressors do
        raise CorruptError(f"{path}: {name} cannot be read: {error}") from error


def require_same(bundle: Bundle, context: Mapping[str, str], *, command: str) -> None:
    """Refuse a bundle that was made for something else, `source.*` aside: equal HLO is found whatever the source.

    Raises:
        RefusedError: with every field that differs, both values, and the command that rebuilds.
    """
    differences = [item for item in bundle.differences(context) if not item.part.startswith("source.")]
    if differences:
        lines = "; ".join(map(str, differences))
        raise RefusedError(f"the bundle {bundle.path} is for something else ({lines}). Rebuild it: {command}")
