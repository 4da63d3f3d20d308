"""A client of streams that takes as little of the machine as it can: one thread, a read for whatever came, no parsing. JSON out.

    python benchmarks/light_client.py HOST:PORT < requests.json

Requests are bodies of /v1/completions with `stream_options.include_usage`; all are sent at once, each on a connection of its own.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from typing import Any

END = b"data: [DONE]"


def main() -> None:
    address, requests = sys.argv[1], json.load(sys.stdin)
    before, begun = time.process_time(), time.perf_counter()
    tokens = ask(address, requests)
    elapsed = time.perf_counter() - begun
    print(json.dumps({"tokens_per_s": round(tokens / elapsed, 1), "client_s": time.process_time() - before}))


def ask(address: str, requests: list[dict[str, Any]]) -> int:
    """Tokens that came in all."""
    host, port = address.split(":")
    waiting = selectors.DefaultSelector()
    for body in requests:
        data = json.dumps(body).encode()
        connection = socket.create_connection((host, int(port)))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        waiting.register(connection, selectors.EVENT_READ, b"")
    tokens = 0
    while waiting.get_map():
        for key, _ in waiting.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            last = key.data[-1000:] + connection.recv(1 << 16)
            if END not in last:
                waiting.modify(connection, selectors.EVENT_READ, last)
                continue
            tokens += int(re.findall(rb'"completion_tokens":(\d+)', last)[-1])
            waiting.unregister(connection)
            connection.close()
    return tokens


if __name__ == "__main__":
    main()
