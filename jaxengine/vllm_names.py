"""vLLM's names that are no options here, today's and former ones: what becomes of each, in one table.

A name that is known is never "unknown". A value that asks for what is done anyway passes; so does None, which is a name that
is not given. Any other value becomes an option of ours, or has no effect that could be seen in an answer and is noted in the log,
or is refused with what there is instead. The options that do exist are declared in `config.py` and `server/options.py`, vLLM's
names among their own; the command line and `examples/options.md` are made from both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxengine.errors import ConfigError, nearest

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True, slots=True)
class Name:
    """What becomes of a name.

    `says` is a sentence: what there is instead, or why there is nothing to choose. `neutral` are values that ask for what is done
    anyway. Others become options (`becomes`), or are `moot`: noted and left. Where neither is said they are refused. The type of
    the first neutral value says how the command line reads it: a flag, several words (a list), or one.
    """

    says: str
    neutral: tuple[Any, ...] = ()
    moot: bool = False
    becomes: Callable[[Any], Mapping[str, Any]] | None = None
    short: str | None = None

    @property
    def fate(self) -> str:
        """In a word or two, for readers."""
        if self.becomes is not None:
            return "read as"
        return "no effect" if self.moot else "refused"

    @property
    def is_flag(self) -> bool:
        """Whether the command line takes it without a value."""
        return bool(self.neutral) and isinstance(self.neutral[0], bool)

    @property
    def is_list(self) -> bool:
        """Whether the command line takes several words."""
        return bool(self.neutral) and isinstance(self.neutral[0], list)

    def options(self, name: str, value: Any) -> Mapping[str, Any]:
        """The options that a value stands for, often none.

        Raises:
            ConfigError: it asks for what is not built.
        """
        if value is None or _word(value) in {"none", *map(_word, self.neutral)}:
            return {}
        if self.becomes is not None:
            return self.becomes(value)
        if not self.moot:
            raise ConfigError(f"{name}={value!r} is refused: {self.says}")
        logger.warning("%s=%r has no effect: %s", name, value, self.says)
        return {}


def _word(value: Any) -> str:
    """A value as it would be written: 0, 0.0 and "0" are one, as are true and True, and whatever is empty."""
    if isinstance(value, (list, tuple, set, Mapping)):
        return json.dumps(value, default=str) if value else ""
    text = str(value).strip().lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return "" if text in ("{}", "[]") else text


def _rows(says: str, *, moot: bool, neutral: Mapping[str, Any]) -> Iterator[tuple[str, Name]]:
    for name, values in neutral.items():
        yield name, Name(says, values if isinstance(values, tuple) else (values,), moot)


def _refused(says: str, **neutral: Any) -> Iterator[tuple[str, Name]]:
    """Names of which other values than `neutral` ask for what is not built."""
    return _rows(says, moot=False, neutral=neutral)


def _moot(says: str, **neutral: Any) -> Iterator[tuple[str, Name]]:
    """Names that have nothing to act on, whatever their value."""
    return _rows(says, moot=True, neutral=neutral)


def _same_as(option: str) -> Callable[[Any], Mapping[str, Any]]:
    """Another name of an option."""
    return lambda value: {option: value}


def _set(option: str, setting: Any) -> Callable[[Any], Mapping[str, Any]]:
    """A flag that gives an option one certain value."""
    return lambda _: {option: setting}


def _key_of(option: str, key: str) -> Callable[[Any], Mapping[str, Any]]:
    """A value that is one key of an option that maps names to values. The command line leaves JSON and numbers as text."""

    def become(value: Any) -> Mapping[str, Any]:
        try:
            read = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError:
            read = value
        return {option: {key: read}}

    return become


def _structured_outputs(value: Any) -> Mapping[str, Any]:
    given = as_mapping("structured_outputs_config", value)
    if others := sorted(given.keys() - {"backend", "disable_fallback", "reasoning_parser"}):
        raise ConfigError(
            f"structured_outputs_config: {', '.join(others)} is refused: requests say such things of their own grammar"
        )
    parser = given.get("reasoning_parser")
    return {"reasoning_parser": parser} if parser else {}


def _profiler(value: Any) -> Mapping[str, Any]:
    given = as_mapping("profiler_config", value)
    return {"profile": given["torch_profiler_dir"]} if given.get("torch_profiler_dir") else {}


_NGRAM = "Drafts come from prompt lookup: speculative_config={'method': 'ngram', 'num_speculative_tokens': 4}."
_DRAFT_MODEL = "A draft model is not built; prompt lookup needs none of this."
_LORA = "LoRA is not built yet."
_ADAPTERS = "Prompt adapters are gone from vLLM too."
_TEXT = "Only text models are built."
_REPLICAS = "Start one server per replica, behind a balancer."
_HOSTS = "One process drives the devices of one host; several hosts are not built yet."
_OFFLOAD = "Weights and KV pages stay on the device; use a smaller dtype, quantization='int8' or more devices."
_SHAPES = "Programs have planned shapes: see bucket_planner, and `jaxengine plan`."
_KERNELS = "The kernels for a device are chosen with it."
_XLA = "XLA owns the collectives."
_TRACES = "Tracing is not built; /metrics and enable_log_requests show requests."
_POOLING = "The last token is pooled; each request says whether to normalize, and its dimensions."
_OFFLINE = "It is an option of the server."

NAMES: Mapping[str, Name] = dict(
    [
        # the model and its files
        *_moot("No code from a model repository is run.", trust_remote_code=False, code_revision=""),
        *_refused(
            "Only tokenizer.json, or what transformers makes one of, is read.", tokenizer_mode=("auto", "hf", "fast")
        ),
        *_refused("config.json is read from the model's directory; hf_overrides replaces its keys.", hf_config_path=""),
        *_refused("Only config.json in Hugging Face's format is read.", config_format=("auto", "hf")),
        *_refused("There is one implementation of each architecture.", model_impl=("auto", "vllm")),
        *_refused("There are no options of a loader.", model_loader_extra_config={}),
        *_moot("Only the files that a model needs are fetched.", ignore_patterns=[]),
        *_moot("A start writes a line per phase.", use_tqdm_on_load=True),
        *_moot(
            "Weights are read piece by piece and placed at once.",
            max_parallel_loading_workers=1,
            pt_load_map_location="cpu",
            safetensors_load_strategy="lazy",
        ),
        (
            "rope_scaling",
            Name(
                "A key of config.json: hf_overrides={'rope_scaling': ...}.",
                ({},),
                becomes=_key_of("hf_overrides", "rope_scaling"),
            ),
        ),
        (
            "rope_theta",
            Name(
                "A key of config.json: hf_overrides={'rope_theta': ...}.", becomes=_key_of("hf_overrides", "rope_theta")
            ),
        ),
        *_refused(
            "quantization='int8', 'int4' or 'fp8', or what config.json says of a quantised checkpoint (hf_overrides changes it).",
            quantization_config={},
            qlora_adapter_name_or_path="",
        ),
        *_moot("Checkpoints are read or refused by their format alone.", allow_deprecated_quantization=False),
        *_refused("Attention has the model's dtype.", override_attention_dtype=""),
        *_refused("The caches of all layers have one dtype, kv_cache_dtype.", kv_cache_dtype_skip_layers=[]),
        *_refused("Sliding windows are part of the model.", disable_sliding_window=False),
        *_refused(_POOLING, pooler_config={}, override_pooler_config={}),
        *_refused("Prompts are text or token ids.", enable_prompt_embeds=False),
        *_refused("Log probabilities are those of the model, before sampling options.", logprobs_mode="raw_logprobs"),
        *_refused(
            "Python callbacks cannot run inside a compiled program; use logit_bias, bad_words or allowed_token_ids.",
            logits_processors=[],
            logits_processor_pattern="",
        ),
        *_refused(
            "Nothing beside tokens and log probabilities is returned.",
            enable_return_routed_experts=False,
            return_sampling_mask=False,
        ),
        *_refused("Plugins are not loaded.", io_processor_plugin="", additional_config={}, override_neuron_config={}),
        # images, sound
        *_moot(
            _TEXT,
            limit_mm_per_prompt={},
            language_model_only=False,
            allowed_local_media_path="",
            allowed_media_domains=[],
            disable_mm_preprocessor_cache=False,
            mm_processor_cache_gb=4,
            mm_processor_cache_type="lru",
            mm_shm_cache_max_object_size_mb=128,
            mm_encoder_tp_mode="weights",
            mm_encoder_attn_backend="",
            mm_encoder_attn_dtype="",
            mm_tensor_ipc="",
            media_io_kwargs={},
            interleave_mm_strings=False,
            skip_mm_profiling=False,
            disable_chunked_mm_input=False,
            enable_mm_processor_stats=False,
        ),
        *_refused(
            _TEXT,
            mm_processor_kwargs={},
            enable_mm_embeds=False,
            mm_encoder_only=False,
            mm_encoder_fp8_scale_path="",
            mm_encoder_fp8_scale_save_path="",
            mm_encoder_fp8_scale_save_margin="",
            video_pruning_rate=0,
        ),
        # adapters
        *_refused(
            _LORA,
            enable_lora=False,
            max_loras=1,
            max_lora_rank=16,
            max_cpu_loras="",
            lora_dtype="auto",
            lora_modules=[],
            lora_target_modules=[],
            default_mm_loras={},
            fully_sharded_loras=False,
            enable_lora_bias=False,
            lora_extra_vocab_size=256,
            long_lora_scaling_factors="",
            enable_tower_connector_lora=False,
            specialize_active_lora=False,
        ),
        *_refused(
            _ADAPTERS,
            enable_prompt_adapter=False,
            prompt_adapters=[],
            max_prompt_adapters=1,
            max_prompt_adapter_token=0,
        ),
        # devices
        (
            "pipeline_parallel_size",
            Name("Layers are not split over devices; use tensor_parallel_size.", (1,), short="pp"),
        ),
        ("data_parallel_size", Name(_REPLICAS, (1,), short="dp")),
        ("data_parallel_rank", Name(_REPLICAS, (0,), short="dpn")),
        ("data_parallel_start_rank", Name(_REPLICAS, (0,), short="dpr")),
        ("data_parallel_size_local", Name(_REPLICAS, (1,), short="dpl")),
        ("data_parallel_address", Name(_REPLICAS, ("127.0.0.1",), short="dpa")),
        ("data_parallel_rpc_port", Name(_REPLICAS, ("",), short="dpp")),
        ("data_parallel_backend", Name(_REPLICAS, ("mp",), short="dpb")),
        ("data_parallel_hybrid_lb", Name(_REPLICAS, (False,), short="dph")),
        ("data_parallel_external_lb", Name(_REPLICAS, (False,), short="dpe")),
        ("api_server_count", Name(_REPLICAS, (1,), short="asc")),
        ("nnodes", Name(_HOSTS, (1,), short="n")),
        ("node_rank", Name(_HOSTS, (0,), short="r")),
        *_refused(_HOSTS, master_addr="127.0.0.1", master_port=29501, headless=False, distributed_timeout_seconds=""),
        *_refused(
            _HOSTS, distributed_executor_backend=("mp", "uni"), ray_workers_use_nsight=False, worker_use_ray=False
        ),
        *_refused(_REPLICAS, data_parallel_supervisor_port=9256, dp_supervisor_probe_interval_s=5),
        *_refused(_REPLICAS, dp_supervisor_probe_timeout_s=5, dp_supervisor_probe_failure_threshold=3),
        *_refused("Use CUDA_VISIBLE_DEVICES or TPU_VISIBLE_CHIPS.", device_ids=""),
        ("decode_context_parallel_size", Name("A sequence is not split over devices.", (1,), short="dcp")),
        ("prefill_context_parallel_size", Name("A sequence is not split over devices.", (1,), short="pcp")),
        *_moot(
            "A sequence is not split over devices.",
            dcp_kv_cache_interleave_size=1,
            cp_kv_cache_interleave_size=1,
            dcp_comm_backend="",
        ),
        *_refused("Experts stay where they are.", enable_eplb=False, eplb_config={}, enable_elastic_ep=False),
        *_moot("Experts stay where they are.", enable_ep_weight_filter=False, expert_placement_strategy="linear"),
        *_moot(_XLA, disable_custom_all_reduce=False, all2all_backend="", disable_nccl_for_dp_synchronization=False),
        *_moot("Steps are launched ahead of their results: see async_scheduling.", enable_dbo=False, ubatch_size=0),
        *_moot("Steps are launched ahead of their results: see async_scheduling.", dbo_decode_token_threshold=32),
        *_moot("Steps are launched ahead of their results: see async_scheduling.", dbo_prefill_token_threshold=512),
        *_moot("Processes are bound by whoever starts them.", numa_bind=False, numa_bind_nodes=[], numa_bind_cpus=[]),
        *_refused(
            "There is one kind of worker and of scheduler.",
            worker_cls="auto",
            worker_extension_cls="",
            scheduler_cls="",
        ),
        # memory
        *_moot("Preempted requests are recomputed, never swapped.", swap_space=4, preemption_mode="recompute"),
        *_refused(
            _OFFLOAD,
            cpu_offload_gb=0,
            cpu_offload_params=[],
            offload_backend="auto",
            offload_group_size=0,
            offload_num_in_group=1,
            offload_prefetch_step=1,
            offload_params=[],
            kv_offloading_size="",
            kv_offloading_backend="native",
        ),
        *_refused("Close the LLM to free the device.", enable_sleep_mode=False),
        *_refused(
            "The KV cache is not shared between engines.",
            kv_transfer_config={},
            kv_events_config={},
            ec_transfer_config={},
        ),
        *_refused("Weights are loaded once.", weight_transfer_config={}),
        *_moot("Prefixes are told apart by a strong hash.", prefix_caching_hash_algo="sha256"),
        *_moot(
            "There is one page ledger.",
            use_v2_block_manager=True,
            num_lookahead_slots=0,
            disable_hybrid_kv_cache_manager=False,
        ),
        *_moot("A request begins when its first step has room.", scheduler_reserve_full_isl=True, watermark=0),
        # steps and programs
        *_moot(
            "Prompts are always cut where a step is full; bound it with max_num_batched_tokens.",
            enable_chunked_prefill=True,
        ),
        *_moot(
            "Prompts share a step as its tokens allow; see long_prefill_token_threshold.",
            max_num_partial_prefills=1,
            max_long_partial_prefills=1,
            scheduler_delay_factor=0,
        ),
        *_moot(
            "One step at a time is scheduled; see async_scheduling.",
            num_scheduler_steps=1,
            disable_async_output_proc=False,
        ),
        *_moot("Every step's tokens are sent.", multi_step_stream_outputs=True, stream_interval=1),
        *_moot(
            _SHAPES,
            max_seq_len_to_capture=8192,
            max_context_len_to_capture=8192,
            cudagraph_capture_sizes=[],
            max_cudagraph_capture_size="",
        ),
        *_moot(_SHAPES, performance_mode="balanced", cudagraph_metrics=False),
        ("compilation_config", Name(_SHAPES, ({},), moot=True, short="cc")),
        ("optimization_level", Name(_SHAPES, (2,), moot=True, short="O")),
        ("attention_config", Name(_KERNELS, ({},), moot=True, short="ac")),
        *_moot(
            _KERNELS, kernel_config={}, moe_backend="auto", enable_flashinfer_autotune=True, disable_cascade_attn=False
        ),
        *_moot(_KERNELS, gdn_prefill_backend="", kv_sharing_fast_prefill=False, ir_op_priority={}),
        *_moot(
            "No model with state-space layers is built.",
            mamba_config={},
            mamba_backend="triton",
            mamba_block_size="",
            mamba_cache_dtype="auto",
            mamba_ssm_cache_dtype="auto",
            mamba_cache_mode="none",
            mamba_cache_philox_rounds=0,
            enable_mamba_cache_stochastic_rounding=False,
        ),
        ("jit_monitor_mode", Name("The same as compile_guard.", becomes=_same_as("compile_guard"))),
        # drafts
        *(
            (name, Name(_NGRAM, becomes=_key_of("speculative_config", key)))
            for name, key in {
                "speculative_model": "model",
                "spec_model": "model",
                "spec_method": "method",
                "num_speculative_tokens": "num_speculative_tokens",
                "spec_tokens": "num_speculative_tokens",
                "ngram_prompt_lookup_max": "prompt_lookup_max",
                "ngram_prompt_lookup_min": "prompt_lookup_min",
            }.items()
        ),
        *_refused(
            _DRAFT_MODEL,
            speculative_model_quantization="",
            speculative_draft_tensor_parallel_size=1,
            speculative_max_model_len="",
            speculative_disable_mqa_scorer=False,
        ),
        *_refused("Drafts are made for every batch.", speculative_disable_by_batch_size=""),
        *_refused(
            "Outputs are those without drafts.",
            spec_decoding_acceptance_method="rejection_sampler",
            typical_acceptance_sampler_posterior_threshold="",
            typical_acceptance_sampler_posterior_alpha="",
        ),
        *_moot("Log probabilities are given whenever they are asked for.", disable_logprobs_during_spec_decoding=False),
        # structured output and reasoning
        (
            "structured_outputs_config",
            Name("There is one implementation, llguidance.", ({},), becomes=_structured_outputs),
        ),
        *_moot(
            "There is one implementation, llguidance.",
            guided_decoding_backend="auto",
            guided_decoding_disable_fallback=False,
        ),
        *_refused(
            "Requests say so of their own grammar.",
            guided_decoding_disable_any_whitespace=False,
            guided_decoding_disable_additional_properties=False,
        ),
        *_moot("reasoning_parser alone decides.", enable_reasoning=False),
        *_refused("Reasoning budgets are not built yet.", reasoning_config={}),
        *_refused(
            "Parsers are chosen with tool_call_parser and reasoning_parser.",
            tool_parser_plugin="",
            reasoning_parser_plugin="",
        ),
        # what is logged and measured
        (
            "disable_log_stats",
            Name(
                "The same as log_stats_interval=0; /metrics always works.",
                (False,),
                becomes=_set("log_stats_interval", 0),
            ),
        ),
        ("disable_log_requests", Name("Requests are not logged unless enable_log_requests is given.", (True, False))),
        ("disable_uvicorn_access_log", Name("The same as no_access_log.", (False,), becomes=_set("access_log", False))),
        *_refused("Use no_access_log.", disable_access_log_for_endpoints=""),
        *_refused("Use Python's logging: the logger is `jaxengine`.", log_config_file=""),
        *_refused("Only prompts and parameters are logged: enable_log_requests.", enable_log_outputs=False),
        *_moot("Outputs are not logged.", enable_log_deltas=True),
        *_moot("An internal error is always logged with its place.", log_error_stack=False),
        *_moot("Former names of metrics are always served.", show_hidden_metrics_for_version=""),
        *_moot("There is one engine.", aggregate_engine_logging=False),
        *_refused(
            _TRACES,
            otlp_traces_endpoint="",
            collect_detailed_traces=[],
            enable_layerwise_nvtx_tracing=False,
        ),
        ("profiler_config", Name("profile=DIR writes traces there.", ({},), becomes=_profiler)),
        *_refused(
            "/metrics shows what is measured.",
            kv_cache_metrics=False,
            kv_cache_metrics_sample=0.01,
            enable_mfu_metrics=False,
            enable_logging_iteration_details=False,
            enable_per_request_metrics=False,
            custom_histogram_buckets={},
        ),
        # the server
        ("disable_frontend_multiprocessing", Name("The server is one process.", (True, False))),
        *_moot(
            "Tokenisation has threads of its own.",
            tokenizer_pool_size=0,
            tokenizer_pool_type="ray",
            tokenizer_pool_extra_config={},
        ),
        *_moot("Tokenisation has threads of its own.", renderer_num_workers=1),
        *_moot(
            "/load and /tokenizer_info always work.",
            enable_server_load_tracking=True,
            enable_tokenizer_info_endpoint=True,
        ),
        *_moot(
            "Bodies are bounded by max_body_bytes, headers by the server.",
            h11_max_incomplete_event_size=4194304,
            h11_max_header_count=256,
        ),
        *_refused("Middleware of your own is not built; put a proxy in front.", middleware=[]),
        *_refused("The server makes no outbound requests; tools run in the client.", tool_server=""),
        *_refused("TLS beyond a key and a certificate is a proxy's work.", enable_ssl_refresh=False, ssl_ciphers=""),
        *_refused("/docs loads its scripts from the network.", enable_offline_docs=False),
        *_refused("The fingerprint is one of version and options.", fingerprint_mode="full", fingerprint_value=""),
        *_refused("All endpoints are served.", tokens_only=False),
        *_refused("Arguments of strict tools are held to their schema, others are not.", tool_strict_level=""),
        *_moot("Cohere's API is not served.", cohere_is_reasoning_model=True, cohere_format="cmd4"),
        *_moot("Scores of late interaction are not built.", enable_flash_late_interaction=True),
        *_moot("Variables that mean nothing here are named in the log.", fail_on_environ_validation=False),
        # arguments of vLLM's engine that are the server's here
        *_moot(
            _OFFLINE,
            served_model_name="",
            reasoning_parser="",
            enable_log_requests=False,
            max_log_len="",
            log_stats_interval=0,
            shutdown_timeout=0,
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class Variable:
    """What becomes of an environment variable of vLLM's: options, or a line in the log that `says` why none."""

    says: str
    becomes: Callable[[str], Mapping[str, Any]] | None = None


def _if_true(option: str, setting: Any) -> Callable[[str], Mapping[str, Any]]:
    return lambda text: {option: setting} if text.strip().lower() in ("1", "true", "yes", "on") else {}


_RANGES = {
    "PROMPT_BS": "bucket_planner=linear with prefill_batch_range=MIN,STEP,MAX",
    "PROMPT_SEQ": "bucket_planner=linear with prefill_seq_range=MIN,STEP,MAX",
    "DECODE_BS": "bucket_planner=linear with decode_batch_range=MIN,STEP,MAX",
}
_HOST_GRAPHS = "Memory and order of programs follow from their shapes: see bucket_planner."

VARIABLES: Mapping[str, Variable] = {
    "VLLM_API_KEY": Variable("The same as api_key.", lambda _: {}),
    "VLLM_SKIP_WARMUP": Variable("The same as warmup=none.", _if_true("warmup", "none")),
    "VLLM_XLA_CACHE_PATH": Variable("The same as xla_cache_path.", _same_as("xla_cache_path")),
    "VLLM_ATTENTION_BACKEND": Variable("The same as attention_backend.", _same_as("attention_backend")),
    "VLLM_LOG_STATS_INTERVAL": Variable(
        "The same as log_stats_interval.", lambda text: {"log_stats_interval": float(text)}
    ),
    "VLLM_XLA_CHECK_RECOMPILATION": Variable("The same as compile_guard=error.", _if_true("compile_guard", "error")),
    **{
        f"VLLM_{axis}_BUCKET_{end}": Variable(f"Use {instead}.")
        for axis, instead in _RANGES.items()
        for end in ("MIN", "STEP", "MAX")
    },
    **{
        f"VLLM_DECODE_BLOCK_BUCKET_{end}": Variable("The context of a step is data here, not a shape.")
        for end in ("MIN", "STEP", "MAX")
    },
    "VLLM_GRAPH_RESERVED_MEM": Variable(_HOST_GRAPHS),
    "VLLM_GRAPH_PROMPT_RATIO": Variable(_HOST_GRAPHS),
    "VLLM_GRAPH_PROMPT_STRATEGY": Variable(_HOST_GRAPHS),
    "VLLM_GRAPH_DECODE_STRATEGY": Variable(_HOST_GRAPHS),
    "VLLM_PROFILER_ENABLED": Variable("Use profile=DIR."),
    "VLLM_TORCH_PROFILER_DIR": Variable("The same as profile.", _same_as("profile")),
    "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION": Variable(
        "A program that compiles during a step is always named in the log."
    ),
    "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION_ALL": Variable("See compile_guard."),
    "VLLM_TARGET_DEVICE": Variable("Use device."),
    "VLLM_WORKER_MULTIPROC_METHOD": Variable("The engine is one process."),
    "VLLM_ENABLE_V1_MULTIPROCESSING": Variable("The engine is one process."),
    "VLLM_USE_V1": Variable("There is one engine."),
    "VLLM_HOST_IP": Variable(_HOSTS),
    "VLLM_LOGGING_LEVEL": Variable("Use Python's logging: the logger is `jaxengine`."),
}


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that vLLM's environment variables stand for. Those that stand for none are named in the log, once a process."""
    options: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(("VLLM_", "PT_HPU_")):
            continue
        variable = VARIABLES.get(name, Variable("It means nothing here."))
        if variable.becomes is None:
            _notice(f"the variable {name} has no effect: {variable.says}")
            continue
        try:
            options.update(variable.becomes(environ[name]))
        except ValueError:
            raise ConfigError(f"the variable {name} cannot be read: {environ[name]!r}. {variable.says}") from None
    return options


@lru_cache(maxsize=256)
def _notice(text: str) -> None:
    logger.warning("%s", text)


def translate(options: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Options in names of ours (`own`) alone. What stands for a key of an option is merged with what was given of it.

    Raises:
        ConfigError: a name that nobody knows (with the nearest of `own`), a value that asks for what is not built, or an option
            that is given twice.
    """
    translated = {name: value for name, value in options.items() if name in own}
    for name, value in options.items():
        if name in own:
            continue
        if name not in NAMES:
            raise ConfigError(f"unknown option {name!r}.{nearest(name, own)}")
        # What it stands for may be an option of the server, which has no meaning for an engine alone.
        for option, meant in translate(NAMES[name].options(name, value), own).items():
            before = translated.get(option)
            if isinstance(meant, Mapping):
                meant = {**meant, **(as_mapping(option, before) if before else {})}
            elif before is not None and before != meant:
                raise ConfigError(f"{name!r} means {option}={meant!r}, and {option}={before!r} is given too; give one")
            translated[option] = meant
    return translated


def as_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """An option that maps names to values, which may be written as JSON.

    Raises:
        ConfigError: it is no such mapping.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name} must be a JSON object: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must map names to values, got {value!r}")
    return dict(value)
