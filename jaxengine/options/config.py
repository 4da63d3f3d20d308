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
from jaxengine.options.cache import CacheConfig
from jaxengine.options.lora import LoraConfig
from jaxengine.options.media import MediaConfig
from jaxengine.options.option import Options, at_least, not_negative, option, positive
from jaxengine.options.parallel import ParallelConfig
from jaxengine.options.pooling import PoolerOptions, read_pooler_config
from jaxengine.options.speculation import DraftSpeculation, Speculation, read_speculative_config
from jaxengine.options.stages import refuse_with_stages
from jaxengine.options.transfer import read_transfer_config

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
LOAD_FORMATS = ("auto", "safetensors", "pt", "orbax", "gguf", "dummy")
LM_HEAD_DTYPES = ("auto", "int8", "int4", "int4_g32")
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
        "what the model is for: generate, pooling (embeddings, classes, scores, rewards, and nothing else), or auto, which goes "
        "by its files; embeddings of the last token work with both",
        choices=("auto", "generate", "pooling"),
        shapes=True,
    )
    convert: str = option(
        "auto",
        "what a model that was made for another task is to do: embed (embeddings, without its head) or classify (its head "
        "scores classes); generate, score and reward are older names of what runner and the files say",
        choices=("auto", "none", "generate", "embed", "embedding", "classify", "score", "reward"),
        aliases=("task",),
        shapes=True,
    )
    pooler_config: Mapping[str, Any] = option(
        {},
        "what is pooled and how, as JSON: pooling_type (LAST, CLS, MEAN; ALL, STEP: each token), use_activation (embeddings of "
        "length one, sigmoid or softmax of classes), dimensions, enable_chunked_processing with max_embed_len (long inputs in "
        "parts), logit_mean and logit_sigma, step_tag_id, returned_token_ids",
        aliases=("override_pooler_config",),
        shapes=True,
    )
    hf_overrides: Mapping[str, Any] = option({}, "keys to replace in config.json, as JSON", shapes=True)
    load_format: str = option(
        "auto",
        "where weights come from: safetensors, pt (pytorch_model.bin), orbax (jaxengine convert), gguf, auto for what is there; "
        "dummy is random weights",
        choices=LOAD_FORMATS,
        no_effect=dict.fromkeys(FASTER_LOADERS, "safetensors files are read in parallel as they are."),
    )
    dtype: str = option("auto", "activation and weight type; auto takes the checkpoint's", choices=DTYPES, shapes=True)
    quantization: str | None = option(
        None,
        "how matrices are kept and multiplied, made of a plain checkpoint while it loads: int8 (weights by output channel, "
        "activations by token), int4 (weights by groups of 128 inputs), int4_g32 (of 32) or fp8 (by output channel), with "
        "activations as they are; a checkpoint that is quantised (awq, gptq, compressed-tensors, fp8, modelopt) says it itself",
        aliases=("q",),
        shapes=True,
    )
    lm_head_dtype: str = option(
        "auto",
        "what the matrix of the vocabulary is kept in, whatever quantization says of layers: int8 (a scale for each token, "
        "hidden states rounded to int8), int4 or int4_g32 (as quantization has them, hidden states rounded to int8 by blocks on "
        "a CPU alone), made while it loads; with tied embeddings tokens are looked up in the same rows; or auto, which is as the "
        "checkpoint has it",
        choices=LM_HEAD_DTYPES,
        shapes=True,
    )
    code_weights: str = option(
        "auto",
        "on a CPU with AVX-512, keep matrices of bfloat16 in 12 bits a number, without loss: "
        "answers are the same to the last bit, and steps of few sequences, which wait for memory, read a quarter less; auto does "
        "so where max_num_seqs is 64 or less",
        choices=("auto", "always", "never"),
        shapes=True,
    )
    cpu_offload_gb: float = option(
        0.0,
        "GiB of each device's weights to keep in the host's memory, whole layers, which every step copies to a TPU; it means "
        "nothing on a CPU, whose memory is the host's, and is refused on GPUs",
        check=not_negative,
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
        read_pooler_config(self.pooler_config)
        pools = self.convert in ("embed", "embedding", "classify", "score", "reward")
        if (self.runner == "generate" and pools) or (self.runner, self.convert) == ("pooling", "generate"):
            raise ConfigError(f"runner {self.runner!r} and convert {self.convert!r} contradict each other; give one")

    @property
    def pooler(self) -> PoolerOptions:
        """What `pooler_config` asks for."""
        return read_pooler_config(self.pooler_config)

    @property
    def pools(self) -> bool | None:
        """Whether the model is to pool and not to generate, however it was asked for; None: its files decide."""
        if self.runner == "pooling" or self.convert in ("embed", "embedding", "classify", "score", "reward"):
            return True
        return False if "generate" in (self.runner, self.convert) else None

    @property
    def head(self) -> str | None:
        """What it is to do, `embed` or `classify`; None: its files decide."""
        return {"embed": "embed", "embedding": "embed", "classify": "classify"}.get(self.convert)


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
    scheduling_policy: str = option(
        "fcfs",
        "order of requests; fair: those first whose key or user (fair_share_by) was served least",
        choices=("fcfs", "priority", "fair"),
    )
    deterministic: bool = option(False, "a grid of one shape: results are bitwise equal under any load", shapes=True)
    async_scheduling: bool = option(
        True, "launch the next step before the result of the last is read; the outputs are the same without"
    )
    speculative_config: Mapping[str, Any] = option(
        {},
        'speculative decoding, as JSON: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, '
        '"prompt_lookup_min": 2} proposes what followed the last tokens before, {"method": "mtp", ...} what layers of the '
        'model for this say, {"method": "eagle3", "model": ...} what a draft says (draft_model, eagle, eagle3, dflash); '
        "outputs stay the same",
        shapes=True,
    )

    def __post_init__(self) -> None:
        read_speculative_config(self.speculative_config)

    @property
    def speculation(self) -> Speculation | None:
        """What `speculative_config` asks for."""
        return read_speculative_config(self.speculative_config)


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
    lora: LoraConfig = field(default_factory=LoraConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    compilation: CompileConfig = field(default_factory=CompileConfig)
    structured: StructuredConfig = field(default_factory=StructuredConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)

    def __post_init__(self) -> None:
        self._check_hosts()
        self._check_stages()
        transfer = read_transfer_config(self.cache.kv_transfer_config)
        if transfer is not None and transfer.serves and len(self.parallel.ranks) > 1:
            raise ConfigError(
                f"kv_transfer_config: an engine that serves pages is found by its address, and data_parallel_size="
                f"{self.parallel.data_parallel_size} starts several behind one server. Start a server for each, with "
                "data_parallel_rank and a kv_port of its own"
            )

    def _check_stages(self) -> None:
        """Accept options that are built for several stages."""
        cache, speculation = self.cache, self.scheduler.speculation
        refuse_with_stages(
            self.parallel.pipeline_parallel_size,
            {
                "enable_lora": self.lora.enable_lora,
                "cpu_offload_gb": self.model.cpu_offload_gb > 0,
                "kv_offloading_size": cache.kv_offloading_size is not None,
                "kv_offloading_directory and kv_transfer_config": cache.has_outer,
                "speculative_config of drafts that the device makes": isinstance(speculation, DraftSpeculation),
            },
        )

    def _check_hosts(self) -> None:
        """Accept options that hosts which share an engine can do alike."""
        hosts = self.parallel.nnodes
        if hosts == 1:
            return
        if self.cache.has_outer:
            raise ConfigError(
                f"kv_offloading_directory and kv_transfer_config are not built for nnodes={hosts}: each host holds a part of "
                "every page. kv_offloading_size works; or leave them out"
            )
        if self.compilation.warmup_mode == "background":
            raise ConfigError(
                f"warmup background is not built for nnodes={hosts}: hosts would have different programs meanwhile. Use "
                "warmup full"
            )
