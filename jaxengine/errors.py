"""The drawn tree of errors, with those that live beside what raises them.

A message says what was wrong with the value, what is allowed, and what to do instead.

    JaxEngineError
    ├── ConfigError            an option, a config.json key or an architecture the engine does not take
    ├── CheckpointError        weight or tokenizer files that are missing, truncated or do not match the model
    ├── BundleError            compiled programs that were asked for and cannot be used
    ├── CapacityError          the device or host cannot hold what was asked for
    ├── RequestError           one request is wrong; every other request goes on
    │   ├── ContextLengthError     the prompt does not fit max_model_len or the KV pool
    │   ├── ModelNotFoundError     a model that the server does not serve
    │   ├── ResponseNotFoundError  a response to go on from that is not kept (server/responses)
    │   ├── NotKeptError           a file or a batch that is not kept (server/batch)
    │   ├── MediaError             a picture, sound or video that cannot be had or read (media)
    │   ├── NotServedError         an endpoint that needs a flag which was not given (server/endpoints)
    │   └── UnsupportedError       a feature that is known by name but not built
    │       └── AbsentError            an attribute of vLLM's LLM (llm)
    ├── GrammarError           a sequence cannot go on because of its grammar (grammar/)
    ├── CheckerError           the process that checks grammars does not start (grammar/)
    ├── UnplannedShapeError    a step asked for a program that was not compiled
    ├── MissingTokensError     tokens of a request were lost on their way from an engine (front)
    ├── ServerError            what a server said to a command that talks to it (cli/terminal)
    ├── OverloadedError        too much is queued, or the server is shutting down; try again later
    │   └── ShareFullError         too much of one key or user is queued
    ├── DeadlineError          a request took longer than the server allows
    ├── PoisonError            a request that the engine died of each time it was tried
    └── EngineDeadError        the engine stopped; nothing more can be generated

Each class knows the HTTP status and the OpenAI error type it maps to, so a server needs no second table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class JaxEngineError(Exception):
    """Any error that jaxengine raises on purpose."""

    http_status = 500
    openai_type = "InternalServerError"


class ConfigError(JaxEngineError):
    """An engine option or a model configuration that cannot be honoured."""

    http_status = 400
    openai_type = "BadRequestError"


class CheckpointError(JaxEngineError):
    """Model files that are missing, truncated, or do not match the architecture."""


class BundleError(JaxEngineError):
    """A bundle of compiled programs that is damaged, not to be trusted, or for something else."""


class CapacityError(JaxEngineError):
    """The device or the host has not enough memory for what was asked."""


class RequestError(JaxEngineError):
    """One request is invalid. `param` names the offending field, where there is one."""

    http_status = 400
    openai_type = "BadRequestError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    @classmethod
    def of(cls, param: str, problem: str) -> Self:
        """The error of a field whose name the message begins with; `problem` is the rest of it."""
        return cls(f"{param} {problem}", param=param)


class ContextLengthError(RequestError):
    """The prompt leaves no room for an output token within `max_model_len` or the KV pool."""


class ModelNotFoundError(RequestError):
    """A request names a model that is not served."""

    http_status = 404
    openai_type = "NotFoundError"

    def __init__(self, message: str, *, param: str | None = "model") -> None:
        super().__init__(message, param=param)


class UnsupportedError(RequestError):
    """A feature that jaxengine knows by name and does not have."""


class UnplannedShapeError(JaxEngineError):
    """A step needs a program that was not compiled before the engine was ready."""


class OverloadedError(JaxEngineError):
    """The queue is full, or the server is shutting down. `retry_after` is how many seconds a client should wait."""

    http_status = 503
    openai_type = "ServiceUnavailableError"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShareFullError(OverloadedError):
    """One key or user has filled its share of the queue; there is room for others."""

    http_status = 429
    openai_type = "RateLimitError"


class DeadlineError(JaxEngineError):
    """One request was not done within the time that the server gives it; it has been aborted."""

    http_status = 504
    openai_type = "TimeoutError"


class PoisonError(JaxEngineError):
    """One request ends because the engine died each time it ran it, the last time while it ran nothing else."""


class EngineDeadError(JaxEngineError):
    """The engine stopped after an internal error or was shut down."""

    http_status = 503
    openai_type = "ServiceUnavailableError"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the closest of `allowed`, or an empty string when nothing is close."""
    matches = difflib.get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
