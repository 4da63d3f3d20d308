"""What an attacker may be told."""

from __future__ import annotations

import httpx

LONGEST_ERROR = 4000
"""Bytes: an error is for reading, not for getting one's own megabytes back."""


def assert_refused(response: httpx.Response, *statuses: int) -> str:
    """An error in OpenAI's form, or Anthropic's, with one of `statuses` (400 by default); its message."""
    assert response.status_code in (statuses or (400,)), response.text[:500]
    assert len(response.content) <= LONGEST_ERROR, f"an error of {len(response.content)} bytes: {response.text[:300]}"
    error = response.json()["error"]
    assert error.get("code", response.status_code) == response.status_code
    assert "code" in error or response.json()["type"] == "error"
    assert error["message"]
    assert isinstance(error["type"], str)
    for secret in ("Traceback", ".py", "/root", "/work", "site-packages", "0x7"):
        assert secret not in response.text, response.text
    return str(error["message"])
