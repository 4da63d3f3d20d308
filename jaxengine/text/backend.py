"""A `tokenizers.Tokenizer` from the files of a checkpoint, set up so that it encodes as transformers does.

transformers itself takes more than a second to import, so it is asked only where there is nothing that the tokenizers
library reads: sentencepiece or tiktoken models, and vocabularies whose rules live in Python code.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from jaxengine.errors import CheckpointError
from jaxengine.text import tekken
from jaxengine.text.settings import TokenizerSettings

BYTE_LEVEL_CLASSES = {None: ("gpt2", "opt"), "GPT2Tokenizer": None}
"""Tokenizer classes whose vocab.json and merges.txt say everything, and of which model types (None: all)."""

LITERAL_MODEL_TYPES = {"mistral", "mistral3", "mixtral", "ministral", "ministral3"}
"""Model types whose tokenizer.json is taken as it is although they name the Llama tokenizer class."""


def load_backend(directory: Path, settings: TokenizerSettings) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    """Load whichever tokenizer files `directory` has; the settings come back completed by what only transformers knew.

    Raises:
        CheckpointError: no tokenizer files, damaged ones, or ones that need a library that is not installed.
    """
    if not directory.is_dir():
        raise CheckpointError(f"the tokenizer directory {directory} does not exist")
    if (directory / "tokenizer.json").is_file():
        backend = _from_json(directory / "tokenizer.json")
        if settings.tokenizer_class == "LlamaTokenizer" and settings.model_type not in LITERAL_MODEL_TYPES:
            _apply_llama_spacing(backend, settings)
    elif (directory / tekken.FILE).is_file():
        backend, settings = tekken.load_tekken(directory / tekken.FILE, settings)
    elif _is_plain_byte_level(directory, settings):
        backend = _from_vocabulary(directory, add_prefix_space=bool(settings.add_prefix_space))
        settings = _named_by_id(backend, settings)
        backend.post_processor = _template(backend, settings)
    else:
        return _from_transformers(directory, settings)
    backend.no_truncation()
    backend.no_padding()
    _mark_special_tokens(backend, settings)
    return backend, settings


def _from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for whatever is wrong with the file
        raise CheckpointError(f"{path} cannot be read as a tokenizer ({error}); download the file again") from error


def _is_plain_byte_level(directory: Path, settings: TokenizerSettings) -> bool:
    if not ((directory / "vocab.json").is_file() and (directory / "merges.txt").is_file()):
        return False
    if settings.tokenizer_class not in BYTE_LEVEL_CLASSES:
        return False
    model_types = BYTE_LEVEL_CLASSES[settings.tokenizer_class]
    return model_types is None or settings.model_type in model_types


def _from_vocabulary(directory: Path, *, add_prefix_space: bool) -> tokenizers.Tokenizer:
    try:
        model = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    except Exception as error:  # as above
        raise CheckpointError(f"vocab.json and merges.txt in {directory} cannot be read: {error}") from error
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def _apply_llama_spacing(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    """Where a space goes before a word is decided by `legacy` and `add_prefix_space`, not by what tokenizer.json says.

    A file converted from sentencepiece puts a space before every piece of text between special tokens; the class that
    `tokenizer_config.json` names does so at the start only, unless `legacy` is set.
    """
    pipeline = json.loads(backend.to_str())
    if "▁" not in json.dumps([pipeline["normalizer"], pipeline["pre_tokenizer"]], ensure_ascii=False):
        return
    prefix = settings.add_prefix_space is not False
    scheme = ("always" if settings.legacy else "first") if prefix else "never"
    strip: list[Any] = [decoders.Strip(content=" ", left=1)] if prefix else []
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def _mark_special_tokens(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
    """Tokens named special are split off before the text is tokenised and left out by `skip_special_tokens`."""
    known = backend.get_vocab_size(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    for token_id, spec in settings.added_tokens:
        if token_id in added or (token_id < known and backend.id_to_token(token_id) != spec["content"]):
            continue
        options = {key: bool(spec.get(key, False)) for key in ("single_word", "lstrip", "rstrip", "special")}
        backend.add_tokens([AddedToken(spec["content"], normalized=bool(spec.get("normalized", True)), **options)])
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = dict.fromkeys((*settings.special_tokens.values(), *settings.extra_special_tokens))
    # A name without an id in the vocabulary is left out: the model has no embedding for a new id.
    missing = [text for text in named if text not in special and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _named_by_id(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> TokenizerSettings:
    """GPT-2's tokenizer_config.json names no special tokens; its config.json has their ids."""
    ids = {"bos_token": settings.bos_token_id, "eos_token": settings.eos_token_id}
    by_id = {name: backend.id_to_token(token_id) for name, token_id in ids.items() if token_id is not None}
    known = {name: text for name, text in by_id.items() if text is not None}
    return dataclasses.replace(settings, special_tokens={**known, **settings.special_tokens})


def _template(backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> processors.TemplateProcessing:
    """Add BOS and EOS as tokenizer_config.json asks. (Where there is a tokenizer.json, that one alone decides.)"""
    before = _special(backend, settings, "bos_token") if settings.add_bos else []
    after = _special(backend, settings, "eos_token") if settings.add_eos else []
    single = [*(text for text, _ in before), "$A", *(text for text, _ in after)]
    pair = [*single, *(text for text, _ in before), "$B", *(text for text, _ in after)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[*before, *after])


def _special(backend: tokenizers.Tokenizer, settings: TokenizerSettings, name: str) -> list[tuple[str, int]]:
    text = settings.special_tokens.get(name)
    token_id = backend.token_to_id(text) if text is not None else None
    return [(text, token_id)] if text is not None and token_id is not None else []


def _from_transformers(directory: Path, settings: TokenizerSettings) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
        backend = slow.backend_tokenizer
    except Exception as error:  # ImportError, OSError, ValueError and KeyError by what is missing
        files = sorted(path.name for path in directory.iterdir() if "token" in path.name or "vocab" in path.name)
        raise CheckpointError(
            f"no tokenizer could be built from {directory}: it has no tokenizer.json, and transformers cannot read "
            f"{', '.join(files) or 'any tokenizer file there'} ({error}). Install `sentencepiece` for a tokenizer.model, "
            "convert it to tokenizer.json, give tokenizer=<another directory or hub id>, or skip_tokenizer_init=True."
        ) from error
    named = {name: str(text) for name, text in slow.special_tokens_map.items() if isinstance(text, str)}
    backend.no_truncation()
    backend.no_padding()
    templates = settings.chat_templates if settings.chat_templates is not None else slow.chat_template
    return backend, dataclasses.replace(settings, special_tokens=named, chat_templates=templates)
