"""Forms as clients write them, and what is none."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.errors import RequestError
from jaxengine.server.http.form import Field, read_form


@given(
    content=st.binary(max_size=200), name=st.text("ab é", min_size=1, max_size=9), purpose=st.text("abc", max_size=5)
)
def test_what_a_client_writes_is_read(content: bytes, name: str, purpose: str) -> None:
    request = httpx.Request("POST", "http://x/", files={"file": (name, content)}, data={"purpose": purpose})
    fields = read_form(request.headers["content-type"], request.read())
    assert fields == {"purpose": Field(purpose.encode(), None), "file": Field(content, name)}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("", b""),
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"a--x--"),
    ],
)
def test_other_bodies_are_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(RequestError, match="form"):
        read_form(content_type, body)


def test_parts_without_a_name_are_passed_over() -> None:
    body = b'--x\r\nContent-Type: a\r\n\r\n1\r\n--x\r\nContent-Disposition: form-data; name="b"\r\n\r\n2\r\n--x--\r\n'
    assert read_form('multipart/form-data; boundary="x"', body) == {"b": Field(b"2", None)}
