"""Every option of the server, in the style of `jaxengine.options.config`: the command line is generated from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.front.parsers.reasoning import REASONING_FORMATS
from jaxengine.front.parsers.tools import TOOL_FORMATS
from jaxengine.front.restarts import Supervision
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import translate
from jaxengine.options.option import Options, at_least, not_negative, option, option_names, seconds
from jaxengine.server.adapters.options import AdaptersConfig
from jaxengine.server.endpoints.batch.options import BatchConfig
from jaxengine.server.endpoints.responses.options import ResponsesConfig
from jaxengine.server.telemetry.options import TracesConfig

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
KEY_VARIABLES = ("JAXENGINE_API_KEY", "VLLM_API_KEY")
HOST_VARIABLE = "JAXENGINE_HOST"


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Where the server listens, and how it speaks."""

    host: str = option(
        "127.0.0.1",
        f"address to listen on; 0.0.0.0 for every interface, as the ports of a container need (default: {HOST_VARIABLE}, or this "
        "machine only)",
    )
    port: int = option(8000, "TCP port; 0 takes a free one", check=at_least(0))
    uds: str | None = option(None, "listen on this Unix socket instead")
    ssl_keyfile: str | None = option(None, "TLS key file")
    ssl_certfile: str | None = option(None, "TLS certificate file")
    ssl_ca_certs: str | None = option(None, "TLS file of certificate authorities that clients may be signed by")
    ssl_cert_reqs: int = option(0, "whether clients need a certificate: 0 no, 1 optional, 2 yes", check=at_least(0))
    root_path: str = option("", "path prefix that a proxy strips")
    allowed_hosts: tuple[str, ...] | None = option(
        None, "names that a Host header may hold, * is any (default: this machine's, on loopback without keys)"
    )
    allowed_origins: tuple[str, ...] = option((), "web origins that browsers may call from (CORS)")
    allowed_methods: tuple[str, ...] = option(("*",), "methods they may use")
    allowed_headers: tuple[str, ...] = option(("*",), "headers they may send")
    allow_credentials: bool = option(False, "whether they may send credentials")
    uvicorn_log_level: str = option("info", "what the HTTP server logs", choices=LOG_LEVELS)
    log_format: str = option(
        "text", "lines of the log: text with time and level, or json, an object each", choices=("text", "json")
    )
    access_log: bool = option(True, "one log line per HTTP request")
    sse_keep_alive_interval: float = option(
        15.0, "seconds of silence after which a stream gets a comment", check=seconds
    )


AUTO, NO_PARSER = "auto", "none"
"""Parsers that are no format: the one that the checkpoint tells, and no parser at all."""


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """What the API offers."""

    served_model_name: tuple[str, ...] | None = option(
        None, "names of the model; responses carry the first", split=False
    )
    api_key: tuple[str, ...] | None = option(
        None, f"keys, one of which a request must bear (default: {' or '.join(KEY_VARIABLES)})", split=False
    )
    api_key_scope: str = option(
        "v1",
        "what needs a key: v1, as with vLLM (not /health, /metrics, /version, /load, the documentation, the tokenizer), or "
        "all but /health",
        choices=("v1", "all"),
    )
    chat_template_content_format: str = option(
        "auto", "whether the template reads text or a list of parts", choices=("auto", "string", "openai")
    )
    default_chat_template_kwargs: Mapping[str, Any] = option({}, "variables for the chat template, as JSON")
    trust_request_chat_template: bool = option(False, "let requests bring chat templates of their own")
    tool_call_parser: str = option(
        AUTO,
        "format of the model's tool calls; auto is the one that the checkpoint's chat template certainly writes, if any, none "
        "leaves them in the text",
        choices=(AUTO, NO_PARSER, *TOOL_FORMATS),
    )
    enable_auto_tool_choice: bool = option(
        False, "let the model decide whether to call a tool (default: true for the embedded model)"
    )
    exclude_tools_when_tool_choice_none: bool = option(False, "do not show the model tools that it may not call")
    reasoning_parser: str = option(
        AUTO,
        "format of the model's reasoning, told apart from the answer; auto and none as for tool_call_parser",
        choices=(AUTO, NO_PARSER, *REASONING_FORMATS),
    )
    reasoning_end: str | None = option(
        None, "text that ends thoughts which reach their thinking_token_budget (default: the end marker alone)"
    )
    response_role: str = option("assistant", "role of the answers")
    return_tokens_as_token_ids: bool = option(False, "write tokens of log probabilities as token_id:N")
    enable_prompt_tokens_details: bool = option(False, "report cached prompt tokens in usage")
    enable_force_include_usage: bool = option(False, "usage on every chunk of a stream, and at its end")
    enable_request_id_headers: bool = option(False, "answer with X-Request-Id")
    disable_fastapi_docs: bool = option(False, "serve no /docs, /redoc and /openapi.json")
    ui: bool = option(
        True, "serve a playground at / and a dashboard at /dashboard, to browsers that know a key where there are keys"
    )
    server_dev_mode: bool = option(
        False,
        "serve /pause, /resume, /update_weights, /sleep and /wake_up, with which whoever may use the server can stop it for all "
        "(VLLM_SERVER_DEV_MODE=1 is the same)",
    )
    enable_log_requests: bool = option(False, "log prompts and parameters")
    log_stats_interval: float = option(10.0, "seconds between log lines of statistics; 0 is never", check=seconds)
    max_log_len: int | None = option(None, "most characters of a prompt that are logged", check=at_least(0))


@dataclass(frozen=True, kw_only=True)
class LimitConfig:
    """What one request, and all of them together, may take. 0 is no limit."""

    max_num_queued_reqs: int = option(4096, "most requests that wait; more get a 503", check=at_least(0))
    max_num_queued_tokens: int = option(0, "most prompt tokens that wait; more get a 503", check=at_least(0))
    max_media_gb: float = option(
        8.0,
        "most GiB of prepared pictures and sounds that requests in progress show; more get a 503",
        check=not_negative,
    )
    fair_share_by: str = option(
        "key",
        "whose share a request is of under scheduling_policy=fair: of the API key that it bears, checked or not, or of the user "
        "that it names besides (safety_identifier or user)",
        choices=("key", "user"),
    )
    max_unread_tokens: int = option(
        512,
        "most tokens of a stream's sequence that wait for a client which does not read; then it is paused until they are read",
        check=at_least(0),
    )
    max_body_bytes: int | None = option(
        None,
        "largest request body (default: 4 MiB, or 64 MiB where the model takes pictures or sounds)",
        check=at_least(0),
    )
    max_audio_clip_filesize_mb: float = option(
        25.0, "MiB of the largest file that is transcribed; 0 bounds bodies alone (max_body_bytes)", check=not_negative
    )
    max_json_depth: int = option(100, "deepest nesting of a request body", check=at_least(0))
    max_json_values: int = option(
        1 << 18,
        "most values in a large request body; a list, an object and each of its keys count as 8",
        check=at_least(0),
    )
    max_n: int = option(128, "largest n", check=at_least(1))
    max_choices: int = option(1024, "most prompts times n of one request", check=at_least(1))
    max_logprob_entries: int = option(
        1 << 22,
        "most log probabilities of one whole answer, over all its choices and tokens; each is some 65 bytes of it",
        check=at_least(0),
    )
    max_stop_strings: int = option(16, "most stop strings", check=at_least(0))
    request_timeout: float = option(
        600.0,
        "seconds that a request may take, its time in the queue included; its timeout may be shorter",
        check=seconds,
    )
    shutdown_timeout: float = option(30.0, "seconds that running requests have to finish on shutdown", check=seconds)


@dataclass(frozen=True, kw_only=True)
class EnginesConfig:
    """How the server runs its engine."""

    disable_frontend_multiprocessing: bool = option(
        False,
        "run the engine on a thread of the server's process, and not in a process of its own; the server listens when the engine "
        "is ready then",
    )
    headless: bool = option(
        False,
        "answer nothing here: this host has a part of the engine (node_rank from 1 on), and the first host answers",
    )
    max_engine_restarts: int | None = option(
        None,
        "most restarts of an engine that died, within an hour; 0 is never: its requests fail and so does /health (default: "
        f"{Supervision.max_restarts}, or 0 for an engine on a thread, which cannot be started again)",
        check=at_least(0),
    )
    no_resume: bool = option(False, "let requests fail when their engine dies, and not go on when it is started again")
    step_timeout: float | None = option(
        None,
        "seconds after which a step counts as hung, and its engine as dead; 0 is never (default: by platform and what steps "
        "were measured to take)",
        check=seconds,
    )

    def __post_init__(self) -> None:
        if self.disable_frontend_multiprocessing and self.max_engine_restarts:
            raise ConfigError(
                f"max_engine_restarts={self.max_engine_restarts} needs an engine in a process of its own: leave out "
                "disable_frontend_multiprocessing, or max_engine_restarts"
            )

    @property
    def supervision(self) -> Supervision:
        """What is done about an engine that dies or hangs."""
        default = 0 if self.disable_frontend_multiprocessing else Supervision.max_restarts
        return Supervision(
            resume=not self.no_resume,
            max_restarts=default if self.max_engine_restarts is None else self.max_engine_restarts,
            step_timeout_s=self.step_timeout,
            silence_s=0.0 if self.disable_frontend_multiprocessing else Supervision.silence_s,
        )


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Options):
    """All options of the server: its own, and those that endpoints have in their folders."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    engines: EnginesConfig = field(default_factory=EnginesConfig)
    adapters: AdaptersConfig = field(default_factory=AdaptersConfig)
    responses: ResponsesConfig = field(default_factory=ResponsesConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)

    def __post_init__(self) -> None:
        network = self.network
        if (network.ssl_certfile is None) != (network.ssl_keyfile is None):
            raise ConfigError("TLS needs both ssl_certfile and ssl_keyfile")
        if self.api.enable_auto_tool_choice and self.api.tool_call_parser == NO_PARSER:
            raise ConfigError("enable_auto_tool_choice needs tool_call_parser, the format of the model's tool calls")
        if network.ssl_cert_reqs > 2:
            raise ConfigError(f"ssl_cert_reqs must be 0, 1 or 2, got {network.ssl_cert_reqs}")
        if network.port > 65535:
            raise ConfigError(f"port must be at most 65535, got {network.port}")

    def model_names(self, root: str) -> tuple[str, ...]:
        """The names given, else that of the checkpoint."""
        return self.api.served_model_name or (root,)

    def api_keys(self) -> tuple[str, ...]:
        """The keys given, else that of the environment; none when the API is open.

        Raises:
            ConfigError: an empty key.
        """
        keys = self.api.api_key
        if keys is None:
            keys = tuple(os.environ[name] for name in KEY_VARIABLES if os.environ.get(name))[:1]
        if not all(keys):
            raise ConfigError("an API key must not be empty")
        return keys


def read_options(options: Mapping[str, Any]) -> tuple[EngineConfig, ServerConfig]:
    """The options of a server and of its engine, told apart by their names.

    Raises:
        ConfigError: as the two of them do.
    """
    engine, server = option_names(EngineConfig), option_names(ServerConfig)
    own = translate(options, engine | server)
    if "host" not in own and (host := os.environ.get(HOST_VARIABLE)):
        own["host"] = host
    if own.get("enable_auto_tool_choice") is None and _calls_as_learned(own):
        own["enable_auto_tool_choice"] = True
    config = EngineConfig.from_options(**{name: value for name, value in own.items() if name in engine})
    served = ServerConfig.from_options(**{name: value for name, value in own.items() if name in server})
    if not config.lora.enable_lora and (asked := served.adapters.needs_lora):
        raise ConfigError(f"{asked} needs enable_lora, with room for adapters (max_loras, max_lora_rank)")
    return config, served


def _calls_as_learned(own: Mapping[str, Any]) -> bool:
    """Whether the embedded model answers, which has learned to call tools, in its own format or in one that is named."""
    parser = own.get("tool_call_parser") or AUTO
    replaced = any(own.get(name) for name in ("chat_template", "tokenizer", "skip_tokenizer_init"))
    return not own.get("model") and parser != NO_PARSER and (parser != AUTO or not replaced)


def read_file(path: str) -> dict[str, Any]:
    """The options of a YAML file, each by its first name. They may be written with dashes or underscores.

    Raises:
        ConfigError: the file cannot be read or is no mapping. Unknown names are refused by `read_options`.
    """
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"--config {path}: must map option names to values, got {type(values).__name__}")
    known = option_names(EngineConfig) | option_names(ServerConfig)
    options: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = known[name][1].name if name in known else name
        options[name] = tuple(value) if isinstance(value, list) else value
    return options
