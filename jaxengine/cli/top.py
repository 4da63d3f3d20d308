"""`jaxengine top`: what a server does, in the terminal, from its metrics."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from jaxengine.cli.chat import KEY_VARIABLES
from jaxengine.errors import ConfigError


def add_commands(commands: Any) -> None:
    """Declare the command."""
    top = commands.add_parser("top", help="what a running server does, live")
    top.add_argument("--url", default="http://localhost:8000", help="(http://localhost:8000)")
    top.add_argument("--api-key", metavar="KEY", help=f"(default: {' or '.join(KEY_VARIABLES)})")
    top.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    top.add_argument("--once", action="store_true", help="print one interval and end")
    top.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from jaxengine.cli.terminal.client import Client
    from jaxengine.cli.terminal.scrape import Scrape
    from jaxengine.cli.terminal.top_view import view

    if not namespace.interval > 0:
        raise ConfigError(f"interval must be above 0, got {namespace.interval:g}")
    key = namespace.api_key or next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    client = Client.of(namespace.url, key)
    before = Scrape.of(client.text("/metrics"))
    console = Console()
    if namespace.once or not console.is_terminal:
        time.sleep(namespace.interval)
        console.print(view(before, Scrape.of(client.text("/metrics")), namespace.url))
        return 0
    with Live(view(before, before, namespace.url), console=console, screen=True, auto_refresh=False) as live:
        while True:  # until Ctrl-C
            time.sleep(namespace.interval)
            now = Scrape.of(client.text("/metrics"))
            live.update(view(before, now, namespace.url), refresh=True)
            before = now
