"""Command lines and Python that vLLM's documents show, by the rows of the project's table of them (reference/documents.md).

MODEL stands for the model, which is the one thing that is not as written. The documents say `vllm` where we say `jaxengine`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shown:
    """What a row of the table shows. `row` is how its first cell begins; `later` is a capability in it that is not built."""

    row: str
    text: str
    later: str = ""


COMMANDS = (
    Shown("`NCCL_DEBUG=TRACE vllm serve`", "NCCL_DEBUG=TRACE vllm serve MODEL"),
    Shown("VLLM_XLA_CACHE_PATH", "VLLM_XLA_CACHE_PATH=off vllm serve MODEL"),
    Shown("VLLM_TARGET_DEVICE", 'VLLM_TARGET_DEVICE="tpu" vllm serve MODEL'),
    Shown("VLLM_SKIP_WARMUP=true", "VLLM_SKIP_WARMUP=true vllm serve MODEL"),
    Shown(
        "VLLM_{PROMPT,DECODE}_{BS,SEQ,BLOCK}_BUCKET_{MIN,STEP,MAX} (12)",
        "VLLM_PROMPT_BS_BUCKET_MIN=1 VLLM_PROMPT_BS_BUCKET_STEP=32 VLLM_PROMPT_BS_BUCKET_MAX=4 VLLM_PROMPT_SEQ_BUCKET_MIN=128 "
        "VLLM_DECODE_BLOCK_BUCKET_MAX=2048 vllm serve MODEL --block-size 128",
    ),
    Shown("VLLM_GRAPH_RESERVED_MEM 0.1", "VLLM_GRAPH_RESERVED_MEM=0.1 VLLM_GRAPH_PROMPT_RATIO=0.3 vllm serve MODEL"),
    Shown("VLLM_GRAPH_PROMPT_STRATEGY", "VLLM_GRAPH_PROMPT_STRATEGY=min_tokens vllm serve MODEL"),
    Shown("VLLM_PROFILER_ENABLED", "VLLM_PROFILER_ENABLED=true vllm serve MODEL"),
    Shown("VLLM_HPU_LOG_STEP_GRAPH_COMPILATION(_ALL)", "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION=true vllm serve MODEL"),
    Shown("VLLM_HPU_LOG_STEP_CPU_FALLBACKS(_ALL)", "VLLM_HPU_LOG_STEP_CPU_FALLBACKS_ALL=true vllm serve MODEL"),
    Shown("PT_HPU_LAZY_MODE", "PT_HPU_LAZY_MODE=1 PT_HPU_ENABLE_LAZY_COLLECTIVES=true vllm serve MODEL"),
    Shown("`vllm serve MODEL --dtype auto --api-key", "vllm serve MODEL --dtype auto --api-key token-abc123"),
    Shown("`--chat-template ./file.jinja`", "vllm serve MODEL --chat-template ./file.jinja"),
    Shown("`--chat-template-content-format`", "vllm serve MODEL --chat-template-content-format openai"),
    Shown("extra_headers x-request-id", "vllm serve MODEL --enable-request-id-headers"),
    Shown("`vllm serve facebook/opt-13b --tensor", "vllm serve MODEL --tensor-parallel-size 4"),
    Shown(
        "`vllm serve gpt2 --tensor-parallel-size 4 --pipeline",
        "vllm serve MODEL --tensor-parallel-size 4 --pipeline-parallel-size 2",
    ),
    Shown("`--tensor-parallel-size 16` over two nodes", "vllm serve MODEL --tensor-parallel-size 16"),
    Shown("VLLM_HOST_IP", "VLLM_HOST_IP=10.0.0.1 vllm serve MODEL"),
    Shown("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_WORKER_MULTIPROC_METHOD=spawn vllm serve MODEL"),
    Shown("VLLM_ATTENTION_BACKEND=FLASH_ATTN", "VLLM_ATTENTION_BACKEND=FLASH_ATTN vllm serve MODEL"),
    Shown(
        "docker pull / docker run -p 8000:8000",
        "JAXENGINE_HOST=0.0.0.0 python -m vllm.entrypoints.openai.api_server --model MODEL",
    ),
    Shown(
        "server example (7 flags",
        "python -m vllm.entrypoints.openai.api_server --model MODEL --host 0.0.0.0 --port 8000 --tensor-parallel-size 1 "
        "--max-model-len 4096 --gpu-memory-utilization 0.9 --max-num-seqs 256",
    ),
    Shown("TP 4 server", "python -m vllm.entrypoints.openai.api_server --model MODEL --tensor-parallel-size 4"),
    Shown(
        "TP 2 x PP 2 server",
        "python -m vllm.entrypoints.openai.api_server --model MODEL --tensor-parallel-size 2 --pipeline-parallel-size 2",
    ),
    Shown("AWQ server", "python -m vllm.entrypoints.openai.api_server --model MODEL --quantization awq"),
    Shown("GPTQ server", "python -m vllm.entrypoints.openai.api_server --model MODEL --quantization gptq"),
    Shown(
        "FP8 server + fp8 KV",
        "python -m vllm.entrypoints.openai.api_server --model MODEL --quantization fp8 --kv-cache-dtype fp8",
        later="kv_cache_dtype",
    ),
    Shown("speculative_model=", 'vllm serve MODEL --speculative-model "[ngram]" --num-speculative-tokens 5'),
    Shown(
        "tuning table (6 parameters)",
        "vllm serve MODEL --max-model-len 4096 --gpu-memory-utilization 0.9 --max-num-seqs 256 --max-num-batched-tokens 8192 "
        "--enable-prefix-caching --pipeline-parallel-size 1",
    ),
    Shown("Kubernetes Deployment + Service", "JAXENGINE_HOST=0.0.0.0 vllm serve MODEL --max-model-len 4096"),
    Shown("HF_ENDPOINT, token", "HF_ENDPOINT=http://127.0.0.1:1 vllm serve MODEL"),
    Shown("docker run ... --model Qwen2.5-72B", "vllm serve MODEL --max-model-len 102400"),
    Shown("VLLM_TORCH_PROFILER_DIR", "VLLM_TORCH_PROFILER_DIR=./traces vllm serve MODEL"),
    Shown(
        "benchmark_serving.py",
        "vllm bench serve --backend vllm --model MODEL --dataset-name sharegpt --dataset-path file.json --request-rate 10",
    ),
    Shown("--profile", "vllm bench serve --backend vllm --model MODEL --num-prompts 10 --profile"),
    Shown("chunked prefill on, budgets", "vllm serve MODEL --enable-chunked-prefill --max-num-batched-tokens 64"),
    Shown(
        "chunked prefill off",
        "vllm serve MODEL --enable-chunked-prefill=False --max-num-batched-tokens 102400",
    ),
    Shown("finding: budget must be >= max_num_seqs", "vllm serve MODEL --max-num-batched-tokens 32"),
)

PROMPTS = 'prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is"]\n'
PRINTED = """
for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
"""

EXAMPLES = (
    Shown(
        "`--generation-config DIR/auto`",
        'from vllm import LLM\nllm = LLM(model="MODEL", generation_config=None)\n'
        "sampling_params = llm.get_default_sampling_params()\nsampling_params.max_tokens = 5\n"
        'llm.generate("Hello", sampling_params)',
    ),
    Shown(
        "`LLM(model, enable_chunked_prefill=True)`", 'from vllm import LLM\nLLM("MODEL", enable_chunked_prefill=True)'
    ),
    Shown(
        "`LLM(model, enable_chunked_prefill=True, max_num",
        'from vllm import LLM\nLLM("MODEL", enable_chunked_prefill=True, max_num_batched_tokens=2048)',
    ),
    Shown("`disable_log_stats=False`", 'from vllm import LLM\nLLM("MODEL", disable_log_stats=False)'),
    Shown("PreemptionMode.SWAP", 'from vllm import LLM\nLLM("MODEL", preemption_mode="swap", swap_space=4)'),
    Shown(
        "advice: raise pipeline_parallel_size",
        'from vllm import LLM\nLLM("MODEL", pipeline_parallel_size=2)',
    ),
    Shown(
        "execution modes: compiled / eager",
        'from vllm import LLM\nLLM("MODEL", enforce_eager=True, block_size=128, device="cpu")',
    ),
    Shown(
        "`LLM(model=",
        "from vllm import LLM, SamplingParams\n"
        + PROMPTS
        + 'sampling_params = SamplingParams(temperature=0.8, top_p=0.95)\nllm = LLM(model="MODEL")\n'
        + "outputs = llm.generate(prompts, sampling_params)"
        + PRINTED,
    ),
    Shown("generative models: generate", 'from vllm import LLM\nLLM(model="MODEL", task="generate").generate("Hello")'),
    Shown(
        "pooling models: hidden states",
        'from vllm import LLM\nllm = LLM(model="MODEL", task="embed")\n[output] = llm.embed("Hello, my name is")\n'
        "print(len(output.outputs.embedding))",
    ),
    Shown(
        "missing or unknown `architectures`",
        'from vllm import LLM\nLLM(model="MODEL", revision=None, hf_overrides={"architectures": ["LlamaForCausalLM"]})',
    ),
    Shown("`LLM(granite, tensor", 'from vllm import LLM\nLLM(model="MODEL", tensor_parallel_size=2)'),
    Shown("`LLM(max_model_len=2048", 'from vllm import LLM\nLLM(model="MODEL", max_model_len=2048, max_num_seqs=2)'),
    Shown("dynamic quantisation", 'from vllm import LLM\nLLM(model="MODEL", quantization="fp8")'),
    Shown(
        '`LLM("facebook/opt-13b", tensor',
        'from vllm import LLM\nllm = LLM("MODEL", tensor_parallel_size=4)\noutput = llm.generate("San Franciso is a")',
    ),
    Shown(
        "multiprocessing or Ray",
        'from vllm import LLM\nLLM("MODEL", distributed_executor_backend="mp", worker_cls="auto")',
    ),
    Shown(
        "Python API example",
        "from vllm import LLM, SamplingParams\n"
        'llm = LLM(model="MODEL", tensor_parallel_size=1, gpu_memory_utilization=0.9, max_model_len=4096)\n'
        "sampling_params = SamplingParams(temperature=0.7, top_p=0.95, max_tokens=512)\n"
        + PROMPTS
        + "outputs = llm.generate(prompts, sampling_params)"
        + PRINTED,
    ),
    Shown(
        "long context: LLM(",
        'from vllm import LLM\nLLM(model="MODEL", max_model_len=128000, rope_scaling={"type": "dynamic", "factor": 4.0}, '
        "enable_prefix_caching=True)",
    ),
    Shown(
        "memory example",
        'from vllm import LLM\nLLM(model="MODEL", max_num_batched_tokens=4096, max_num_seqs=256, enable_prefix_caching=True)',
    ),
    Shown(
        "the same with attention_backend",
        'from vllm import LLM\nLLM(model="MODEL", max_num_batched_tokens=4096, attention_backend="flash_attn")',
    ),
    Shown(
        "SamplingParams(ignore_eos",
        "from vllm import SamplingParams\n"
        "SamplingParams(ignore_eos=True, max_tokens=1024, temperature=0.7, top_p=0.95, top_k=50)",
    ),
    Shown(
        "`AsyncLLMEngine.from_engine_args",
        "import asyncio\nfrom vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams\n"
        'engine_args = AsyncEngineArgs(model="MODEL", max_num_seqs=256)\n'
        "engine = AsyncLLMEngine.from_engine_args(engine_args, start_engine_loop=True)\n"
        "async def generate(prompt, request_id):\n"
        "    async for output in engine.generate(prompt, SamplingParams(max_tokens=5), request_id):\n"
        "        yield output.outputs[0].text\n"
        'async def main():\n    return [text async for text in generate("Hello", "1")]\nasyncio.run(main())',
    ),
    Shown(
        "speculative_model=",
        'from vllm import LLM\nLLM(model="MODEL", speculative_model="[ngram]", num_speculative_tokens=5)',
    ),
    Shown(
        "enable_prefix_caching=True + 3",
        "from vllm import LLM\n" + PROMPTS + 'LLM(model="MODEL", enable_prefix_caching=True).generate(prompts)',
    ),
    Shown(
        "OOM: 0.7, 2048, 128",
        'from vllm import LLM\nLLM(model="MODEL", gpu_memory_utilization=0.7, max_model_len=2048, max_num_seqs=128)',
    ),
    Shown(
        "throughput: 4096 / 512 / 0.95",
        'from vllm import LLM\nLLM("MODEL", max_num_batched_tokens=4096, max_num_seqs=512, gpu_memory_utilization=0.95)',
    ),
    Shown(
        "logging example",
        "import logging\nfrom vllm import LLM\n"
        'logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler()])\nLLM("MODEL")',
    ),
)

ELSEWHERE = {
    "`curl http://0.0.0.0:8000/metrics`": "test_started.py asks it",
    "OpenAI client example": "tests/integration/test_server.py asks through OpenAI's client",
}
"""Rows that show something else to run, and where that is done."""
