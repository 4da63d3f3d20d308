"""`python -m jaxengine.serve [MODEL] [options]`: the same as `jaxengine serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxengine import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status."""
    return cli.main(["serve", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
