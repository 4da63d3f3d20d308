"""Keys of config.json that may be left unread: which, why, and with which values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ignored:
    """A key that does not change what is computed, with the reason; where it could, only with one of the `allowed` values."""

    reason: str
    allowed: tuple[Any, ...] | None = None


_TRAINING = Ignored("only used in training")
_NOTE = Ignored("a note about the file, not about the model")
_OUTPUTS = Ignored("shapes what transformers returns")
_GENERATION = Ignored("default sampling is read from generation_config.json")

COMMON_IGNORED: Mapping[str, Ignored] = {
    **dict.fromkeys(
        (
            "_name_or_path",
            "name_or_path",
            "_commit_hash",
            "architectures",
            "model_type",
            "transformers_version",
            "unsloth_fixed",
            "unsloth_version",
            "tokenizer_class",
            "task_specific_params",
            "finetuning_task",
            "problem_type",
            "id2label",
            "label2id",
        ),
        _NOTE,
    ),
    **dict.fromkeys(("initializer_range", "attention_dropout"), _TRAINING),
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states", "return_dict", "torchscript", "use_cache", "use_return_dict"),
        _OUTPUTS,
    ),
    **dict.fromkeys(
        ("_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "use_bfloat16"),
        Ignored("how transformers computes, not what"),
    ),
    **dict.fromkeys(
        (
            "max_length",
            "min_length",
            "do_sample",
            "early_stopping",
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "repetition_penalty",
            "length_penalty",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "bad_words_ids",
            "num_return_sequences",
            "output_scores",
            "return_dict_in_generate",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "suppress_tokens",
            "begin_suppress_tokens",
            "prefix",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(
        ("is_matryoshka", "matryoshka_dimensions"),
        Ignored("an embedding is cut to as many dimensions as are asked for"),
    ),
    **dict.fromkeys(
        ("sep_token_id", "decoder_start_token_id", "bos_token", "eos_token", "pad_token"),
        Ignored("the tokenizer's or an encoder's"),
    ),
    **dict.fromkeys(
        ("quantization_config", "compression_config"),
        Ignored("models.quantization_config reads it, for whoever loads weights"),
    ),
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id"),
        Ignored(
            "what begins and ends a text is read where requests are taken in (`text/`), and no program depends on it"
        ),
    ),
    **dict.fromkeys(
        (
            "num_labels",
            "classifier_from_token",
            "method",
            "is_original_qwen3_reranker",
            "sentence_transformers",
            "sbert_ce_default_activation_function",
            "use_pad_token",
        ),
        Ignored("read where the head of a model that pools is chosen"),
    ),
    "chunk_size_feed_forward": Ignored("feed-forward in chunks", allowed=(0,)),
    "pruned_heads": Ignored("heads that were cut away", allowed=({}, None)),
    "is_decoder": Ignored("it always is one"),
    **dict.fromkeys(
        ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"),
        Ignored("decoder-only models", allowed=(False,)),
    ),
    "cross_attention_hidden_size": Ignored("decoder-only models", allowed=(None,)),
    "tf_legacy_loss": _TRAINING,
}
