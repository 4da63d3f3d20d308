"""Names of steps: what is scheduled, the programs and kernels that run it, drafts."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.options.names.name import Name, key_of, moot, refused, same_as

_NGRAM = "Drafts come from prompt lookup: speculative_config={'method': 'ngram', 'num_speculative_tokens': 4}."
_DRAFT_MODEL = "A draft model is not built; prompt lookup needs none of this."
_SHAPES = "Programs have planned shapes: see bucket_planner, and `jaxengine plan`."
_KERNELS = "The kernels for a device are chosen with it."

STEP_NAMES: Mapping[str, Name] = dict(
    [
        # steps and programs
        *moot(
            "Prompts are always cut where a step is full; bound it with max_num_batched_tokens.",
            enable_chunked_prefill=True,
        ),
        *moot(
            "Prompts share a step as its tokens allow; see long_prefill_token_threshold.",
            max_num_partial_prefills=1,
            max_long_partial_prefills=1,
            scheduler_delay_factor=0,
        ),
        *moot(
            "One step at a time is scheduled; see async_scheduling.",
            num_scheduler_steps=1,
            disable_async_output_proc=False,
        ),
        *moot("Every step's tokens are sent.", multi_step_stream_outputs=True, stream_interval=1),
        *moot(
            _SHAPES,
            max_seq_len_to_capture=8192,
            max_context_len_to_capture=8192,
            cudagraph_capture_sizes=[],
            max_cudagraph_capture_size="",
        ),
        *moot(_SHAPES, performance_mode="balanced", cudagraph_metrics=False),
        ("compilation_config", Name(_SHAPES, ({},), moot=True, short="cc")),
        ("optimization_level", Name(_SHAPES, (2,), moot=True, short="O")),
        ("attention_config", Name(_KERNELS, ({},), moot=True, short="ac")),
        *moot(
            _KERNELS, kernel_config={}, moe_backend="auto", enable_flashinfer_autotune=True, disable_cascade_attn=False
        ),
        *moot(_KERNELS, gdn_prefill_backend="", kv_sharing_fast_prefill=False, ir_op_priority={}),
        *moot(
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
        ("jit_monitor_mode", Name("The same as compile_guard.", becomes=same_as("compile_guard"))),
        # drafts
        *(
            (name, Name(_NGRAM, becomes=key_of("speculative_config", key)))
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
        *refused(
            _DRAFT_MODEL,
            speculative_model_quantization="",
            speculative_draft_tensor_parallel_size=1,
            speculative_max_model_len="",
            speculative_disable_mqa_scorer=False,
        ),
        *refused("Drafts are made for every batch.", speculative_disable_by_batch_size=""),
        *refused(
            "Outputs are those without drafts.",
            spec_decoding_acceptance_method="rejection_sampler",
            typical_acceptance_sampler_posterior_threshold="",
            typical_acceptance_sampler_posterior_alpha="",
        ),
        *moot("Log probabilities are given whenever they are asked for.", disable_logprobs_during_spec_decoding=False),
    ]
)
