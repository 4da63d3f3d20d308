"""The tokenizer of a GGUF file, as transformers makes it of its parts, split and begun as the file's model is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxengine.errors import CheckpointError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGITS = (r"\p{N}",)
_QWEN2 = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDS}",)
_LLAMA3 = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDS}",)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",  # ideographs, hiragana and katakana
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    rf"{_ENDS}",
)
_SEED = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_ENDS}",)

SPLITS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("chatglm-bpe", "glm4"), _LLAMA3),
    **dict.fromkeys(("hunyuan", "solar-open", "stablelm2"), _QWEN2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "seed-coder": _SEED,
}
"""By `tokenizer.ggml.pre`, what texts are split by before merges, one pattern after the other, where transformers has none."""
DIGIT_BY_DIGIT = ("codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder")
"""Those that split off each digit, and the rest as GPT-2 does."""
AS_GPT2 = ("default", "exaone4", "gpt-2", "granite-docling", "jais", "mpt", "olmo", "phi-2", "trillion")
WHOLE_FIRST = ("falcon-h1", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0", "pixtral", "tekken")
"""Models whose words are one token where there is such, whatever merges would make of them, and whose texts begin with one that
says so, unless the file says otherwise."""


def write_tokenizer(directory: Path, path: Path, said: Mapping[str, Any]) -> None:
    """tokenizer.json and its settings; none where the file has no tokens. `said` are the fields that begin with `tokenizer.`.

    Raises:
        CheckpointError: a kind of tokenizer that is not known, or that splits texts in a way that is not.
    """
    if "ggml.model" not in said:
        return
    try:
        from transformers import PreTrainedTokenizerFast

        # by its parts: what transformers reads such files with needs torch
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (
            GGUF_PRE_TOKENIZER_SPLITS,
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )

        parts = {
            group: {name: said[key] for key, name in names.items() if key in said}
            for group, names in GGUF_TOKENIZER_MAPPING.items()
        }
        tokenizer, settings = parts["tokenizer"], parts["tokenizer_config"]
        kind, pre = tokenizer["tokenizer_type"], tokenizer.get("pre_tokenizer_type", "default")
        if kind == "gpt2" and pre not in (*GGUF_PRE_TOKENIZER_SPLITS, *SPLITS, *DIGIT_BY_DIGIT, *AS_GPT2):
            raise ValueError(f"it splits texts by {pre!r}, which is not known")
        if kind == "llama" or pre in WHOLE_FIRST:
            settings.setdefault("add_bos_token", True)  # which llama.cpp adds where files do not say
        for name in ("bos", "eos", "unk", "pad"):
            number = tokenizer.get(f"{name}_token_id")
            settings[f"{name}_token"] = None if number is None else tokenizer["tokens"][number]
        backend, _ = convert_gguf_tokenizer(str(said.get("architecture")), tokenizer)
        if kind == "gpt2":
            _split(backend, pre)
        PreTrainedTokenizerFast(tokenizer_object=backend, **settings).save_pretrained(directory)
    except (ValueError, KeyError, TypeError, NotImplementedError, ImportError) as error:
        raise CheckpointError(
            f"{path}: transformers makes no tokenizer of it ({error}); name one with tokenizer=..."
        ) from None


def _split(backend: Any, pre: str) -> None:
    """Have a byte-level tokenizer split and merge as its model does."""
    from tokenizers import Regex, pre_tokenizers

    backend.model.ignore_merges = pre in WHOLE_FIRST
    patterns = SPLITS.get(pre, _DIGITS if pre in DIGIT_BY_DIGIT else ())
    if patterns:
        isolated = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in DIGIT_BY_DIGIT)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*isolated, rest])
