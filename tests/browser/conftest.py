"""A real browser, Chromium without a window, on a real server whose model writes what a test tells it to."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxengine.text.tokenizer import Tokenizer
from tests.browser.visit import Visit
from tests.fronts import TOKENIZER, make_engine
from tests.server.rig import Live, live
from tests.server.scripted import ScriptedRunner

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
KEY = "the-key"


class PacedRunner(ScriptedRunner):
    """Takes `pause_s` for a step, so that there is time to look at an answer while it comes."""

    pause_s = 0.0

    def _sample(self, batch: Any, rows: Any) -> Any:
        time.sleep(self.pause_s)
        return super()._sample(batch, rows)


@contextmanager
def paced(*, tokenizer: Tokenizer = TOKENIZER, **options: Any) -> Iterator[Live]:
    """A server with room for long answers."""
    engine = make_engine(runner=PacedRunner, tokenizer=tokenizer, max_len=8192, num_pages=4096)
    formats = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3", "enable_auto_tool_choice": True}
    with live(engine, **{**formats, **options}) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'jaxengine[browser]'")
    executable = next(filter(None, map(shutil.which, EXECUTABLES)), None)
    if executable is None:
        pytest.skip(f"needs a browser: none of {', '.join(EXECUTABLES)} is installed")
    with playwright.sync_playwright() as driver:
        # As root there is no sandbox; /dev/shm is small in containers.
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """A server without keys."""
    with paced() as running:
        yield running


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left of the test before: no script, no pause, no request."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        server.runner.pause_s = 0.0
        server.runner.write("")
        server.settle()


@pytest.fixture
def visit(browser: Any, server: Live) -> Iterator[Visit]:
    """The playground, opened by somebody who has never been there."""
    with Visit.of(browser, server.url) as visit:
        visit.page.locator("#send:enabled").wait_for()
        yield visit
