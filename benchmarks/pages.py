"""What the pages cost: the time between tokens without and with dashboards that look on, and what a first load takes. JSON out.

Servers are those of `idle.py`: all is real but the device, on which a step takes the same time always. Half of them have viewers,
in turn with the other half, because machines have moods. The loads are of a browser that has never been there; they are left out
where there is no Chromium or no Playwright.

    python benchmarks/pages.py --streams 256 --viewers 10 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from jaxengine.bench import machine

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: PYTHONPATH may name another commit

from benchmarks import idle
from benchmarks.idle_engine import ASKED

LOADS = 7


def main() -> None:
    if "--serve" in sys.argv:
        idle.main()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=40.0, help="length of a step")
    parser.add_argument("--output-len", type=int, default=400)
    arguments = parser.parse_args()
    arguments.prompt_len, arguments.engine_options, arguments.drafts = 32, {}, 0
    arguments.engine, most = "process", arguments.viewers
    runs: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    for _ in range(arguments.rounds):
        for name, arguments.viewers in (("without", 0), ("with", most)):
            runs[name].append(idle.measure(arguments, arguments.milliseconds))
    medians = {name: statistics.median(run["gap_ms"]["p50"] for run in found) for name, found in runs.items()}
    asked = {name: getattr(arguments, name) for name in ("streams", "rounds", "milliseconds", "output_len")}
    print(
        json.dumps(
            {
                "benchmark": "pages",
                "machine": machine.describe(),
                **asked,
                "viewers": most,
                "median_gap_ms": medians,
                "runs": runs,
                "loads": loads(),
            },
            indent=2,
        )
    )


def loads() -> dict[str, Any] | None:
    """Of each page requests, bytes, and milliseconds to the end of loading on first visits."""
    executable = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        executable = None
    if executable is None:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--serve", str(port), "--parent", str(os.getpid()), "--streams", "8"]
    asked = {ASKED: json.dumps([5, 8, os.devnull])}
    server = subprocess.Popen([sys.executable, sys.argv[0], *arguments], env={**os.environ, **asked})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health")
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            return {path: load(browser, url + path) for path in ("/", "/dashboard")}
    finally:
        server.kill()  # it has seen no stream, of which it would tell
        server.wait()


def load(browser: Any, url: str) -> dict[str, float]:
    visits = []
    for _ in range(LOADS):
        context = browser.new_context()
        page = context.new_page()
        page.goto(url, wait_until="load")
        page.wait_for_timeout(200)
        visits.append(page.evaluate(SEEN))
        context.close()
    requests, size, _ = visits[0]
    took = sorted(round(ms, 1) for _, _, ms in visits)
    return {"requests": requests, "bytes": size, "load_ms": {"least": took[0], "median": statistics.median(took)}}


SEEN = """() => {
    const [page] = performance.getEntriesByType("navigation");
    const loaded = performance.getEntriesByType("resource").filter(({ name }) => !name.endsWith("/stream"));
    const bytes = [page, ...loaded].reduce((sum, { transferSize }) => sum + transferSize, 0);
    return [1 + loaded.length, bytes, page.loadEventEnd];
}"""


def wait_for(url: str) -> None:
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
