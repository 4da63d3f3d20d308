"""jaxengine: a JAX/XLA-first inference engine for language models with static shape buckets.

Public names are imported when first used, so that the host half and the command line never load JAX before they need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxengine.api.async_llm import AsyncLLM, AsyncLLMEngine
    from jaxengine.api.engine_args import AsyncEngineArgs, EngineArgs
    from jaxengine.api.llm import LLM
    from jaxengine.contract.lora_request import LoRARequest
    from jaxengine.contract.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
    )
    from jaxengine.contract.pooling_params import PoolingParams
    from jaxengine.contract.sampling_params import (
        BeamSearchParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from jaxengine.errors import JaxEngineError

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "jaxengine.api.llm",
    "AsyncLLM": "jaxengine.api.async_llm",
    "AsyncLLMEngine": "jaxengine.api.async_llm",
    "EngineArgs": "jaxengine.api.engine_args",
    "AsyncEngineArgs": "jaxengine.api.engine_args",
    "SamplingParams": "jaxengine.contract.sampling_params",
    "BeamSearchParams": "jaxengine.contract.sampling_params",
    "RequestOutputKind": "jaxengine.contract.sampling_params",
    "StructuredOutputsParams": "jaxengine.contract.sampling_params",
    "PoolingParams": "jaxengine.contract.pooling_params",
    "LoRARequest": "jaxengine.contract.lora_request",
    "RequestOutput": "jaxengine.contract.outputs",
    "EmbeddingOutput": "jaxengine.contract.outputs",
    "EmbeddingRequestOutput": "jaxengine.contract.outputs",
    "PoolingOutput": "jaxengine.contract.outputs",
    "PoolingRequestOutput": "jaxengine.contract.outputs",
    "CompletionOutput": "jaxengine.contract.outputs",
    "Logprob": "jaxengine.contract.outputs",
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
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'jaxengine' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
