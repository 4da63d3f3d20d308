"""An engine without a server: seconds of a batch, and tokens per second of many requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from jaxengine.api.llm import LLM
from jaxengine.bench.figures import summary_ms
from jaxengine.bench.workload import BenchRequest, random_requests
from jaxengine.contract.sampling_params import SamplingParams

PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)


def latency(
    llm: LLM, *, input_len: int, output_len: int, batch_size: int, warmup: int, iterations: int
) -> dict[str, Any]:
    """Seconds until all of `batch_size` equal requests are answered, of so many tries after `warmup` further ones."""

    def tried(number: int) -> float:
        requests = random_requests(batch_size, input_len, output_len, ids=_ids(llm), seed=number)
        return generate_s(llm, requests)

    for number in tqdm(range(warmup), desc="warm-up", unit="batch"):
        tried(-1 - number)
    seconds = [tried(number) for number in tqdm(range(iterations), desc="latency", unit="batch")]
    return {
        "avg_latency": round(sum(seconds) / len(seconds), 6),
        **summary_ms("latency", seconds, PERCENTILES),
        "latencies": [round(value, 6) for value in seconds],
    }


def throughput(llm: LLM, make: Callable[[range], Sequence[BenchRequest]]) -> dict[str, Any]:
    """Requests and tokens per second, all requests being there from the start; `make` takes the ids that prompts may have."""
    requests = make(_ids(llm))
    before = llm.get_metrics()
    seconds = generate_s(llm, requests, use_tqdm=True)
    after = llm.get_metrics()
    prompts, outputs = sum(request.prompt_len for request in requests), sum(request.output_len for request in requests)
    return {
        "elapsed_time": round(seconds, 4),
        "num_requests": len(requests),
        "total_num_tokens": prompts + outputs,
        "requests_per_second": round(len(requests) / seconds, 3),
        "tokens_per_second": round((prompts + outputs) / seconds, 2),
        "output_tokens_per_second": round(outputs / seconds, 2),
        "steps": after["num_steps"] - before["num_steps"],
        "computed_tokens": after["num_computed_tokens"] - before["num_computed_tokens"],
        "token_places": after["num_padded_tokens"] - before["num_padded_tokens"],
        "compile_events_after_ready": after["num_compilations"],
    }


def generate_s(llm: LLM, requests: Sequence[BenchRequest], *, use_tqdm: bool = False) -> float:
    """Seconds to generate exactly the tokens that the requests want."""
    prompts = [
        request.prompt if isinstance(request.prompt, str) else {"prompt_token_ids": list(request.prompt)}
        for request in requests
    ]
    params = [
        SamplingParams(temperature=0.0, max_tokens=request.output_len, ignore_eos=True, detokenize=False)
        for request in requests
    ]
    begun = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=use_tqdm)
    return time.perf_counter() - begun


def _ids(llm: LLM) -> range:
    """Ids that no special token has, as far as one can know: not the first few."""
    return range(min(100, llm.vocab_size // 2), llm.vocab_size)
