"""Everything of an engine but the device: both sides of it around a fake runner, for whoever tests a door of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import processors

from jaxengine.contract.adapters import AdapterFacts
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.media import MediaFacts
from jaxengine.contract.pooling import PoolerTraits
from jaxengine.contract.transfer import TransferFacts
from jaxengine.front.front import make_grammars
from jaxengine.front.model_text import ModelText
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.media.processors import Processor
from jaxengine.options.config import EngineConfig
from jaxengine.startup.engine import HostedEngine
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.tokenizer import Tokenizer
from tests.fakes import EMBEDDING_SIZE, FakeRunner
from tests.harness import make_grid
from tests.text import tiny

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
MAX_LEN = 96
ADAPTERS = {
    f"/adapters/{name}": f"{number:032x}"
    for number, name in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
}
"""The digests of adapters by their paths."""
PAGE_SIZE = 4


def make_tokenizer() -> Tokenizer:
    """Bytes, with a BOS that is added to prompts, and a chat template."""
    plain = tiny.byte_level()
    plain.backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    plain.settings = type(plain.settings)(special_tokens=plain.settings.special_tokens, chat_templates=TEMPLATE)
    return plain


TOKENIZER = make_tokenizer()


def make_engine(
    *,
    runner: Callable[..., FakeRunner] = FakeRunner,
    tokenizer: Tokenizer | None = TOKENIZER,
    vocab_size: int = TOKENIZER.vocab_size,
    num_pages: int = 400,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_len: int = MAX_LEN,
    pooler: PoolerTraits | None = None,
    transfer: TransferFacts | None = None,
    max_loras: int = 0,
    processor: Processor | None = None,
    media: MediaFacts | None = None,
    options: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> HostedEngine:
    """An engine whose steps `runner` runs; `defaults` are those of a generation config.

    A `processor` prepares what prompts show to an engine that has `media`. With `max_loras` there are the adapters
    `/adapters/one` to `/adapters/nine`.
    """
    config = EngineConfig.from_options(model="tiny", **(options or {}))
    text = ModelText(tokenizer=tokenizer, generation=GenerationDefaults(**defaults), processor=processor)
    grid, ledger = make_grid(max_num_seqs=max_num_seqs), Ledger([PagePool(num_pages)], PAGE_SIZE)
    facts = EngineFacts(
        vocab_size=vocab_size,
        pooler=pooler or PoolerTraits(size=EMBEDDING_SIZE),
        generates=pooler is None,
        max_model_len=max_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        page_size=ledger.page_size,
        num_pages=ledger.pools.num_pages,
        kv_tokens=ledger.pools.tokens_held(page_size=PAGE_SIZE, ahead=max_num_batched_tokens, max_model_len=max_len),
        shapes=grid.buckets,
        transfer=transfer,
        adapters=AdapterFacts(max_loras=max_loras, most_on_host=max_loras) if max_loras else None,
        media=media,
    )
    device = (
        runner(num_pages, PAGE_SIZE, vocab_size, media=media) if media else runner(num_pages, PAGE_SIZE, vocab_size)
    )
    device.files = dict(ADAPTERS)
    return HostedEngine.assemble(
        config,
        device,
        facts,
        text,
        grid=grid,
        ledger=ledger,
        grammars=make_grammars(config, text, vocab_size=vocab_size),
    )


def runner_of(engine: HostedEngine) -> Any:
    """What runs the steps."""
    return engine.core._runner
