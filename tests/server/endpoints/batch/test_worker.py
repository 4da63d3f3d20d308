"""Files and batches over HTTP: uploaded, answered beside other work, cancelled, gone on with after a restart."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_batch_run import HI, line
from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.server.rig import Live, live


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(make_engine(max_num_seqs=2)) as server:
        yield server


def upload(server: Live, lines: list[str], purpose: str = "batch") -> dict[str, Any]:
    content = "\n".join(lines).encode()
    response = server.http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": purpose})
    assert response.status_code == 200, response.text
    described: dict[str, Any] = response.json()
    assert described["bytes"] == len(content)
    return described


def begin(server: Live, lines: list[str], **body: Any) -> dict[str, Any]:
    asked = {
        "input_file_id": upload(server, lines)["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        **body,
    }
    response = server.post("/v1/batches", **asked)
    assert response.status_code == 200, response.text
    batch: dict[str, Any] = response.json()
    return batch


def wait(server: Live, batch: dict[str, Any], until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in range(4000):
        found: dict[str, Any] = server.http.get(f"/v1/batches/{batch['id']}").json()
        if until(found):
            return found
        time.sleep(0.005)
    raise AssertionError(found)


def ended(batch: dict[str, Any]) -> bool:
    return batch["status"] in ("completed", "failed", "cancelled")


def content(server: Live, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in server.http.get(f"/v1/files/{file_id}/content").text.splitlines()]


def test_a_batch_is_answered_line_by_line(server: Live) -> None:
    lines = [line(f"r{number}", prompt="Tom", max_tokens=2) for number in range(9)]
    wrong = [line("bad", prompt="Tom", max_tokens=-1), line("other", "/v1/chat/completions", messages=HI)]
    batch = begin(server, [*lines, "", *wrong], metadata={"a": "b"})
    assert (batch["object"], batch["metadata"], batch["request_counts"]["total"]) == ("batch", {"a": "b"}, 11)
    done = wait(server, batch, ended)
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 11, "completed": 9, "failed": 2}
    assert done["completed_at"] >= done["created_at"]
    answers, errors = content(server, done["output_file_id"]), content(server, done["error_file_id"])
    assert [answer["custom_id"] for answer in answers] == [f"r{number}" for number in range(9)]
    assert [error["custom_id"] for error in errors] == ["bad", "other"]
    assert "url must be that of the batch" in errors[1]["error"]["error"]["message"]
    kept = server.http.get(f"/v1/files/{done['output_file_id']}").json()
    assert (kept["purpose"], kept["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert done in server.http.get("/v1/batches").json()["data"]


def test_files_are_listed_and_forgotten(server: Live) -> None:
    file = upload(server, ["{}"])
    assert server.http.get(f"/v1/files/{file['id']}").json() == file
    listed = server.http.get("/v1/files", params={"purpose": "batch"}).json()
    assert file in listed["data"]
    assert listed["first_id"] == listed["data"][0]["id"]
    assert server.http.get("/v1/files", params={"purpose": "other"}).json()["data"] == []
    files = listed["data"]
    pages = [server.http.get("/v1/files", params={"limit": 1, "purpose": "batch"}).json()]
    while pages[-1]["has_more"]:
        pages.append(
            server.http.get("/v1/files", params={"limit": 1, "purpose": "batch", "after": pages[-1]["last_id"]}).json()
        )
    assert [item for page in pages for item in page["data"]] == files
    assert server.http.get("/v1/files", params={"purpose": "batch", "order": "asc"}).json()["data"] == files[::-1]
    assert server.http.get("/v1/files", params={"after": "x"}).status_code == 400
    assert server.http.get("/v1/batches", params={"limit": 0}).status_code == 400
    assert server.http.delete(f"/v1/files/{file['id']}").json()["deleted"]
    for path in (
        f"/v1/files/{file['id']}",
        f"/v1/files/{file['id']}/content",
        "/v1/files/..%2fx",
        "/v1/batches/batch_1",
    ):
        assert server.http.get(path).status_code == 404, path


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"files": {"file": ("a", b"{}")}, "data": {"purpose": "vision"}}, "purpose must be batch"),
        ({"files": {"file": ("a", b"{}")}}, "purpose must be batch"),
        (
            {"files": {"file": ("a", b"{}")}, "data": {"purpose": "batch", "expires_after[seconds]": "3600"}},
            "expires_after is not supported",
        ),
        ({"files": {"other": ("a", b"{}")}, "data": {"purpose": "batch"}}, "must have a file"),
        ({"json": {"file": "{}"}}, "must be a form"),
        ({"content": b"--x", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, "cut off"),
        ({"content": b"", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, "cut off"),
    ],
)
def test_uploads_that_are_refused(server: Live, request_: dict[str, Any], message: str) -> None:
    response = server.http.post("/v1/files", **request_)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


def test_batches_that_are_refused(server: Live) -> None:
    file = upload(server, ["{}"])["id"]
    empty = upload(server, [""])["id"]
    for body, status in [
        ({"input_file_id": file, "endpoint": "/v1/models"}, 400),
        ({"input_file_id": empty, "endpoint": "/v1/completions"}, 400),
        ({"input_file_id": f"file-{'0' * 32}", "endpoint": "/v1/completions"}, 404),
        ({"input_file_id": "../../etc/passwd", "endpoint": "/v1/completions"}, 404),
        ({"endpoint": "/v1/completions"}, 400),
    ]:
        assert server.post("/v1/batches", **body).status_code == status, body
    assert server.post(f"/v1/batches/batch_{'0' * 32}/cancel").status_code == 404


def test_there_is_only_so_much_room() -> None:
    with live(make_engine(), max_batch_bytes=50) as server:
        upload(server, ["a" * 30])
        refused = server.http.post("/v1/files", files={"file": ("b", b"b" * 21)}, data={"purpose": "batch"})
        assert refused.status_code == 400
        assert "20 of 50 are free" in refused.json()["error"]["message"]


def test_a_batch_is_cancelled_between_two_lines() -> None:
    front = make_engine(runner=GatedRunner, max_num_seqs=1)
    with live(front) as server:
        batch = begin(server, [line(f"r{number}", prompt="Tom", max_tokens=2, ignore_eos=True) for number in range(5)])
        held = server.http.delete(f"/v1/files/{batch['input_file_id']}")
        assert (held.status_code, "is reading the file" in held.text) == (400, True)
        server.runner.allow(3)
        wait(server, batch, lambda found: found["request_counts"]["completed"] >= 1)
        assert server.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
        server.runner.open()
        done = wait(server, batch, ended)
        assert done["status"] == "cancelled"
        answered = done["request_counts"]["completed"]
        assert 1 <= answered < 5
        assert len(content(server, done["output_file_id"])) == answered
        assert server.post(f"/v1/batches/{batch['id']}/cancel").status_code == 400


def test_a_batch_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What a server that was killed has left: a copy of its directory while it runs, with half a line at the end."""
    lines = [line(f"r{number}", prompt="Tom", max_tokens=2, ignore_eos=True) for number in range(6)]
    with live(make_engine(runner=GatedRunner, max_num_seqs=1), batch_dir=str(tmp_path / "first")) as server:
        batch = begin(server, lines)
        server.runner.allow(5)
        before = wait(server, batch, lambda found: found["request_counts"]["completed"] >= 1)["request_counts"]
        shutil.copytree(tmp_path / "first", tmp_path / "second")
    half = next((tmp_path / "second" / "batches").glob("*.output"))
    half.write_bytes(half.read_bytes() + b'{"half a line')
    with live(make_engine(), batch_dir=str(tmp_path / "second")) as server:
        done = wait(server, batch, ended)
        assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        answers = content(server, done["output_file_id"])
    assert [answer["custom_id"] for answer in answers] == [f"r{number}" for number in range(6)]
    assert before["completed"] < 6
