"""Who may call a server without keys, by what names: Host and Origin."""

from __future__ import annotations

import pytest

from jaxengine.errors import ConfigError
from jaxengine.server.http.hosts import host_name, known_hosts
from jaxengine.server.options import ServerConfig
from tests.server.rig import Live, live


def status(server: Live, **headers: str) -> int:
    return server.http.get("/v1/models", headers=headers).status_code


def names(**options: object) -> object:
    known = known_hosts(ServerConfig.from_options(**options))
    return known and known["hosts"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "127.9.9.9:1", "[::1]:8000", "app.localhost"]
)
def test_names_of_this_machine(host: str, server: Live) -> None:
    assert status(server, Host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost:1@x", ""],
)
def test_other_names(host: str, server: Live) -> None:
    answer = server.http.get("/v1/models", headers={"Host": host})
    assert answer.status_code == 403
    assert "--allowed-hosts" in answer.json()["error"]["message"]


def test_pages_of_its_own_may_call_and_others_may_not(server: Live) -> None:
    own = server.url.removeprefix("http://")
    assert status(server, Origin=server.url) == 200
    assert status(server, Host=f"localhost:{own[-4:]}", Origin=f"http://localhost:{own[-4:]}") == 200
    for origin in ("http://evil.example", "null", "http://localhost", f"http://{own}.evil.example"):
        assert status(server, Origin=origin) == 403, origin


def test_named_hosts_and_origins() -> None:
    with live(allowed_hosts=("models.example",), allowed_origins=("https://app.example",)) as server:
        assert status(server, Host="models.example:8000") == 200
        assert status(server, Host="127.0.0.1") == 403
        assert status(server, Host="models.example", Origin="https://app.example") == 200
        assert status(server, Host="models.example", Origin="https://other.example") == 403


def test_a_key_is_enough() -> None:
    with live(api_key=("one",)) as server:
        headers = {"Host": "any.example", "Origin": "http://evil.example", "Authorization": "Bearer one"}
        assert status(server, **headers) == 200


def test_what_is_known_of_the_names() -> None:
    assert names() == ("localhost",)
    assert names(host="::1") == ("localhost",)
    assert names(host="0.0.0.0") is None
    assert names(uds="a.sock") is None
    assert names(allowed_hosts=("*",)) is None
    assert names(api_key=("a",)) is None
    assert names(api_key=("a",), allowed_hosts=("b",)) == ("b",)
    assert names(allowed_hosts=("Models.Example:8000", "[::1]")) == ("models.example", "::1")
    with pytest.raises(ConfigError, match="a/b"):
        names(allowed_hosts=("c", "a/b"))


def test_names_in_a_header() -> None:
    assert host_name("A.b:80") == "a.b"
    assert host_name("[::1]:80") == "::1"
    assert host_name("[::1") == host_name("a@b") == host_name("a:b") == host_name("") == ""
