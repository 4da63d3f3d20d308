"""Every option of the engine: frozen, composed of small groups, complete, with vLLM's names where the meaning is the same.

The command line is generated from here. `EngineConfig.from_options(**options)` takes the flat names. "auto" (None) values are
resolved into new objects by `startup/build.py`, never written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from buckets import PLANNERS
from jaxengine.errors import ConfigError
from jaxengine.options.option import Options, at_least, fraction, option, positive
from jaxengine.options.speculation import NgramSpeculation, read_speculative_config

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
LOAD_FORMATS = ("auto", "safetensors", "pt", "orbax", "dummy")
DEVICES = ("auto", "cpu", "gpu", "cuda", "tpu")
LM_HEAD_DTYPES = ("auto", "int8")
KV_CACHE_DTYPES = ("auto", "bfloat16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2")
FASTER_LOADERS = ("fastsafetensors", "instanttensor", "runai_streamer")
GPU_BACKENDS = (
    "FLASH_ATTN",
    "FLASH_ATTN_VLLM_V1",
    "FLASHINFER",
    "FLASHINFER_VLLM_V1",
    "TRITON_ATTN",
    "TRITON_ATTN_VLLM_V1",
    "XFORMERS",
    "FLEX_ATTENTION",
    "TREE_ATTN",
    "ROCM_FLASH",
    "ROCM_ATTN",
    "ROCM_AITER_FA",
    "TORCH_SDPA",
    "CPU_ATTN",
    "PALLAS",
    "PALLAS_VLLM_V1",
)
"""vLLM's names of what computes attention, on one device or another; lower case does too."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, from where, in which precision."""

    model: str | None = option(None, "checkpoint directory or hub id; the embedded model when left out")
    tokenizer: str | None = option(None, "tokenizer directory or hub id; the model's own when left out")
    skip_tokenizer_init: bool = option(False, "work on token ids only")
    revision: str | None = option(None, "hub branch, tag or commit of the model")
    tokenizer_revision: str | None = option(None, "hub branch, tag or commit of the tokenizer")
    hf_token: str | None = option(None, "hub access token (default: HF_TOKEN or the saved login)")
    download_dir: str | None = option(None, "hub cache directory (default: HF_HOME)")
    runner: str = option(
        "auto",
        "what the model is for: generate, pooling (embeddings and nothing else), or auto, which goes by its files; "
        "embeddings work with both",
        choices=("auto", "generate", "pooling"),
        shapes=True,
    )
    convert: str = option(
        "auto",
        "vLLM's other way to ask for runner pooling: embed",
        choices=("auto", "none", "generate", "embed", "embedding"),
        aliases=("task",),
        shapes=True,
    )
    hf_overrides: Mapping[str, Any] = option({}, "keys to replace in config.json, as JSON", shapes=True)
    load_format: str = option(
        "auto",
        "where weights come from: safetensors, pt (pytorch_model.bin), orbax (jaxengine convert), auto for what is there; "
        "dummy is random weights",
        choices=LOAD_FORMATS,
        no_effect=dict.fromkeys(FASTER_LOADERS, "safetensors files are read in parallel as they are."),
    )
    dtype: str = option("auto", "activation and weight type; auto takes the checkpoint's", choices=DTYPES, shapes=True)
    quantization: str | None = option(
        None,
        "how matrices are kept and multiplied, made of a plain checkpoint while it loads: int8 (weights by output channel, "
        "activations by token), int4 (weights by groups of 128 inputs) or fp8 (by output channel), both with activations as they "
        "are; a checkpoint that is quantised (awq, gptq, compressed-tensors, fp8, modelopt) says it itself",
        aliases=("q",),
        shapes=True,
    )
    lm_head_dtype: str = option(
        "auto",
        "what the matrix of the vocabulary is kept in, whatever quantization says of layers: int8 (a scale for each token, "
        "hidden states rounded to int8, made while it loads; with tied embeddings tokens are looked up in the same int8 rows), "
        "or auto, which is as the checkpoint has it",
        choices=LM_HEAD_DTYPES,
        shapes=True,
    )
    max_model_len: int | str | None = option(
        None,
        "longest prompt plus output, in tokens; 1k is 1000, 1K is 1024, auto or -1 the most of the model's that fits memory "
        "(default: the same, up to 131072, and on a CPU what 4 GiB hold)",
        shapes=True,
    )
    seed: int = option(0, "seed of requests that name none, and of dummy weights", check=at_least(0))
    max_logprobs: int = option(
        20, "most log probabilities a request may ask for; -1 is no limit", check=at_least(-1), shapes=True
    )
    generation_config: str = option("auto", "default sampling: auto (the model's file), vllm (none), or a directory")
    override_generation_config: Mapping[str, Any] = option({}, "keys to replace in generation_config.json, as JSON")
    chat_template: str | None = option(None, "jinja chat template: a file, or the text itself")

    def __post_init__(self) -> None:
        if (self.runner, self.convert) in {("generate", "embed"), ("generate", "embedding"), ("pooling", "generate")}:
            raise ConfigError(f"runner {self.runner!r} and convert {self.convert!r} contradict each other; give one")

    @property
    def only_embeds(self) -> bool | None:
        """Whether the model is for embeddings and nothing else, however it was asked for; None: its files decide."""
        if self.runner == "pooling" or self.convert in ("embed", "embedding"):
            return True
        return False if "generate" in (self.runner, self.convert) else None


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    page_size: int | None = option(
        None,
        "tokens per page, a power of two (default by target)",
        aliases=("block_size",),
        check=at_least(1),
        shapes=True,
    )
    memory_utilization: float = option(
        0.9,
        "share of device memory for weights, workspace and KV pages",
        aliases=("gpu_memory_utilization", "device_memory_utilization"),
        check=fraction,
    )
    kv_cache_memory_bytes: int | None = option(None, "exact size of the KV pool per device", check=at_least(1))
    num_pages: int | None = option(
        None,
        "exact number of KV pages, of all pools together where layers' pages differ in shape",
        aliases=("num_gpu_blocks_override",),
        check=at_least(2),
        shapes=True,
    )
    kv_cache_dtype: str = option(
        "auto",
        "what keys and values are kept in: int8, fp8 (which is fp8_e4m3), fp8_e5m2, bfloat16, or auto, which is what the "
        "checkpoint says of its cache, or else the model's dtype; scales are the checkpoint's, else 1 for fp8 and measured "
        "at the start for int8",
        choices=KV_CACHE_DTYPES,
        shapes=True,
    )
    calculate_kv_scales: bool = option(
        False, "measure the scales of an fp8 cache at the start too, where the checkpoint has none"
    )
    enable_prefix_caching: bool = option(True, "reuse the pages of equal prompt prefixes")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Which requests run in a step."""

    max_num_seqs: int | None = option(
        None,
        "most sequences running at once (default by device; no more than max_num_batched_tokens or explicit buckets hold)",
        check=at_least(1),
        shapes=True,
    )
    max_num_batched_tokens: int | None = option(
        None, "most tokens computed in one step", check=at_least(1), shapes=True
    )
    long_prefill_token_threshold: int = option(
        0, "most prompt tokens one request may take of a step when others wait; 0 is no limit", check=at_least(0)
    )
    scheduling_policy: str = option("fcfs", "order of requests", choices=("fcfs", "priority"))
    deterministic: bool = option(False, "a grid of one shape: results are bitwise equal under any load", shapes=True)
    async_scheduling: bool = option(
        True, "launch the next step before the result of the last is read; the outputs are the same without"
    )
    speculative_config: Mapping[str, Any] = option(
        {},
        'speculative decoding, as JSON: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, '
        '"prompt_lookup_min": 2} proposes what followed the last tokens before; outputs stay the same',
        shapes=True,
    )

    def __post_init__(self) -> None:
        read_speculative_config(self.speculative_config)

    @property
    def speculation(self) -> NgramSpeculation | None:
        """What `speculative_config` asks for."""
        return read_speculative_config(self.speculative_config)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Which devices the model runs on, and how it is spread over them."""

    device: str = option("auto", "kind of device; auto is the best that JAX finds", choices=DEVICES)
    tensor_parallel_size: int = option(
        1, "devices that share every layer", aliases=("tp",), check=at_least(1), shapes=True
    )
    enable_expert_parallel: bool = option(
        False,
        "give each of these devices whole experts of a mixture, and not a part of each; on a TPU also without it where such "
        "a part is no multiple of 128 channels",
        aliases=("ep",),
        shapes=True,
    )


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Which programs exist and how they are built."""

    bucket_planner: str = option(
        "tokens",
        "how shapes are planned; linear and exponential are those of Gaudi's documents, filled with rows of any length as all "
        "are, and not padded to the longest prompt",
        choices=tuple(PLANNERS),
        shapes=True,
    )
    prefill_batch_range: tuple[int, ...] | None = option(
        None, "min,step,max of the linear planner, or min,step,max,count of exponential", shapes=True
    )
    prefill_seq_range: tuple[int, ...] | None = option(None, "as prefill_batch_range, for tokens per row", shapes=True)
    decode_batch_range: tuple[int, ...] | None = option(None, "as prefill_batch_range, for decode rows", shapes=True)
    buckets: tuple[str, ...] | None = option(
        None,
        "explicit planner: BATCHxSEQ items such as 4x128 8x1: so many rows, and batch x seq tokens that they share",
        shapes=True,
    )
    attention_backend: str = option(
        "auto",
        "paged attention implementation: auto, or one that jaxengine doctor lists",
        no_effect=dict.fromkeys(
            (*GPU_BACKENDS, *map(str.lower, GPU_BACKENDS)), "the kernels for a device are chosen with it."
        ),
        shapes=True,
    )
    compile_threads: int | None = option(None, "programs compiled at once (default: cores)", check=at_least(1))
    warmup: str | None = option(
        None,
        "full (default): every program is ready before the first request; background: those of one shape are, through which all "
        "work goes while the rest is compiled; none: compile on first use, with a warning each time",
        choices=("full", "background", "none"),
    )
    xla_cache_path: str | None = option(
        None,
        "where compiled programs are kept, for the next start; off keeps none "
        "(default: JAXENGINE_CACHE_DIR, or jaxengine in the user's cache directory)",
    )
    bundle: str | None = option(
        None, "programs compiled elsewhere: a directory or file of jaxengine compile; its options are taken over"
    )
    bundle_policy: str = option(
        "require",
        "when a bundle does not fit, is damaged or lacks a program: require refuses to start, prefer warns and compiles",
        choices=("require", "prefer"),
    )
    bundle_key: str | None = option(None, "ed25519 public key (PEM) that must have signed the bundle")
    skip_warmup: bool = option(False, "the same as warmup none", aliases=("enforce_eager",))
    compile_guard: str = option(
        "warn", "what a program does that compiles during a step: stop the engine, or warn", choices=("error", "warn")
    )

    def __post_init__(self) -> None:
        if self.skip_warmup and self.warmup not in (None, "none"):
            raise ConfigError(
                f"skip_warmup (enforce_eager) means warmup none, got warmup {self.warmup!r} too; give one"
            )

    @property
    def warmup_mode(self) -> str:
        """`full`, `background` or `none`, however it was asked for."""
        return "none" if self.skip_warmup else self.warmup or "full"


@dataclass(frozen=True, kw_only=True)
class StructuredConfig:
    """Structured output: what the grammar of one request may cost."""

    max_grammar_bytes: int = option(128 * 1024, "largest schema or grammar of a request", check=at_least(1))
    grammar_timeout: float = option(5.0, "seconds that the grammar of a request may take to compile", check=positive)


@dataclass(frozen=True, kw_only=True)
class ObservabilityConfig:
    """What the engine writes down about its work."""

    record_traffic: str | None = option(
        None, "file to append a line of JSON to for each finished request: arrival and numbers of tokens, no text"
    )
    profile: str | None = option(
        None,
        "directory for the traces of LLM.start_profile and /start_profile (TensorBoard, xprof, Perfetto); off without",
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Options):
    """All options of one engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compilation: CompileConfig = field(default_factory=CompileConfig)
    structured: StructuredConfig = field(default_factory=StructuredConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
