"""Slots of adapters: who gets one, who waits, and what is read again."""

from __future__ import annotations

from collections import Counter

import pytest

from jaxengine.contract.metrics import SchedulerStats
from jaxengine.errors import RequestError
from tests.harness import FILES, Rig, make_request


def request(name: str, adapter: int | None, *, prompt: int = 5, max_tokens: int = 6, **options: object):  # type: ignore[no-untyped-def]
    chosen = None if adapter is None else f"adapter{adapter}"
    return make_request(name, range(1, 1 + prompt), adapter=chosen, max_tokens=max_tokens, **options)


def stats(rig: Rig) -> SchedulerStats:
    return rig.scheduler.stats


def test_each_sequence_has_the_tokens_that_it_has_alone() -> None:
    rig = Rig(num_pages=400, max_num_seqs=8, adapter_slots=3)
    rig.add(*(request(f"r{number}", number % 6 if number % 4 else None, prompt=3 + number % 5) for number in range(40)))
    rig.run()
    rig.assert_oracle()
    answers = {tuple(rig.collected[f"r{number}", 0].tokens) for number in (1, 2, 3)}
    assert len(answers) == 3


def test_a_prefix_belongs_to_its_adapter() -> None:
    rig = Rig(adapter_slots=2)
    for number, adapter in enumerate((None, 1, 2, 1, None)):
        rig.add(request(f"r{number}", adapter, prompt=9, max_tokens=2))
        rig.run()
    rig.assert_oracle()
    cached = [update.admission.num_cached_tokens for update in rig.heard if update.finish_reason]
    assert cached == [0, 0, 0, 8, 8]


def test_who_has_no_slot_waits_and_others_overtake_it() -> None:
    rig = Rig(adapter_slots=1, num_pages=200)
    rig.add(request("a", 1, max_tokens=20), request("b", 2), request("c", 1), request("d", None))
    for _ in range(4):
        rig.step()
    assert (stats(rig).num_running, stats(rig).num_waiting) == (3, 1)
    assert (stats(rig).running_adapters, stats(rig).waiting_adapters) == (("adapter1",), ("adapter2",))
    rig.run()
    rig.assert_oracle()
    assert rig.collected["d", 0].finish_reason == "length"
    told = {update.request_id: update.admission.waited_for for update in rig.heard}
    assert (told["a"], told["b"]) == ("max_loras", "max_loras")  # the one's was being read, the other's had no slot
    assert (stats(rig).running_adapters, stats(rig).waiting_adapters) == ((), ())


def test_a_slot_that_is_always_in_use_is_closed_for_whoever_was_overtaken_too_often() -> None:
    rig = Rig(adapter_slots=1, max_num_seqs=2, num_pages=400)
    rig.add(request("first", 1, max_tokens=3), request("waits", 2))
    for number in range(200):
        rig.add(request(f"r{number}", 1, max_tokens=3 + number % 3))
    ends = []
    while not ends:
        rig.step()
        ends = [update for update in rig.heard if update.request_id == "waits" and update.finish_reason]
    ended = Counter(update.request_id for update in rig.heard if update.finish_reason)
    assert ended.total() < 8
    rig.run()
    rig.assert_oracle()


def test_adapters_that_do_not_fit_the_hosts_memory_are_read_again() -> None:
    rig = Rig(adapter_slots=2, adapters_on_host=2, num_pages=200, delay_of=lambda: 2)
    for turn in range(2):
        rig.add(*(request(f"r{turn}-{number}", number) for number in range(5)))
    rig.run()
    rig.assert_oracle()
    assert rig.adapters is not None
    assert len(rig.adapters.shelf) == 2
    assert len(rig.runner.on_host) == 2


def test_requests_whose_adapter_is_gone_end_with_an_error_alone() -> None:
    rig = Rig(adapter_slots=2, num_pages=200)
    rig.runner.files = {path: digest for path, digest in FILES.items() if path not in ("adapter1", "adapter3")}
    rig.runner.files["adapter3"] = "another"
    rig.add(request("a", 1, n=3), request("b", 2), request("c", 3), request("d", None))
    rig.run()
    told = {key: (collected.finish_reason, collected.stop_reason) for key, collected in rig.collected.items()}
    for index in range(3):
        assert told["a", index] == ("error", "adapter1 is no adapter")
    assert told["c", 0][0] == "error"
    assert "adapter3 is another one than when it was loaded" in str(told["c", 0][1])
    assert told["b", 0] == told["d", 0] == ("length", None)
    rig.runner.files = dict(FILES)  # it is there again
    rig.add(request("e", 1))
    rig.run()
    assert rig.collected["e", 0].expected() == rig.expected(rig.requests["e"])["e", 0]


def test_slots_are_written_again_after_the_devices_memory_was_given_back() -> None:
    rig = Rig(adapter_slots=2, num_pages=200)
    rig.add(request("a", 1, max_tokens=12), request("b", 2, max_tokens=12))
    for _ in range(4):
        rig.step()
    while rig._flights:
        rig._commit_first()
    rig.scheduler.preempt_all()
    assert rig.adapters is not None
    rig.adapters.forget()
    rig.runner.in_slots.clear()
    rig.run()
    rig.assert_oracle()


def test_an_engine_without_adapters_refuses_them() -> None:
    with pytest.raises(RequestError, match="'adapter1': the engine was started without enable_lora"):
        Rig().add(request("a", 1))
