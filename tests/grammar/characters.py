"""A tokenizer whose ids are the printable ASCII characters, and the end of sequence: the vocabulary of the fake runner."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxengine.grammar.grammars import GrammarLimits, Grammars
from jaxengine.text.settings import TokenizerSettings
from jaxengine.text.tokenizer import Tokenizer
from tests.harness import EOS, VOCAB

CHARACTERS = [chr(32 + token) for token in range(EOS)]


def character_tokenizer() -> Tokenizer:
    vocabulary = {character.replace(" ", "Ġ"): token for token, character in enumerate(CHARACTERS)}
    backend = tokenizers.Tokenizer(models.BPE({**vocabulary, "</s>": EOS}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, TokenizerSettings(special_tokens={"eos_token": "</s>"}))


def character_grammars(limits: GrammarLimits | None = None) -> Grammars:
    return Grammars(character_tokenizer(), vocab_size=VOCAB, end_ids=(EOS,), limits=limits)


def text_of(tokens: list[int] | tuple[int, ...]) -> str:
    return "".join(CHARACTERS[token] for token in tokens if token != EOS)
