"""`jaxengine cache`: what this user's store holds, and its exchange as bundles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from jaxengine.errors import BundleError
from xla_cache import Bundle, CacheError, Manifest, Store, default_directory, write_bundle
from xla_cache.starts import StartRecord, read_starts, write_start


def list_starts(path: Path | None) -> Iterator[str]:
    """One line per kind of start that the store has programs for, the latest first."""
    store = _open(path)
    starts = read_starts(store)
    yield f"{store.path}: {'nothing is kept yet' if not starts else f'{len(starts)} starts'}"
    for start in starts:
        try:
            records = {record.file: record.packed for record in start.records(store)}
            size = f"{len(start.keys)} programs, {sum(records.values()) / 1e6:.1f} MB"
        except CacheError:
            size = f"{len(start.keys)} programs, not all of them kept"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(start.time))
        options = " ".join(f"{name}={value}" for name, value in start.description.get("options", {}).items())
        target = f"{start.context.get('target.devices')} x {start.context.get('target.device_kind')}"
        yield f"{start.id}  {when}  {start.description.get('model')}  {target}  {size}  {options}".rstrip()


def export_start(name: str, output: Path, path: Path | None) -> Manifest:
    """Write the programs of a start as a bundle: a directory, or a single file if `output` ends in `.zip`.

    `name` is the id of a start, the beginning of one, or its model; of several the latest is taken.

    Raises:
        BundleError: no such start, one of its programs is damaged or gone, or the place cannot be written.
    """
    store = _open(path)
    starts = read_starts(store)
    found = next(
        (start for start in starts if start.id.startswith(name) or start.description.get("model") == name), None
    )
    if found is None:
        known = ", ".join(f"{start.id} ({start.description.get('model')})" for start in starts) or "none"
        raise BundleError(f"{store.path} has no start {name!r}; it has {known}")
    try:
        return _export(found, store, output)
    except CacheError as error:
        raise BundleError(str(error)) from error


def import_bundle(bundle_path: Path, path: Path | None, public_key: Path | None) -> int:
    """Copy the programs of a bundle into the store, every digest checked; how many.

    Raises:
        BundleError: the bundle cannot be trusted or is damaged, or the store cannot be written.
    """
    store = _open(path)
    try:
        bundle = Bundle.open(bundle_path, public_key=public_key)
        for record in bundle.records():
            store.write(record, bundle.packed(record))
        keys = {record.program: record.key.digest for record in bundle.records()}
        manifest = bundle.manifest
        write_start(store, StartRecord(manifest.description, manifest.context, keys, (), manifest.created))
    except CacheError as error:
        raise BundleError(str(error)) from error
    return len(bundle.manifest.records)


def _export(start: StartRecord, store: Store, output: Path) -> Manifest:
    records = start.records(store)
    return write_bundle(output, store, records, context=start.context, description=start.description)


def _open(path: Path | None) -> Store:
    try:
        return Store.open(default_directory() if path is None else path)
    except CacheError as error:
        raise BundleError(str(error)) from error
