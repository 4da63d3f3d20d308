"""Generated bodies: whatever is sent, the answer is one that the description names and the engine serves on.

    python -m tests.robustness.test_fuzz --examples 20000

runs as many as one likes, on a fake device unless told otherwise; the test takes a sample on the embedded model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.fronts import make_engine
from tests.robustness.answers import assert_refused
from tests.robustness.hostile import DOCUMENTED, POSTS, requests
from tests.robustness.loopback import Loopback, build

SAMPLE = 50


def attack(client: httpx.Client, examples: int) -> Counter[str]:
    """Send so many generated requests; how many got which status, by path."""
    seen: Counter[str] = Counter()

    @seed(20261121)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=False
    )
    @given(requests())
    def send(request: tuple[str, str, bytes]) -> None:
        method, path, body = request
        response = client.request(method, path, content=body)
        assert response.status_code in DOCUMENTED, (response.status_code, response.text[:500])
        assert response.status_code != 503, response.text
        if response.status_code != 200:
            assert_refused(response, response.status_code)
        kind = path if path in POSTS else "named"
        seen[f"{kind} {response.status_code}"] += 1
        if examples > SAMPLE and seen.total() % 1000 == 0:
            print(f"{seen.total()} of {examples}", file=sys.stderr)

    send()
    return seen


@pytest.mark.slow
def test_a_sample_of_generated_requests(client: httpx.Client) -> None:
    seen = attack(client, SAMPLE)
    assert any(kind.endswith(" 200") for kind in seen), "some are harmless, or nothing was tried"
    assert any(kind.endswith(" 400") for kind in seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--embedded", action="store_true", help="run the embedded model and not the fake device")
    arguments = parser.parse_args()
    begun = time.monotonic()
    engine = build() if arguments.embedded else make_engine()
    server = Loopback(engine, max_num_queued_reqs=0)
    headers = {"Content-Type": "application/json"}
    with server.client(headers=headers, timeout=600.0) as client:
        seen = attack(client, arguments.examples)
        assert client.get("/health").status_code == 200
    server.check_idle()
    seconds = time.monotonic() - begun
    report = {"examples": sum(seen.values()), "seconds": round(seconds, 1), "answers": dict(sorted(seen.items()))}
    print(json.dumps(report, indent=2), flush=True)
    server.close()


if __name__ == "__main__":
    main()
