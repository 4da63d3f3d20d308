"""A real HTTP server on loopback around an engine without a model: every part is real but the device, a fake runner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import uvicorn
from tokenizers import processors

from jaxengine.batch import Batch, Masks
from jaxengine.config import EngineConfig
from jaxengine.engine.core import EngineCore
from jaxengine.engine.intake import Intake, end_token_ids
from jaxengine.grammar.grammars import Grammars
from jaxengine.kvcache.ledger import Ledger
from jaxengine.scheduler.limits import SchedulerLimits
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.server.app import create_app
from jaxengine.server.http.protocol import BoundedProtocol
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.tokenizer import Tokenizer
from tests.fakes import EMBEDDING_SIZE, FakePending, FakeRunner
from tests.harness import make_grid
from tests.text import tiny

if TYPE_CHECKING:
    from jaxengine.startup.build import Engine

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
MAX_LEN = 96


def make_tokenizer() -> Tokenizer:
    """Bytes, with a BOS that is added to prompts, and a chat template."""
    plain = tiny.byte_level()
    plain.backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    plain.settings = type(plain.settings)(special_tokens=plain.settings.special_tokens, chat_templates=TEMPLATE)
    return plain


TOKENIZER = make_tokenizer()


class GatedRunner(FakeRunner):
    """Takes a step only when it is allowed one; `open` allows all that follow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.allowed = threading.Semaphore(0)
        self.opened = False

    def launch(self, batch: Batch, masks: Masks) -> FakePending:
        """Wait for permission."""
        while not self.opened and not self.allowed.acquire(timeout=0.01):
            pass
        return super().launch(batch, masks)

    def allow(self, steps: int) -> None:
        """Let so many more steps run."""
        for _ in range(steps):
            self.allowed.release()

    def open(self) -> None:
        """Let everything run."""
        self.opened = True


def make_engine(
    *,
    runner: Callable[..., FakeRunner] = FakeRunner,
    num_pages: int = 400,
    max_num_seqs: int = 8,
    max_len: int = MAX_LEN,
    **defaults: Any,
) -> Engine:
    """An engine around a fake runner; `defaults` are those of a generation config."""
    vocab_size = TOKENIZER.vocab_size
    ledger = Ledger(num_pages, 4)
    limits = SchedulerLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=64)
    device = runner(num_pages, 4, vocab_size)
    scheduler = Scheduler(limits, make_grid(max_num_seqs=max_num_seqs), ledger, vocab_size=vocab_size)
    generation = GenerationDefaults(**defaults)
    grammars = Grammars(TOKENIZER, vocab_size=vocab_size, end_ids=end_token_ids(TOKENIZER, generation))
    engine = SimpleNamespace(
        config=EngineConfig.from_options(model="tiny"),
        core=EngineCore(scheduler, device),
        ledger=ledger,
        intake=Intake(
            TOKENIZER,
            vocab_size=vocab_size,
            max_model_len=max_len,
            defaults=generation,
            grammars=grammars,
            embedding_size=EMBEDDING_SIZE,
        ),
        tokenizer=TOKENIZER,
        grammars=grammars,
        limits=SimpleNamespace(max_model_len=max_len, max_num_batched_tokens=64),
        executables={},
        compile_counter=SimpleNamespace(count=0),
        phases={},
        runner=device,
    )
    return cast("Engine", engine)


class Live:
    """A server that runs in a thread of this process, with a client."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.engine = engine
        self.service = Service.of(engine, ServerConfig.from_options(**options))
        config = uvicorn.Config(
            create_app(self.service),
            http=BoundedProtocol,
            port=0,
            log_level="error",
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def close(self) -> None:
        """Stop it, and prove that nothing was lost."""
        self.http.close()
        self._server.should_exit = True
        runner = getattr(self.engine, "runner", None)
        if isinstance(runner, GatedRunner):
            runner.open()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"
        self.engine.core.check_idle()
        if self.engine.grammars is not None:
            self.engine.grammars.close()

    @property
    def runner(self) -> Any:
        """The fake device."""
        return self.engine.runner  # type: ignore[attr-defined]

    def post(self, path: str, **body: Any) -> httpx.Response:
        """POST a JSON body."""
        return self.http.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[str]:
        """The data of all events of a stream."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


@contextmanager
def live(engine: Engine | None = None, **options: Any) -> Iterator[Live]:
    """A running server."""
    server = Live(engine or make_engine(), **options)
    try:
        yield server
    finally:
        server.close()
