"""Programs on a cluster of Ray whose nodes are processes of this machine: `python -m tests.integration.ray_run NAME DIRECTORY`.

They run apart from the tests, as Ray leaves threads and processes behind. The last line that they print is what came of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from jaxengine import AsyncLLM, SamplingParams
from jaxengine.startup.group import ray_hosts
from tests.integration.engines import SMALL, write_config
from tests.integration.hosts import free_port

NUM_STREAMS = 8
SCALING_S = 300
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}


def two_hosts(directory: Path) -> Any:
    """Tensor parallel over two nodes, with and without the death of the actor that has the second."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    ray.init(address=cluster.address)
    options = {**SMALL, "buckets": ["4x8"], "model": str(write_config(directory)), "dtype": "float32"}
    options |= {"tensor_parallel_size": 2, "nnodes": 2, "master_port": free_port()}

    async def answers(llm: AsyncLLM, *, kill: bool) -> list[list[int]]:
        begun: list[int] = []

        async def one(number: int) -> list[int]:
            tokens: list[int] = []
            params = SamplingParams(max_tokens=40, temperature=0.8, seed=number, ignore_eos=True)
            async for output in llm.generate({"prompt_token_ids": [3, 4, 5 + number]}, params, f"{number} {kill}"):
                tokens = list(output.outputs[0].token_ids)
                if len(tokens) == 10:
                    begun.append(number)
                    if kill and len(begun) == 3:
                        ray.kill(ray_hosts._started[0], no_restart=False)
            return tokens

        return list(await asyncio.gather(*map(one, range(NUM_STREAMS))))

    async def scenario() -> list[list[list[int]]]:
        async with AsyncLLM(enable_multiprocessing=True, distributed_executor_backend="ray", **options) as llm:
            return [await answers(llm, kill=kill) for kill in (False, True)]

    found = asyncio.run(scenario())
    ray.shutdown()
    cluster.shutdown()
    return found


def application(directory: Path) -> Any:
    """The application of Ray Serve, asked by OpenAI's client: once, then by several at once until there is another replica."""
    from openai import OpenAI
    from ray import serve

    from examples.deploy.ray_serve import app

    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=80 << 20)
    port = free_port()
    serve.start(http_options={"port": port})
    serve.run(app)
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    [model] = client.models.list()
    given: Any = {"model": model.id, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0}
    whole = client.completions.create(**given)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**given, stream=True))
    assert whole.usage is not None
    texts = {whole.choices[0].text}
    end = time.monotonic() + SCALING_S

    def replicas() -> int:
        [deployment] = serve.status().applications["default"].deployments.values()
        return int(deployment.replica_states.get("RUNNING", 0))

    def ask(until: int) -> None:
        while replicas() < until and time.monotonic() < end:
            texts.add(client.completions.create(**given).choices[0].text)

    with ThreadPoolExecutor(NUM_STREAMS) as clients:
        list(clients.map(ask, [2] * NUM_STREAMS))
    texts |= {client.completions.create(**given).choices[0].text for _ in range(NUM_STREAMS)}
    found = {"whole": whole.choices[0].text, "streamed": streamed, "tokens": whole.usage.completion_tokens}
    found |= {"replicas": replicas(), "texts": len(texts)}
    serve.shutdown()
    ray.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps({"two_hosts": two_hosts, "application": application}[sys.argv[1]](Path(sys.argv[2]))))
