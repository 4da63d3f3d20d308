"""Who a story is about: a name, a kind, and the words that stand in for them."""

import random
from dataclasses import dataclass

from examples.embedded_model.lexicon import ANIMALS, BOYS, GIRLS, SIZES, TRAITS
from examples.embedded_model.world import RESIDENTS

_PRONOUNS = {"girl": ("she", "her", "her"), "boy": ("he", "him", "his")}


@dataclass(frozen=True, slots=True)
class Character:
    """A person or an animal of a story."""

    name: str
    kind: str
    size: str
    trait: str
    gender: str

    def slots(self, suffix: str = "") -> dict[str, str | list[str]]:
        """The template slots of this character: name, intro ("a little fox named Pip"), the (title) and pronouns."""
        subject, object_, possessive = _PRONOUNS[self.gender]
        title = f"the {self.size} {self.kind}" if self.size else f"the {self.kind}"
        intro = [
            f"a~ {self.size} {self.kind} named {self.name}",
            f"a~ {self.trait} {self.kind} named {self.name}",
            f"a~ {self.trait} {self.size} {self.kind} called {self.name}",
            f"a~ {self.kind} called {self.name}",
        ]
        words = {"name": self.name, "kind": self.kind, "trait": self.trait, "the": title}
        words |= {
            "he": subject,
            "him": object_,
            "his": possessive,
            "himself": f"{object_}self" if self.gender == "girl" else "himself",
        }
        words = {f"{key}{suffix}": value for key, value in words.items()}
        for key in ("the", "he", "his"):
            word = words[f"{key}{suffix}"]
            words[f"{key.capitalize()}{suffix}"] = word[0].upper() + word[1:]
        return {**words, f"intro{suffix}": intro}


def draw(rng: random.Random, *, gender: str | None = None, avoid: tuple[str, ...] = ()) -> Character:
    """A new character whose name and kind are not in `avoid`."""
    gender = gender or rng.choice(("girl", "boy"))
    while True:
        name = rng.choice(GIRLS if gender == "girl" else BOYS)
        kind = rng.choice(ANIMALS) if rng.random() < 0.65 else gender
        if name not in avoid and kind not in avoid:
            return Character(
                name, kind, rng.choice(SIZES[:4]) if kind != "elephant" else "young", rng.choice(TRAITS), gender
            )


def resident(rng: random.Random) -> Character:
    """Someone from Willowmere as the hero of a story."""
    who = rng.choice(RESIDENTS)
    return Character(who.name, who.kind, "little", rng.choice(TRAITS), "girl" if who.pronoun == "she" else "boy")


def draw_pair(rng: random.Random) -> tuple[Character, Character]:
    """A hero and a friend; most often of different gender, so that pronouns stay clear."""
    hero = draw(rng)
    other = "boy" if hero.gender == "girl" else "girl"
    return hero, draw(rng, gender=other if rng.random() < 0.96 else hero.gender, avoid=(hero.name, hero.kind))
