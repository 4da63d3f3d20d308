"""The dashboard as an operator reads it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.browser.visit import Visit
from tests.server.rig import Live, live

pytestmark = pytest.mark.browser


def metrics(server: Live) -> dict[str, float]:
    """Every sample of /metrics by its name and, where it has one, its shape."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {f"{one.name} {one.labels.get('shape', '')}".strip(): one.value for one in samples if "le" not in one.labels}


def number(text: str) -> float:
    """The first number of a cell."""
    found = re.search(r"[\d,.]+", text)
    assert found is not None, text
    return float(found[0].replace(",", ""))


def figure(visit: Visit, name: str) -> Any:
    """Where the value of a figure stands."""
    return visit.page.locator("#figures > div").filter(has=visit.page.get_by_text(name, exact=True)).locator(".value")


def test_numbers_are_those_of_metrics(browser: Any) -> None:
    with live() as server, Visit.of(browser, server.url, "/dashboard") as visit:
        visit.page.get_by_text("Live").wait_for()
        for length in (1, 2, 3, 30, 30):
            body = {"prompt": "Tom and Jerry " * length, "max_tokens": 9, "n": 2, "ignore_eos": True}
            assert server.post("/v1/completions", **{**body, "prompt": body["prompt"][:60]}).status_code == 200
        told = metrics(server)
        generated = told["vllm:generation_tokens_total"]
        assert generated == 90
        figure(visit, "Generated tokens").get_by_text("90", exact=True).wait_for()
        assert number(figure(visit, "Prompt tokens").inner_text()) == told["vllm:prompt_tokens_total"]
        hits = told["vllm:prefix_cache_hits_total"] / told["vllm:prefix_cache_queries_total"]
        assert number(figure(visit, "Prefix hits").inner_text()) == round(100 * hits, 1)
        assert number(figure(visit, "Running").inner_text()) == told["vllm:num_requests_running"] == 0
        assert number(figure(visit, "Unplanned compilations").inner_text()) == 0
        rows = [row.inner_text().split("\t") for row in visit.page.locator("#grid tbody tr").all()]
        seen = [row for row in rows if row[2] != "0"]
        assert len(seen) >= 2
        for name, _, steps, _, _, real, padding, mean, *_ in seen:
            assert number(steps) == told[f"jaxengine:step_time_seconds_count {name}"]
            assert number(real) == told[f"jaxengine:computed_tokens_total {name}"]
            assert number(padding) == told[f"jaxengine:padding_tokens_total {name}"]
            spent = told[f"jaxengine:step_time_seconds_sum {name}"] / number(steps)
            unit = {"µs": 1e6, "ms": 1e3, "s": 1}[mean.split()[1]]
            assert number(mean) == pytest.approx(spent * unit, rel=0.1)
        pool = visit.page.locator("#pool").inner_text()
        held, cached, free = (number(part) for part in re.findall(r"(?:held|cached|free) ([\d,]+)", pool))
        assert (held, held + cached + free) == (0, 399)
        assert cached > 0


def test_what_runs_is_seen_while_it_runs(browser: Any, server: Live) -> None:
    with Visit.of(browser, server.url, "/dashboard") as visit, Visit.of(browser, server.url) as other:
        server.runner.pause_s = 0.02
        server.runner.write("word " * 1000)
        other.say("Go on")
        visit.page.locator("tr.runs").wait_for()
        figure(visit, "Running").get_by_text("1", exact=True).wait_for()
        assert visit.page.locator("#engines td").first.inner_text() == "1x1"
        shown = re.compile(r"Between tokens: median (\d+\.\d) ms")
        between = shown.search(visit.page.get_by_text(shown).inner_text())
        assert between is not None
        assert 20 <= float(between[1]) < 200  # a pause, and what a busy machine adds to it
        other.page.keyboard.press("Escape")
        other.page.get_by_text("Stopped.").wait_for()
        visit.page.locator("tr.runs").wait_for(state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility(scheme: str, browser: Any, server: Live) -> None:
    with Visit.of(browser, server.url, "/dashboard", color_scheme=scheme) as visit:
        visit.page.get_by_text("Live").wait_for()
        assert visit.faults() == []


def test_on_a_phone(browser: Any, server: Live) -> None:
    with Visit.of(browser, server.url, "/dashboard", viewport={"width": 360, "height": 640}) as visit:
        visit.page.get_by_text("Live").wait_for()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
