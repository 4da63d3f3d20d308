"""`jaxengine cache`: the programs that earlier starts compiled."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxengine.options.flags import Parser


def add_commands(commands: Any) -> None:
    """Add `cache` with its actions."""
    cache = commands.add_parser("cache", help="the programs that earlier starts compiled: list, export, import")
    actions = cache.add_subparsers(dest="action", metavar="action", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="the starts whose programs are kept")
    export = actions.add_parser("export", help="write the programs of a start as a bundle")
    export.add_argument("start", help="id of a start (see list), or its model")
    export.add_argument("output", type=Path, help="directory to write, or a single file ending in .zip")
    importing = actions.add_parser("import", help="copy the programs of a bundle into the store")
    importing.add_argument("bundle", type=Path, help="directory or file")
    importing.add_argument("--bundle-key", type=Path, help="ed25519 public key (PEM) that must have signed the bundle")
    for action in (listing, export, importing):
        action.add_argument(
            "--xla-cache-path", type=Path, help="the store (default: JAXENGINE_CACHE_DIR or the user's)"
        )
    cache.set_defaults(run=_cache)


def _cache(namespace: argparse.Namespace) -> int:
    from jaxengine.tools.cache import export_start, import_bundle, list_starts

    store = None if namespace.xla_cache_path is None else namespace.xla_cache_path.expanduser()
    if namespace.action == "list":
        for line in list_starts(store):
            print(line)
    elif namespace.action == "export":
        manifest = export_start(namespace.start, namespace.output, store)
        print(f"wrote {namespace.output}: {len(manifest.records)} programs")
    else:
        print(f"{import_bundle(namespace.bundle, store, namespace.bundle_key)} programs are in the store now")
    return 0
