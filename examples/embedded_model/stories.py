"""One story: a plot, its cast, and the telling of its stages."""

import random

from examples.embedded_model import lexicon, passages
from examples.embedded_model.adventures import PLOTS
from examples.embedded_model.characters import Character, draw_pair, resident
from examples.embedded_model.plots import Plot
from examples.embedded_model.templates import Slot, expand
from examples.embedded_model.world import RESIDENTS

_SHARED = {
    "weather": passages.WEATHER,
    "friend": passages.FRIEND_ARRIVES,
    "ask": passages.ASKS_WHATS_WRONG,
    "journey": passages.JOURNEY,
    "tries": passages.TRIES,
    "thanks": passages.THANKS,
    "reply": passages.REPLIES,
    "share": passages.SHARE,
    "detail": passages.DETAILS,
}
RESIDENT_NAMES = {who.name for who in RESIDENTS}
_BEFORE_NOUN = ("a ", "an ", "the ", "some ")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _bare(noun: str) -> str:
    for word in _BEFORE_NOUN:
        noun = noun.removeprefix(word)
    return noun


def _slots(rng: random.Random, plot: Plot, hero: Character, friend: Character) -> dict[str, Slot]:
    """Everything a template of this story may ask for; what is drawn here stays the same in the whole story."""
    item, other = rng.sample(lexicon.TREASURES, 2)
    spot, *far = rng.sample(lexicon.SPOTS, 4)
    slots: dict[str, Slot] = {
        "place": rng.choice(lexicon.PLACES), "spot": spot, "far": far, "item": item, "other": other,
        "look": rng.choice(lexicon.LOOKS + lexicon.COLOURS), "colour": rng.choice(lexicon.COLOURS),
        "food": rng.sample(lexicon.FOODS, 2), "treat": rng.choice(lexicon.TREATS), "weather": lexicon.WEATHER,
        "glad": lexicon.GLAD, "sad": lexicon.SAD, "season": passages.SEASONS, "lesson": rng.choice(plot.lessons),
        "kinds": ("small birds", "butterflies", "beetles", "mushrooms", "blue flowers"),
        "stranger": rng.choice(("old woman", "shepherd", "wise owl", "old tortoise", "fisherman", "heron")),
        "cloth": ("coat", "scarf", "blanket", "shirt"), "trait_curious": ("curious", "brave", "restless"),
        "size": hero.size, "yearseason": passages.YEAR_SEASONS, "snack": lexicon.TREATS,
    }  # fmt: skip
    slots |= hero.slots() | friend.slots("2")
    row = dict(zip(plot.columns, rng.choice(plot.cast), strict=True))
    slots |= row
    slots |= {f"{key}_cap": _capital(value) for key, value in row.items()}
    slots["intro2_cap"] = [_capital(text) for text in friend.slots("2")["intro2"]]
    slots |= {f"{key}_the": f"the {_bare(value)}" for key, value in row.items()}
    slots |= {f"{key}_The": f"The {_bare(value)}" for key, value in row.items()}
    slots["intro_cap"] = [_capital(text) for text in hero.slots()["intro"]]
    slots["He2_cap"] = _capital(str(slots["he2"]))
    slots["bare"] = _bare(row.get("need", ""))
    return slots


def _stages(rng: random.Random, plot: Plot, told: set[str], *, detail: float) -> list[str]:
    """One template per stage that is told, with a `detail` after some; nothing is told twice in a story."""
    chosen: list[str] = []
    stages: list[str | tuple[str, ...]] = []
    for number, stage in enumerate(plot.stages):
        stages += [stage, "*detail"] if 3 < number < len(plot.stages) - 3 and rng.random() < detail else [stage]
    for stage in stages:
        if isinstance(stage, str):
            if stage[0] == "?" and rng.random() < 0.55:
                continue
            stage = _SHARED[stage[1:]]
        fresh = [text for text in stage if text not in told]
        chosen.append(rng.choice(fresh))
        told.add(chosen[-1])
    return chosen


def story(rng: random.Random, *, hero: Character | None = None, plot: Plot | None = None, short: bool = False) -> str:
    """A whole story as plain text; `short` leaves out the decoration."""
    plot = plot or rng.choice(PLOTS)
    first, friend = draw_pair(rng)
    if hero is None and rng.random() < 0.08:
        hero = resident(rng)
    if hero is not None:
        while friend.name == hero.name or friend.kind == hero.kind or friend.gender == hero.gender:
            friend = draw_pair(rng)[1]
    hero = hero or first
    at_home = hero.name in RESIDENT_NAMES
    slots = _slots(rng, plot, hero, friend)
    if at_home:
        slots["place"] = "the valley of Willowmere"
    told: set[str] = set()
    opening = [rng.choice(passages.OPENINGS)]
    if not short and rng.random() < 0.6:
        opening.append(rng.choice(passages.HABITS))
    body = _stages(rng, plot, told, detail=0.0 if short else 0.12)
    ending = [rng.choice(passages.ENDINGS)]
    paragraphs = _paragraphs(rng, opening, body, ending)
    return "\n\n".join(expand(" ".join(part), slots, rng) for part in paragraphs)


def _paragraphs(rng: random.Random, opening: list[str], body: list[str], ending: list[str]) -> list[list[str]]:
    """The sentences grouped: sometimes one block, most often three or four paragraphs."""
    if rng.random() < 0.3:
        return [opening + body + ending]
    cut = rng.randint(2, max(2, len(body) - 3))
    first, second = body[:cut], body[cut:]
    if rng.random() < 0.5:
        return [opening, first, second + ending]
    return [opening + first, second, ending]
