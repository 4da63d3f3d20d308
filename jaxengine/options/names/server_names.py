"""Names of what a server reads and tells: grammars and parsers, log and metrics, HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.options.names.name import Name, as_mapping, moot, refused, set_to

_TRACES = "Tracing is not built; /metrics and enable_log_requests show requests."
_OFFLINE = "It is an option of the server."


def _structured_outputs(value: Any) -> Mapping[str, Any]:
    given = as_mapping("structured_outputs_config", value)
    if others := sorted(given.keys() - {"backend", "disable_fallback", "reasoning_parser"}):
        raise ConfigError(
            f"structured_outputs_config: {', '.join(others)} is refused: requests say such things of their own grammar"
        )
    parser = given.get("reasoning_parser")
    return {"reasoning_parser": parser} if parser else {}


def _reasoning(value: Any) -> Mapping[str, Any]:
    given = as_mapping("reasoning_config", value)
    if others := sorted(given.keys() - {"reasoning_parser", "reasoning_start_str", "reasoning_end_str"}):
        raise ConfigError(
            f"reasoning_config: {', '.join(others)} is unknown; reasoning_parser and reasoning_end_str are read"
        )
    names = {"reasoning_parser": "reasoning_parser", "reasoning_end_str": "reasoning_end"}
    return {name: given[key] for key, name in names.items() if given.get(key)}


def _profiler(value: Any) -> Mapping[str, Any]:
    given = as_mapping("profiler_config", value)
    return {"profile": given["torch_profiler_dir"]} if given.get("torch_profiler_dir") else {}


SERVER_NAMES: Mapping[str, Name] = dict(
    [
        # structured output and reasoning
        (
            "structured_outputs_config",
            Name("There is one implementation, llguidance.", ({},), becomes=_structured_outputs),
        ),
        *moot(
            "There is one implementation, llguidance.",
            guided_decoding_backend="auto",
            guided_decoding_disable_fallback=False,
        ),
        *refused(
            "Requests say so of their own grammar.",
            guided_decoding_disable_any_whitespace=False,
            guided_decoding_disable_additional_properties=False,
        ),
        *moot("reasoning_parser alone decides.", enable_reasoning=False),
        (
            "reasoning_config",
            Name("reasoning_parser says how thoughts begin and end.", ({},), becomes=_reasoning),
        ),
        *refused(
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
                becomes=set_to("log_stats_interval", 0),
            ),
        ),
        ("disable_log_requests", Name("Requests are not logged unless enable_log_requests is given.", (True, False))),
        (
            "disable_uvicorn_access_log",
            Name("The same as no_access_log.", (False,), becomes=set_to("access_log", False)),
        ),
        *refused("Use no_access_log.", disable_access_log_for_endpoints=""),
        *refused("Use Python's logging: the logger is `jaxengine`.", log_config_file=""),
        *refused("Only prompts and parameters are logged: enable_log_requests.", enable_log_outputs=False),
        *moot("Outputs are not logged.", enable_log_deltas=True),
        *moot("An internal error is always logged with its place.", log_error_stack=False),
        *moot("Former names of metrics are always served.", show_hidden_metrics_for_version=""),
        *moot("There is one engine.", aggregate_engine_logging=False),
        *refused(
            _TRACES,
            otlp_traces_endpoint="",
            collect_detailed_traces=[],
            enable_layerwise_nvtx_tracing=False,
        ),
        ("profiler_config", Name("profile=DIR writes traces there.", ({},), becomes=_profiler)),
        *refused(
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
        *moot(
            "Tokenisation has threads of its own.",
            tokenizer_pool_size=0,
            tokenizer_pool_type="ray",
            tokenizer_pool_extra_config={},
        ),
        *moot("Tokenisation has threads of its own.", renderer_num_workers=1),
        *moot(
            "/load and /tokenizer_info always work.",
            enable_server_load_tracking=True,
            enable_tokenizer_info_endpoint=True,
        ),
        *moot(
            "Bodies are bounded by max_body_bytes, headers by the server.",
            h11_max_incomplete_event_size=4194304,
            h11_max_header_count=256,
        ),
        *refused("Middleware of your own is not built; put a proxy in front.", middleware=[]),
        *refused("The server makes no outbound requests; tools run in the client.", tool_server=""),
        *refused("TLS beyond a key and a certificate is a proxy's work.", enable_ssl_refresh=False, ssl_ciphers=""),
        *refused("/docs loads its scripts from the network.", enable_offline_docs=False),
        *refused("The fingerprint is one of version and options.", fingerprint_mode="full", fingerprint_value=""),
        *refused("All endpoints are served.", tokens_only=False),
        *refused("Arguments of strict tools are held to their schema, others are not.", tool_strict_level=""),
        *moot("Cohere's API is not served.", cohere_is_reasoning_model=True, cohere_format="cmd4"),
        *moot("Scores of late interaction are not built.", enable_flash_late_interaction=True),
        *moot("Variables that mean nothing here are named in the log.", fail_on_environ_validation=False),
        # arguments of vLLM's engine that are the server's here
        *moot(
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
