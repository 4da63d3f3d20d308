"""jaxengine: a JAX/XLA-first inference engine for language models with static shape buckets.

Public names are imported when first used, so that the host half and the command line never load JAX before they need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxengine.async_llm import AsyncLLM, AsyncLLMEngine
    from jaxengine.engine_args import AsyncEngineArgs, EngineArgs
    from jaxengine.errors import JaxEngineError
    from jaxengine.llm import LLM
    from jaxengine.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
    )
    from jaxengine.pooling_params import PoolingParams
    from jaxengine.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "jaxengine.llm",
    "AsyncLLM": "jaxengine.async_llm",
    "AsyncLLMEngine": "jaxengine.async_llm",
    "EngineArgs": "jaxengine.engine_args",
    "AsyncEngineArgs": "jaxengine.engine_args",
    "SamplingParams": "jaxengine.sampling_params",
    "BeamSearchParams": "jaxengine.sampling_params",
    "StructuredOutputsParams": "jaxengine.sampling_params",
    "PoolingParams": "jaxengine.pooling_params",
    "RequestOutput": "jaxengine.outputs",
    "EmbeddingOutput": "jaxengine.outputs",
    "EmbeddingRequestOutput": "jaxengine.outputs",
    "PoolingOutput": "jaxengine.outputs",
    "PoolingRequestOutput": "jaxengine.outputs",
    "CompletionOutput": "jaxengine.outputs",
    "Logprob": "jaxengine.outputs",
    "JaxEngineError": "jaxengine.errors",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "JaxEngineError",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'jaxengine' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
