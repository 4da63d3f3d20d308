"""A tokenizer whose ids are the printable ASCII characters, and the end of sequence: the vocabulary of the fake runner."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.matching import Grammar
from jaxengine.grammar.sources import GrammarLimits, GrammarSources
from jaxengine.grammar.tokenizer import GrammarTokenizer
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


class Grammars:
    """Both sides of structured output: what is asked for is tried, then compiled."""

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, end_ids: tuple[int, ...], limits: GrammarLimits | None = None
    ) -> None:
        shared = GrammarTokenizer(tokenizer, vocab_size=vocab_size, end_ids=end_ids)
        self.sources = GrammarSources(shared, limits)
        self.compiler = GrammarCompiler(shared)

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        return self.compiler.compile(self.sources.source(params))

    def is_ready(self, params: StructuredOutputsParams) -> bool:
        return self.sources.is_ready(params)

    def close(self) -> None:
        self.sources.close()
        self.compiler.close()


def character_grammars(limits: GrammarLimits | None = None) -> Grammars:
    return Grammars(character_tokenizer(), vocab_size=VOCAB, end_ids=(EOS,), limits=limits)


def text_of(tokens: list[int] | tuple[int, ...]) -> str:
    return "".join(CHARACTERS[token] for token in tokens if token != EOS)
