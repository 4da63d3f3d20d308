"""Names of what a model is and which parts of it are built: files, images, adapters."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.options.names.name import Name, key_of, moot, refused

_LORA = "LoRA is not built yet."
_ADAPTERS = "Prompt adapters are gone from vLLM too."
_TEXT = "Only text models are built."
_POOLING = "The last token is pooled; each request says whether to normalize, and its dimensions."

MODEL_NAMES: Mapping[str, Name] = dict(
    [
        # the model and its files
        *moot("No code from a model repository is run.", trust_remote_code=False, code_revision=""),
        *refused(
            "Only tokenizer.json, or what transformers makes one of, is read.", tokenizer_mode=("auto", "hf", "fast")
        ),
        *refused("config.json is read from the model's directory; hf_overrides replaces its keys.", hf_config_path=""),
        *refused("Only config.json in Hugging Face's format is read.", config_format=("auto", "hf")),
        *refused("There is one implementation of each architecture.", model_impl=("auto", "vllm")),
        *refused("There are no options of a loader.", model_loader_extra_config={}),
        *moot("Only the files that a model needs are fetched.", ignore_patterns=[]),
        *moot("A start writes a line per phase.", use_tqdm_on_load=True),
        *moot(
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
                becomes=key_of("hf_overrides", "rope_scaling"),
            ),
        ),
        (
            "rope_theta",
            Name(
                "A key of config.json: hf_overrides={'rope_theta': ...}.", becomes=key_of("hf_overrides", "rope_theta")
            ),
        ),
        *refused(
            "quantization='int8', 'int4' or 'fp8', or what config.json says of a quantised checkpoint (hf_overrides changes it); "
            "lm_head_dtype='int8' for the head.",
            quantization_config={},
            qlora_adapter_name_or_path="",
        ),
        *moot("Checkpoints are read or refused by their format alone.", allow_deprecated_quantization=False),
        *refused("Attention has the model's dtype.", override_attention_dtype=""),
        *refused("The caches of all layers have one dtype, kv_cache_dtype.", kv_cache_dtype_skip_layers=[]),
        *refused("Sliding windows are part of the model.", disable_sliding_window=False),
        *refused(_POOLING, pooler_config={}, override_pooler_config={}),
        *refused("Prompts are text or token ids.", enable_prompt_embeds=False),
        *refused("Log probabilities are those of the model, before sampling options.", logprobs_mode="raw_logprobs"),
        *refused(
            "Python callbacks cannot run inside a compiled program; use logit_bias, bad_words or allowed_token_ids.",
            logits_processors=[],
            logits_processor_pattern="",
        ),
        *refused(
            "Nothing beside tokens and log probabilities is returned.",
            enable_return_routed_experts=False,
            return_sampling_mask=False,
        ),
        *refused("Plugins are not loaded.", io_processor_plugin="", additional_config={}, override_neuron_config={}),
        # images, sound
        *moot(
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
        *refused(
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
        *refused(
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
        *refused(
            _ADAPTERS,
            enable_prompt_adapter=False,
            prompt_adapters=[],
            max_prompt_adapters=1,
            max_prompt_adapter_token=0,
        ),
    ]
)
