"""The router: a prompt goes where its beginning went, unless another engine has much less to do; it forgets in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.front.router import WORTH, Router
from tests.media_items import showing

PAGE = 4


def router(*, num_pages: int = 1000) -> Router:
    return Router(page_size=PAGE, num_pages=num_pages)


def prompt(*tokens: int, salt: str | None = None, rank: int | None = None) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=tokens,
        sampling=SamplingParams(),
        max_tokens=1,
        cache_salt=salt,
        data_parallel_rank=rank,
    )


IDLE = {0: 0, 1: 0, 2: 0}
CHAT = tuple(range(40))


def test_a_conversation_stays_where_it_began() -> None:
    routes = router()
    first = routes.choose(prompt(*CHAT), {0: 50, 1: 10, 2: 30})
    assert first == 1
    assert routes.choose(prompt(*CHAT, *range(7)), {0: 0, 1: 60, 2: 0}) == 1


def test_the_longest_prefix_wins() -> None:
    routes = router()
    routes.choose(prompt(*CHAT[:16], rank=0), IDLE)
    routes.choose(prompt(*CHAT[:32], rank=2), IDLE)
    assert routes.choose(prompt(*CHAT), IDLE) == 2


def test_a_common_beginning_is_no_reason_to_wait() -> None:
    """What all of them hold decides nothing, and what one of them holds outweighs only so much work."""
    routes = router()
    for engine in IDLE:
        routes.choose(prompt(*CHAT, rank=engine), IDLE)
    assert routes.choose(prompt(*CHAT), {0: 30, 1: 20, 2: 25}) == 1
    other = tuple(range(100, 140))
    routes.choose(prompt(*other, rank=0), IDLE)
    assert routes.choose(prompt(*other), {0: 20 + 40 * WORTH, 1: 20, 2: 25}) == 1
    routes.forget(1)
    assert routes.choose(prompt(*other), {0: 19 + 40 * WORTH, 1: 20, 2: 25}) == 0


def test_many_of_one_beginning_at_once_are_shared_out() -> None:
    """The first of them goes anywhere, some follow it, and once another engine has it too they part."""
    routes, loads = router(), {0: 0, 1: 0}
    for number in range(40):
        request = prompt(*CHAT, *range(1000 + 20 * number, 1020 + 20 * number))
        loads[routes.choose(request, loads)] += 60
    assert loads == {0: 1200, 1: 1200}


def test_salts_share_nothing() -> None:
    routes = router()
    routes.choose(prompt(*CHAT, salt="a", rank=2), IDLE)
    assert routes.choose(prompt(*CHAT, salt="b"), IDLE) == 0
    assert routes.choose(prompt(*CHAT), IDLE) == 0
    assert routes.choose(prompt(*CHAT, salt="a"), IDLE) == 2


def test_less_than_a_page_is_no_prefix() -> None:
    routes = router()
    routes.choose(prompt(*CHAT[:3], rank=2), IDLE)
    assert routes.choose(prompt(*CHAT[:3]), IDLE) == 0


def test_a_rank_is_an_order_to_engines_that_are_there() -> None:
    routes = router()
    assert routes.choose(prompt(*CHAT, rank=1), {0: 0, 1: 10**9}) == 1
    assert routes.choose(prompt(*CHAT, rank=1), {0: 0, 2: 0}) == 0


def test_an_engine_that_began_again_holds_nothing() -> None:
    routes = router()
    routes.choose(prompt(*CHAT, rank=2), IDLE)
    routes.forget(2)
    assert routes.choose(prompt(*CHAT), IDLE) == 0


def test_what_was_sent_long_ago_is_given_up_from_its_end() -> None:
    routes = router(num_pages=10)
    routes.choose(prompt(*CHAT, rank=2), IDLE)
    routes.choose(prompt(*range(100, 124), rank=2), IDLE)  # six pages: four of the first prompt are left
    assert routes.choose(prompt(*CHAT[:16], 7, 7, 7, 7), IDLE) == 2
    routes.choose(prompt(*range(200, 240), rank=2), IDLE)
    assert routes.choose(prompt(*CHAT), IDLE) == 0


tokens = st.lists(st.integers(0, 1), max_size=6 * PAGE)


@given(st.lists(st.tuples(tokens, st.dictionaries(st.integers(0, 3), st.integers(0, 500), min_size=1)), max_size=20))
def test_choices_are_engines_that_are_there_and_bounded(sent: list[tuple[list[int], dict[int, int]]]) -> None:
    """Whatever was sent before: an engine among those offered, that could be no less loaded and hold more."""
    routes = router(num_pages=8)
    for ids, loads in sent:
        chosen = routes.choose(prompt(*ids), loads)
        assert chosen in loads
        assert all(len(held) <= 8 for held in routes._held.values())
        # Straight after, the same prompt goes to the same engine while loads are what they were.
        assert routes.choose(prompt(*ids), loads) == chosen


def test_another_picture_is_another_prefix() -> None:
    router = Router(page_size=4, num_pages=100)
    request = Request(request_id="r", prompt_token_ids=(), sampling=SamplingParams(), max_tokens=1)
    cat, dog = (showing(request, 1, (name, 7), *range(20)) for name in ("cat", "dog"))
    assert router.choose(cat, {0: 1, 1: 2}) == 0
    assert router.choose(dog, {0: 2, 1: 1}) == 1
    assert router.choose(cat, {0: 20, 1: 1}) == 0
