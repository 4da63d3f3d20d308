"""A person at a page: what they do, and what must be true at the end of every visit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlsplit

AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


class Visit:
    """A page with what it has complained of and whom it has asked."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._on_request)

    @classmethod
    @contextmanager
    def of(
        cls, browser: Any, url: str, path: str = "/", *, refusals: Sequence[int] = (), **context: Any
    ) -> Iterator[Self]:
        """A first visit. It must end without a complaint, and without a request to another host.

        Browsers complain of every answer that is an error: those with the statuses `refusals` are expected.
        """
        seen = browser.new_context(**{"color_scheme": "light", **context})
        try:
            visit = cls(seen.new_page(), url)
            visit.page.set_default_timeout(15_000)
            visit.page.goto(f"{url}{path}")
            yield visit
            expected = tuple(f"the server responded with a status of {status}" for status in refusals)
            assert [text for text in visit.complaints if not any(one in text for one in expected)] == []
            assert visit.hosts <= {urlsplit(url).netloc}
        finally:
            seen.close()

    def say(self, text: str) -> None:
        """Send a message."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send", exact=True).click()

    def done(self) -> None:
        """Wait until the answer is whole."""
        self.page.get_by_text("The answer is done.").wait_for()

    @property
    def answer(self) -> Any:
        """The last answer's text."""
        return self.page.locator(".turn.assistant").last.locator(".body")

    def set(self, label: str, value: str) -> None:
        """Fill in a setting."""
        self.page.get_by_label(label, exact=True).fill(value)

    def faults(self) -> list[str]:
        """What axe-core finds of serious and critical faults, each with the places."""
        from axe_playwright_python.base import AXE_FILE_PATH

        # through the debugger: the page's own policy lets no such script in
        self.page.evaluate(AXE_FILE_PATH.read_text() + "\n;undefined")
        found = self.page.evaluate("tags => axe.run(document, {runOnly: tags})", AXE_TAGS)
        return [
            f"{one['id']} ({one['impact']}): {[node['html'][:120] for node in one['nodes']]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_request(self, request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob"):
            self.hosts.add(address.netloc)
