"""What must not happen: without a key, with a hostile answer, behind a proxy, over TLS."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import KEY, paced
from tests.browser.visit import Visit
from tests.server.rig import Live, live

pytestmark = pytest.mark.browser

HOSTILE = {
    "script": "<script>window.hurt = 1</script>",
    "handlers": "<img src=x onerror='window.hurt = 1'><svg onload='window.hurt = 1'><details open ontoggle='window.hurt = 1'>",
    "links": "[a](javascript:window.hurt=1) [b](JaVaScRiPt&colon;window.hurt=1) [c](data:text/html,<script>1</script>) "
    "[d](vbscript:x) [e](/reset_prefix_cache) <javascript:window.hurt=1>",
    "pictures": "![a](http://127.0.0.2:9/a.png) ![b](/v1/models) <img src='http://127.0.0.2:9/b.png'>",
    "frames": "<iframe src='http://127.0.0.2:9'></iframe><object data='http://127.0.0.2:9'></object><embed src='/'>",
    "style": "<style>* { display: none }</style><p style='position: fixed'>x</p><link rel=stylesheet href='http://127.0.0.2:9'>",
    "forms": "<form action='http://127.0.0.2:9'><input name=a autofocus onfocus='window.hurt = 1'></form>",
    "base": "<base href='http://127.0.0.2:9/'><meta http-equiv=refresh content='0;url=http://127.0.0.2:9'>",
    "code": '```"><script>window.hurt=1</script>\n</code></pre><script>window.hurt = 1</script>\n```',
    "clobbering": "<a id=turns name=body></a><form name=cookie></form>",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_does_nothing(kind: str, visit: Visit, server: Live) -> None:
    server.runner.write(f"Look: {HOSTILE[kind]} and so on.")
    visit.say("Hurt me")
    visit.done()
    assert "Look:" in visit.answer.inner_text()
    if kind != "code":
        assert "and so on." in visit.answer.inner_text()
    for link in visit.answer.locator("a").all():
        target = link.get_attribute("href")
        assert target is None or target.startswith(("http://", "https://", "mailto:")), target
        link.click(timeout=1000, trial=True)
    forbidden = "script, img, svg, iframe, object, embed, style, link, form, input, base, meta, details, [style], [id]"
    assert visit.answer.locator(forbidden).count() == 0
    assert visit.page.evaluate("window.hurt") is None
    # raw HTML is there to be read
    if kind in ("script", "frames", "forms"):
        assert HOSTILE[kind].split(">")[0] in visit.answer.inner_text()


def test_what_the_model_calls_and_thinks_is_text_too(visit: Visit, server: Live) -> None:
    bad = "<img src=x onerror='window.hurt = 1'>"
    server.runner.write(
        f'<think>{bad}</think><tool_call>{{"name": "{bad}", "arguments": {{"a": "{bad}"}}}}</tool_call>'
    )
    visit.set("Tools", '[{"type": "function", "function": {"name": "f"}}]')
    visit.say(bad)
    visit.done()
    assert visit.page.locator("#turns img").count() == 0
    assert visit.page.evaluate("window.hurt") is None
    assert visit.page.locator("#conversations .open").first.inner_text() == bad


HUGE = {
    "a line": "x" * 500_000,
    "quotes": "> " * 20_000,
    "brackets": "[" * 50_000,
    "stars": "**a" * 20_000,
    "lists": "\n".join("  " * (line % 500) + "- x" for line in range(5_000)),
    "table": "|" * 20_000 + "\n" + "|-" * 20_000 + "\n",
}


@pytest.mark.parametrize("kind", HUGE)
def test_huge_and_deep_answers_leave_the_page_usable(kind: str, visit: Visit) -> None:
    text = HUGE[kind]
    pieces = [{"content": text[place : place + 2000]} for place in range(0, len(text), 2000)]
    visit.page.route("**/chat/completions", lambda route: route.fulfill(body=stream(*pieces, whole=True)))
    visit.say("Write a lot")
    visit.done()
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visit.page.get_by_role("button", name="New conversation").first.click()
    assert visit.page.locator(".turn.user").count() == 0


def stream(*deltas: dict[str, Any], whole: bool) -> str:
    """The body of a streamed chat completion that the server would send."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if whole else "")


def test_a_key_is_asked_for_once_and_kept_for_the_tab(browser: Any) -> None:
    with paced(api_key=(KEY,)) as server:
        with Visit.of(browser, server.url, refusals=(401,)) as visit:
            page = visit.page
            page.get_by_text("This server needs one of its keys.").wait_for()
            assert "tiny" not in page.content()
            assert visit.faults() == []
            page.get_by_label("Key", exact=True).fill("wrong")
            page.keyboard.press("Enter")
            page.get_by_text("The server does not know this key.").wait_for()
            page.get_by_label("Key", exact=True).fill(KEY)
            page.get_by_role("button", name="Use this key").click()
            server.runner.write("Welcome.")
            visit.page.locator("#send:enabled").wait_for()
            visit.say("Hello")
            visit.done()
            page.get_by_role("button", name="Request").click()
            shown = page.locator("#curl").inner_text() + page.locator("#python").inner_text()
            assert KEY not in shown
            assert "Bearer $API_KEY" in shown
            page.goto(f"{server.url}/dashboard")
            page.get_by_text("Live").wait_for()
            kept = page.evaluate("[JSON.stringify(localStorage), document.cookie]")
            assert not any(KEY in where for where in kept)
        with Visit.of(browser, server.url, "/dashboard", refusals=(401,)) as stranger:
            stranger.page.get_by_label("Key", exact=True).wait_for()
            stranger.page.keyboard.press("Escape")
            stranger.page.locator("#state").get_by_text("needs an API key").wait_for()
            assert "tiny" not in stranger.page.content()
            assert stranger.page.locator("#grid tbody tr").count() == 0


def test_a_stream_that_breaks_off_is_told(visit: Visit, server: Live) -> None:
    half = stream({"content": "Half an ans"}, whole=False)
    visit.page.route("**/chat/completions", lambda route: route.fulfill(body=half))
    visit.say("Go on")
    visit.page.get_by_text("The stream broke off before the answer was whole.").wait_for()
    assert visit.answer.inner_text() == "Half an ans"
    visit.page.unroute("**/chat/completions")
    server.runner.write("A whole answer.")
    visit.page.get_by_role("button", name="Another answer").click()
    visit.page.get_by_text("A whole answer.").wait_for()


def test_a_refusal_is_told_in_the_servers_words(browser: Any, server: Live) -> None:
    with Visit.of(browser, server.url, refusals=(400,)) as visit:
        visit.set("Top k", "-1")
        visit.set("Most tokens", "100000")
        visit.say("Hi")
        visit.page.get_by_role("alert").get_by_text("max_tokens").wait_for()


def test_behind_a_proxy_that_strips_a_prefix(browser: Any) -> None:
    with paced(root_path="/models/one") as server, Visit.of(browser, server.url, "/models/one") as visit:
        server.runner.write("From afar.")
        visit.page.locator("#send:enabled").wait_for()
        visit.say("Hello")
        visit.done()
        assert visit.page.locator("#server").inner_text() == f"at {server.url}/models/one/"
        visit.page.get_by_role("link", name="Dashboard").click()
        visit.page.get_by_text("Live").wait_for()
        assert visit.page.url == f"{server.url}/models/one/dashboard"
        visit.page.get_by_role("link", name="Playground").click()
        visit.page.get_by_text("Hello").first.wait_for()


def test_over_tls(browser: Any, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command, to make a certificate")
    files = {"ssl_keyfile": str(tmp_path / "key.pem"), "ssl_certfile": str(tmp_path / "cert.pem")}
    make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([openssl, *make, "-keyout", files["ssl_keyfile"], "-out", files["ssl_certfile"]], check=True)
    with paced(**files) as server, Visit.of(browser, server.url, ignore_https_errors=True) as visit:
        assert visit.url.startswith("https://")
        server.runner.write("In secret.")
        visit.page.locator("#send:enabled").wait_for()
        visit.say("Hello")
        visit.done()
        visit.page.get_by_role("link", name="Dashboard").click()
        visit.page.get_by_text("Live").wait_for()


def test_no_page_without_ui(browser: Any) -> None:
    with live(ui=False) as server, Visit.of(browser, server.url, refusals=(404,)) as visit:
        assert "Not Found" in visit.page.content()


def test_a_first_load_is_light(browser: Any, server: Live) -> None:
    for path in ("/", "/dashboard"):
        with Visit.of(browser, server.url, path) as visit:
            visit.page.wait_for_load_state("load")
            sizes = visit.page.evaluate(
                "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
                ".filter(entry => !entry.name.endsWith('/stream')).map(entry => [entry.name, entry.transferSize])"
            )
            assert len(sizes) > 5
            assert sum(size for _, size in sizes) < 200_000, sizes
