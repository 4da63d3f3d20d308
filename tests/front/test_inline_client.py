"""Core and text in one thread: outputs in a caller's terms, and what their making ends in the core."""

from __future__ import annotations

import pytest

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.request import Request
from jaxengine.errors import ContextLengthError
from jaxengine.front.inline_client import InlineClient
from jaxengine.front.postprocess import Postprocessor, Progress
from jaxengine.host.engine.host import EngineHost
from jaxengine.text.tokenizer import Tokenizer
from tests.fakes import oracle
from tests.harness import VOCAB, Rig, make_request
from tests.host.engine.test_core import make_core
from tests.text import tiny

TOKENIZER = tiny.byte_level()
FACTS = EngineFacts(vocab_size=VOCAB, max_model_len=96)


def make_engine(
    rig: Rig, tokenizer: Tokenizer | None = None, *, postprocessor: Postprocessor | None = None
) -> InlineClient:
    host = EngineHost(make_core(rig), FACTS)
    return InlineClient(host, postprocessor or Postprocessor(tokenizer))


def drain(engine: InlineClient) -> dict[str, RequestOutput]:
    """Run to the end; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    for _ in range(300):
        if not engine.has_unfinished:
            return last
        last |= {output.request_id: output for output in engine.step()}
    raise AssertionError("not done after 300 steps")


def assert_oracle(output: RequestOutput, request: Request, rig: Rig) -> None:
    assert output.finished
    for completion in output.outputs:
        answer = oracle(request, completion.index, vocab_size=VOCAB, max_len=rig.max_len)
        assert completion.token_ids == answer.tokens
        assert completion.finish_reason == answer.finish_reason


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_outputs_are_the_oracles(max_in_flight: int) -> None:
    rig = Rig(max_in_flight=max_in_flight)
    engine = make_engine(rig)
    requests = [make_request("a", range(1, 20)), make_request("b", range(5, 9), n=3, max_tokens=4)]
    for request in requests:
        engine.submit([request])
    last = drain(engine)
    for request in requests:
        assert_oracle(last[request.request_id], request, rig)
    rig.scheduler.check_idle()


def test_a_refused_request_leaves_no_trace() -> None:
    rig = Rig()
    engine = make_engine(rig)
    with pytest.raises(ContextLengthError):
        engine.submit([make_request("a", [1] * 200)])
    request = make_request("a", [1, 2, 3])
    engine.submit([request])
    assert_oracle(drain(engine)["a"], request, rig)


def test_a_request_whose_output_cannot_be_followed_is_not_scheduled() -> None:
    class Refuses(Postprocessor):
        def begin(self, request: Request) -> Progress:
            raise RuntimeError("no detokenizer")

    engine = make_engine(Rig(), postprocessor=Refuses(None))
    with pytest.raises(RuntimeError, match="no detokenizer"):
        engine.submit([make_request("a", [1, 2, 3])])
    assert not engine.has_unfinished


class Chokes(Tokenizer):
    """Has a token that is no text."""

    bad = -1

    def decode(self, ids: object, *, skip_special_tokens: bool = False) -> str:
        if self.bad in ids:  # type: ignore[operator]
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a token that is no text")
        return super().decode(ids, skip_special_tokens=skip_special_tokens)  # type: ignore[arg-type]


def test_a_request_whose_output_cannot_be_built_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    tokenizer = Chokes(TOKENIZER.backend, TOKENIZER.settings)
    engine = make_engine(rig, tokenizer)
    good, bad = make_request("good", range(1, 9)), make_request("bad", range(40, 48), n=2, max_tokens=20)
    answers = [oracle(bad, index, vocab_size=VOCAB, max_len=rig.max_len).tokens for index in range(2)]
    kept = oracle(good, 0, vocab_size=VOCAB, max_len=rig.max_len).tokens
    tokenizer.bad = next(token for token in answers[0][2:] if token not in (*kept, *range(1, 9), *range(40, 48)))
    engine.submit([bad])
    engine.submit([good])
    last = drain(engine)
    assert_oracle(last["good"], good, rig)
    assert last["bad"].finished
    assert [completion.finish_reason for completion in last["bad"].outputs] == ["abort", "abort"]
    assert "request bad is aborted" in caplog.text
    rig.scheduler.check_idle()


def test_a_stop_string_ends_its_own_sequence_in_the_core_too() -> None:
    rig = Rig(max_model_len=80)
    plain = make_request("stops", range(1, 9), n=2, max_tokens=40)
    engine = make_engine(rig, TOKENIZER)
    engine.submit([plain])
    first, second = (completion.text for completion in drain(engine)["stops"].outputs)
    stop = next(char for char in first[3:] if char not in second)
    request = make_request("stops", range(1, 9), n=2, max_tokens=40, stop=[stop])
    other = make_request("other", range(1, 9), max_tokens=9)
    engine.submit([request])
    engine.submit([other])
    last = drain(engine)
    assert_oracle(last["other"], other, rig)
    ended, whole = last["stops"].outputs
    assert (ended.finish_reason, ended.stop_reason, ended.text) == ("stop", stop, first[: first.index(stop)])
    assert (whole.finish_reason, whole.text) == ("length", second)
    rig.scheduler.check_idle()


def test_abort_is_exact_and_tells_nothing_more() -> None:
    rig = Rig()
    engine = make_engine(rig)
    other = make_request("11", range(1, 9))
    engine.submit([make_request("1", range(1, 9))])
    engine.submit([other])
    engine.step()
    engine.abort(["1", "never was"])
    engine.abort(["1"])
    last = drain(engine)
    assert list(last) == ["11"]
    assert_oracle(last["11"], other, rig)
