"""Generated bodies: whatever is sent, the answer is one that the description names and the engine serves on.

    python -m tests.robustness.test_fuzz --examples 20000

runs as many as one likes; the test takes a sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter

import httpx
from hypothesis import HealthCheck, given, seed, settings

from tests.robustness.answers import assert_refused
from tests.robustness.hostile import DOCUMENTED, POSTS, requests
from tests.robustness.loopback import Loopback, build
from tests.robustness.neighbours import Neighbours


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

    send()
    return seen


def test_a_sample_of_generated_requests(client: httpx.Client) -> None:
    seen = attack(client, 400)
    assert any(kind.endswith(" 200") for kind in seen), "some are harmless, or nothing was tried"
    assert any(kind.endswith(" 400") for kind in seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000)
    examples = parser.parse_args().examples
    server = Loopback(build())
    neighbours = Neighbours(server)
    begun = time.monotonic()
    with server.client(headers={"Content-Type": "application/json"}) as client:
        seen = attack(client, examples)
    seconds = time.monotonic() - begun
    neighbours.check()
    neighbours.close()
    server.close()
    report = {"examples": sum(seen.values()), "seconds": round(seconds, 1), "answers": dict(sorted(seen.items()))}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
