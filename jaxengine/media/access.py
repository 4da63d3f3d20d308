"""What may be fetched for a request, and how much of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from jaxengine.media.errors import MediaError

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaAccess:
    """What requests may name.

    Args:
        folder: files under it may be read; None: none may.
        domains: the only hosts that may be asked; empty: any that has a public address. A host that is named here may have a
            private one.
        max_bytes: of one item.
        timeout_s: for one item, redirects included.
        max_redirects: how often an answer may point elsewhere.
    """

    folder: Path | None = None
    domains: Collection[str] = ()
    max_bytes: int = 256 * MIB
    timeout_s: float = 10.0
    max_redirects: int = 3
    _root: Path | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "_root", self.folder.resolve())

    def file(self, path: str) -> Path:
        """The file of this path, with links followed.

        Raises:
            MediaError: it lies elsewhere, or is no file.
        """
        if self._root is None:
            raise MediaError(
                "files of the server are not read: start it with --allowed-local-media-path and their folder"
            )
        # Both are whole paths behind all links, so nothing under the folder leads out of it.
        try:
            found = Path(path).resolve()
            inside, is_file = found.is_relative_to(self._root), found.is_file()
        except (OSError, ValueError) as error:
            raise MediaError(f"the path of a file cannot be read: {error}") from error
        if not inside:
            raise MediaError("a file is not in the folder that --allowed-local-media-path names")
        if not is_file:
            raise MediaError(
                f"there is no file {found.relative_to(self._root)} in the folder of --allowed-local-media-path"
            )
        return found

    def check_host(self, host: str) -> None:
        """Whether this host may be asked at all.

        Raises:
            MediaError: only others may.
        """
        if self.domains and host not in self.domains:
            raise MediaError(
                f"media of the host {host!r} are not fetched: --allowed-media-domains names {', '.join(sorted(self.domains))}"
            )

    def may_be_private(self, host: str) -> bool:
        """Whether addresses that are not public will do for this host."""
        return host in self.domains
