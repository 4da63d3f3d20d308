"""The user's side alone: it makes requests without the other half, in a process that loads neither that nor JAX."""

from __future__ import annotations

from tests.test_imports import loaded_by

SCRIPT = """
import sys
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.engine_process import EngineProcess
from jaxengine.front.front import Front, make_grammars
from jaxengine.front.model_text import ModelText
from jaxengine.front.postprocess import Postprocessor
from jaxengine.options.config import EngineConfig
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service
from jaxengine.text.generation_config import GenerationDefaults
from tests.text import tiny

class Far:
    facts = EngineFacts(vocab_size=400, max_model_len=96)
    is_alive = False

    def close(self):
        self.closed = True

config = EngineConfig.from_options(model="tiny")
text = ModelText(tokenizer=tiny.byte_level(), generation=GenerationDefaults())
front = Front.of(config, far := Far(), text, grammars=make_grammars(config, text, vocab_size=400))
service = Service.of(front, ServerConfig.from_options())
params = SamplingParams(max_tokens=8, structured_outputs=StructuredOutputsParams(regex="a+"))
assert front.intake.request("Once upon a time", params, request_id="r").grammar
service.close()
front.close()
assert far.closed
other = [name for name in sys.modules if name.startswith(("jaxengine.host", "jaxengine.device", "jaxengine.startup"))]
assert not other, other
"""


def test_a_front_needs_neither_jax_nor_the_other_half() -> None:
    loaded = loaded_by(SCRIPT)
    assert {"jaxengine", "buckets"} <= loaded
    assert loaded.isdisjoint({"jax", "jaxlib", "flax", "xla_cache", "pallas_kernels"})
