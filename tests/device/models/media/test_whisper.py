"""Whisper against what transformers computed: the encoder writes pages, and the decoder's rows read them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from buckets import Bucket
from jaxengine.contract.media import Encoding, SlotMedia, ToEncode
from jaxengine.contract.rows import Align, Pool, Row
from jaxengine.front.words import token_times
from tests.device.models.media import whisper_case
from tests.device.models.media.cases import Fixture
from tests.device.models.media.test_parity import CHUNK, MAX_ERROR, worst_error
from tests.device.models.media.whisper_case import NUM_GREEDY, PLACES, SoundPrompt
from tests.device.models.paged import EMBEDDING_PAGE, EMBEDDING_PAGES, MIXED, PagedModel

TWO, ONE = Bucket(2, 2 * PLACES), Bucket(1, PLACES)
NOWHERE = np.zeros(0, np.int32)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        yield


class HearingModel(PagedModel):
    """Its encoder takes one sound, or two."""

    def __init__(self, fixture: Fixture, **options) -> None:
        super().__init__(fixture.config, fixture.tensors, encoders=(TWO, ONE), **options)
        self._encodings = 0

    def hear(self, prompts: Sequence[SoundPrompt], *, together: bool = True) -> list[SlotMedia]:
        """Encode each sound once, into pages that lie anywhere but in the sink."""
        free = np.random.default_rng(self._encodings).permutation(np.arange(1, EMBEDDING_PAGES)).astype(np.int32)
        count = -(-PLACES // EMBEDDING_PAGE)
        numbers = sorted({prompt.sound for prompt in prompts})
        pages = {sound: free[at * count : (at + 1) * count] for at, sound in enumerate(numbers)}
        items = [ToEncode(SoundPrompt((), sound).item(), pages[sound]) for sound in numbers]
        size = 2 if together else 1
        for first in range(0, len(items), size):
            self._encodings += 1
            bucket = TWO if together else ONE
            self.runner.encode(Encoding(self._encodings, bucket, tuple(items[first : first + size])))
        return [
            SlotMedia(
                places=NOWHERE,
                embeddings=NOWHERE,
                spans=NOWHERE.reshape(0, 2),
                pages=pages[prompt.sound],
                num_read=PLACES,
            )
            for prompt in prompts
        ]


@pytest.fixture(scope="module")
def fixture() -> Fixture:
    return whisper_case.load()


@pytest.fixture(scope="module")
def ids() -> list[Sequence[int]]:
    return [prompt.ids for prompt in whisper_case.prompts()]


def test_log_probabilities_and_greedy_tokens_equal_transformers(fixture, ids):
    model, prompts = HearingModel(fixture), whisper_case.prompts()
    found = model.logprobs(ids, seq=CHUNK, media=model.hear(prompts))
    assert worst_error(found, fixture) < MAX_ERROR
    media = model.hear(prompts, together=False)
    assert model.greedy(ids, NUM_GREEDY, seq=CHUNK, media=media) == fixture.greedy


def test_bits_are_the_same_alone_and_in_company(fixture, ids):
    model, prompts = HearingModel(fixture), whisper_case.prompts()
    in_company = model.logprobs(ids, seq=CHUNK, media=model.hear(prompts))
    for number, prompt in enumerate(prompts):
        [alone] = model.logprobs([prompt.ids], seq=64, media=model.hear([prompt], together=False))
        np.testing.assert_array_equal(alone, in_company[number])


def aligned(model: HearingModel, timed: whisper_case.Timed) -> np.ndarray:
    """What the runner brings up of a text, beside another row."""
    ids = (*timed.prompt, *timed.text)
    media = model.hear([SoundPrompt(ids, timed.sound), SoundPrompt((9, 10), 1 - timed.sound % 2)])
    model._begin([len(ids), 2], None, media)
    want = Align(first=len(timed.prompt), frames=timed.frames // 2)
    rows = [Row(2, (9, 10), 2, 0, Pool()), Row(1, ids, len(ids), 0, want)]
    hidden, picture = model._launch(MIXED, rows).pooled
    assert hidden.shape == (64,)
    return picture


@pytest.mark.parametrize("devices", [1, 2])
def test_tokens_are_said_when_transformers_says(fixture, devices):
    model = HearingModel(fixture, devices=devices)
    for timed in whisper_case.timed():
        picture = aligned(model, timed)
        assert picture.shape == (len(timed.text), timed.frames // 2)
        assert token_times(picture) == pytest.approx(timed.times)


def test_two_devices_equal_one(fixture, ids):
    model = HearingModel(fixture, devices=2)
    found = model.logprobs(ids, seq=CHUNK, media=model.hear(whisper_case.prompts()))
    assert worst_error(found, fixture) < MAX_ERROR


def test_another_sound_is_another_answer(fixture, ids):
    """The bound above means something: a sound that is not the prompt's breaks it."""
    model, prompts = HearingModel(fixture), whisper_case.prompts()
    first, second, *others = model.hear(prompts)
    found = model.logprobs(ids, seq=CHUNK, media=[second, first, *others])
    assert worst_error(found, fixture) > 2 * MAX_ERROR
