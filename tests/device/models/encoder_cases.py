"""Small encoders, one per family and head: their configurations, and what transformers computed of each with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.device.models.cases import _GEMMA3, _ROTARY, FIXTURES, PROMPTS, VOCAB, random_tensors

_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 48,
    "hidden_dim": 80,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_ROBERTA = _BERT | {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 66, "layer_norm_eps": 1e-5}
_MPNET = {key: value for key, value in _ROBERTA.items() if key != "type_vocab_size"}
_ALBERT = _BERT | {"embedding_size": 32, "num_hidden_layers": 3}
_DEBERTA = _BERT | {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "max_relative_positions": 24,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
}

_MODERNBERT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "local_attention": 8,
    "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
}

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _BERT),
    "bert_relu": ("BertModel", _BERT | {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "bert_classes": ("BertForSequenceClassification", _BERT | {"num_labels": 3}),
    "bert_pair": ("BertForSequenceClassification", _BERT | {"num_labels": 1}),
    "bert_tokens": ("BertForTokenClassification", _BERT | {"num_labels": 4}),
    "roberta": ("RobertaModel", _ROBERTA),
    "roberta_classes": ("RobertaForSequenceClassification", _ROBERTA | {"num_labels": 1}),
    "xlm_roberta": ("XLMRobertaModel", _ROBERTA | {"num_hidden_layers": 3}),
    "distilbert": ("DistilBertModel", _DISTILBERT),
    "modernbert": ("ModernBertModel", _MODERNBERT),
    "modernbert_classes": (
        "ModernBertForSequenceClassification",
        _MODERNBERT | {"num_labels": 3, "classifier_pooling": "mean"},
    ),
    "modernbert_tokens": ("ModernBertForTokenClassification", _MODERNBERT | {"num_labels": 2}),
    "gte": ("GteModel", _BERT | {"type_vocab_size": 1}),
    "nomic_bert": ("NomicBertModel", _BERT),
    "embedding_gemma": ("Gemma3TextModel", _GEMMA3 | {"use_bidirectional_attention": True, "sliding_window": 8}),
    "eurobert": ("EuroBertModel", _ROTARY | {"num_key_value_heads": 4, "pad_token_id": 0}),
    "eurobert_classes": ("EuroBertForSequenceClassification", _ROTARY | {"pad_token_id": 0, "num_labels": 3}),
    "eurobert_tokens": ("EuroBertForTokenClassification", _ROTARY | {"pad_token_id": 0, "num_labels": 2}),
    "llama_both_sides": ("LlamaModel", _ROTARY | {"is_causal": False}),
    "qwen2_both_sides": ("Qwen2Model", _ROTARY | {"is_causal": False}),
    "qwen3_both_sides": ("Qwen3Model", _ROTARY | {"is_causal": False, "head_dim": 16}),
    "deberta_v3": ("DebertaV2Model", _DEBERTA),
    "deberta_v3_pair": ("DebertaV2ForSequenceClassification", _DEBERTA | {"num_labels": 1, "type_vocab_size": 2}),
    "deberta_v2": (
        "DebertaV2ForTokenClassification",
        _DEBERTA
        | {"num_labels": 2, "share_att_key": False, "position_buckets": -1, "max_relative_positions": 8}
        | {"norm_rel_ebd": "none", "position_biased_input": True},
    ),
    "jina_v3": ("JinaEmbeddingsV3Model", _ROBERTA),
    "mpnet": ("MPNetModel", _MPNET),
    "mpnet_classes": ("MPNetForSequenceClassification", _MPNET | {"num_labels": 2}),
    "albert": ("AlbertModel", _ALBERT),
    "albert_classes": ("AlbertForSequenceClassification", _ALBERT | {"num_labels": 3}),
    "albert_tokens": ("AlbertForTokenClassification", _ALBERT | {"num_labels": 2, "type_vocab_size": 1}),
    "electra": ("ElectraModel", _BERT | {"embedding_size": 32}),
    "electra_classes": ("ElectraForSequenceClassification", _BERT | {"embedding_size": 48, "num_labels": 2}),
    "electra_tokens": ("ElectraForTokenClassification", _BERT | {"embedding_size": 32, "num_labels": 3}),
    "distilbert_classes": ("DistilBertForSequenceClassification", _DISTILBERT | {"num_labels": 2}),
}
"""The transformers class and the options of its configuration."""

INPUTS = [[7 if token < 2 else token for token in prompt] for prompt in PROMPTS]
"""Prompts without the tokens of padding, which transformers' RoBERTa counts no positions for."""
SECOND_FROM = 5
"""Where the second text of the first prompt begins, for models of pairs."""


@dataclass(frozen=True, slots=True)
class EncoderFixture:
    """Of each input what transformers computed: hidden states `[tokens, E]`, or logits of the input or of its tokens.

    `paired` is that of the first input as two texts, where the model has kinds of texts.
    """

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    outputs: Sequence[np.ndarray]
    paired: np.ndarray | None

    @classmethod
    def load(cls, name: str) -> EncoderFixture:
        stored = json.loads((FIXTURES / f"encoder_{name}.json").read_text())
        arrays = np.load(FIXTURES / f"encoder_{name}.npz")
        outputs = [arrays[str(number)] for number in range(len(INPUTS))]
        return cls(stored["config"], stored["shapes"], outputs, arrays.get("paired"))

    def write(self, directory: Path, **config: Any) -> Path:
        """A checkpoint, with changes of `config`."""
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({**self.config, **config}))
        save_file(random_tensors(self.shapes), directory / "model.safetensors")
        return directory
