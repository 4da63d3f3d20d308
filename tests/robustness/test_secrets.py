"""What must not leak (groups E11, E12, A10): prompts into logs, a caller's text into metrics, files into answers."""

from __future__ import annotations

import logging

import httpx
import pytest

from tests.quick import slow_but
from tests.robustness.hostile import NAMES
from tests.robustness.loopback import Loopback

SECRET = "xylophone-rutabaga-7731"


def test_logs_carry_no_prompt_and_no_key(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("jaxengine"), "propagate", True)
    headers = {"Authorization": f"Bearer {SECRET}"}
    for body in (
        {"prompt": SECRET, "max_tokens": 2},
        {"prompt": SECRET, "temperature": -1},
        {"prompt": [SECRET, 5]},
        {"prompt": SECRET * 1000},
        {"prompt": SECRET, "stop": [SECRET] * 100},
    ):
        client.post("/v1/completions", json=body, headers=headers)
    client.post("/v1/chat/completions", json={"messages": [{"role": SECRET, "content": SECRET}], "max_tokens": 2})
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_metrics_carry_no_text_of_a_caller(server: Loopback, client: httpx.Client) -> None:
    families = len(client.get("/metrics").text)
    for number in range(20):
        client.get(f"/{SECRET}{number}")
        client.get(f"/v1/models/{SECRET}{number}")
        client.get(f"/v1/responses/{SECRET}{number}")
        client.post("/v1/completions", json={"model": f"{SECRET}{number}", "prompt": "a"})
        client.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": 1, "user": SECRET, "request_id": f"{SECRET}{number}"}
        )
    text = client.get("/metrics").text
    assert SECRET not in text
    assert len(text) < families + 8_000, "a caller makes no new time series"


def test_any_method_is_no_label(client: httpx.Client) -> None:
    for method in ("PROPFIND", "MKCOL", "PURGE", "SEARCH", "M-SEARCH"):
        client.request(method, "/v1/completions")
    labels = [line for line in client.get("/metrics").text.splitlines() if line.startswith("http_requests_total")]
    assert len(labels) < 200


@pytest.mark.parametrize("name", slow_but(NAMES, NAMES[::4]))
def test_a_name_is_never_a_path(name: str, client: httpx.Client) -> None:
    if name in ("", "embedded"):
        return
    answer = client.post("/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1})
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert len(answer.text) < 1000
