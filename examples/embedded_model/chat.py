# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""Conversations without tools: greetings, names, facts, small talk, stories on request."""

import random
from collections.abc import Callable

from examples.embedded_model import lexicon
from examples.embedded_model.characters import Character, resident
from examples.embedded_model.invented import invented_name
from examples.embedded_model.stories import story
from examples.embedded_model.sums import practice_turn, sum_turn
from examples.embedded_model.templates import Slots, expand
from examples.embedded_model.world import facts

Turn = tuple[str, str]
Message = dict[str, object]

FACTS = facts()
SYSTEMS = (
    "You are a helpful assistant.", "You are Wren, a small and friendly assistant.", "You are a friendly assistant. Answer briefly.",
    "Answer in short sentences.", "You are a helpful assistant. Use a tool when it fits.", "Be kind and brief.", "You are a story teller.",
)  # fmt: skip
_ABOUT = (
    ("Who are you?|What are you?|What is your name?|Tell me about yourself.|Can you introduce yourself?",
     "I am Wren, a tiny language model. I know small sums, short stories, and the valley of Willowmere."),
    ("What can you do?|How can you help me?|What do you know?|Help!|Can you help me?",
     "I can tell a short story, do small sums, answer questions about Willowmere, and call a tool when you give me one."),
    ("How are you?|How are you today?|How do you do?|How is it going?|Are you well?", "I am [well|fine], thank you! How can I help you?"),
    ("Thanks!|Thank you!|Thank you very much.|Great, thanks.|That is nice, thank you.", "You are welcome!"),
    ("Bye!|Goodbye!|See you later!|Good night!|I have to go now.", "Goodbye! Come back soon."),
    ("Are you a robot?|Are you a human?|Are you real?", "I am a computer program, a very small language model."),
    ("Who made you?|How were you made?|How were you trained?", "I was trained by a small program on text that it wrote itself."),
    ("What is jaxengine?|What is JAX engine?", "jaxengine is the inference engine that runs me."),
    ("Tell me a joke.|Do you know a joke?|Make me laugh.",
     "[Why did the owl take a lantern to school? Because she wanted to be bright.|What does a snail say on a turtle's back? Whee!|Why did the bee wear a hat? Because its hive was cold.]"),
)  # fmt: skip
_UNKNOWN = (
    "Who won the [football|chess] match [yesterday|last year]?", "What is the capital of {nowhere}?", "Who is the president of {nowhere}?",
    "How do I repair a [car|computer|radio]?", "What is the price of [gold|oil|silver]?", "Explain [quantum physics|the law of {nowhere}|algebra].",
    "Who wrote the book about {nowhere}?", "What is the news today?", "Write a program in [Python|Java|C].", "What is the meaning of {nowhere}?",
)  # fmt: skip
_SENTENCES = (
    "The {look} {item} is on the table.", "My friend {name} lives near {spot}.", "I like {food}.", "{name} has a~ {colour} {item}.",
    "The {animal} runs to {spot}.", "Please bring the {item} to {name}.", "{weather}.", "{name} and {name} eat {food}.",
    "The {animal} and the {animal} are friends.", "There is a~ {look} {item} near {spot}.",
)  # fmt: skip
_RECITED = (
    lexicon.GIRLS, lexicon.BOYS, lexicon.CHAT_NAMES, lexicon.CITIES, lexicon.ANIMALS, lexicon.TREASURES, lexicon.FOODS, lexicon.LOOKS,
    lexicon.COLOURS, [str(number) for number in range(61)],
)  # fmt: skip


def person(rng: random.Random) -> str:
    """A first name, known or invented."""
    return invented_name(rng) if rng.random() < 0.35 else rng.choice(lexicon.CHAT_NAMES + lexicon.GIRLS + lexicon.BOYS)


def _say(rng: random.Random, questions: str, answer: str, **slots: object) -> Turn:
    return expand(rng.choice(questions.split("|")), slots, rng), expand(answer, slots, rng)  # type: ignore[arg-type]


def fact_turn(rng: random.Random) -> Turn:
    """A question about the little world, and its answer."""
    questions, answer = rng.choice(FACTS)
    return expand(rng.choice(questions), {}, rng), expand(answer, {}, rng)


def greeting_turn(rng: random.Random) -> Turn:
    """Someone says who they are."""
    questions = "Hi, I am {n}.|Hello! My name is {n}.|I'm {n}.|Good morning, I am {n}.|Hey, this is {n}.|Hello, I'm {n}!|My name is {n}.|hi, my name is {n}|Hi there! I'm {n}."
    return _say(
        rng, questions, "Hello, {n}! [How can I help you?|Nice to meet you.|What can I do for you?]", n=person(rng)
    )


def plain_greeting_turn(rng: random.Random) -> Turn:
    return _say(
        rng,
        "Hi!|Hello!|Hello|hi|Hey!|Good morning!|Good evening!|Hi there!|Hello there!",
        "Hello! [How can I help you?|What can I do for you?]",
    )


def about_turn(rng: random.Random) -> Turn:
    return _say(rng, *rng.choice(_ABOUT))


def unknown_turn(rng: random.Random) -> Turn:
    """A question from outside the little world is declined."""
    question = expand(rng.choice(_UNKNOWN), {"nowhere": lexicon.CITIES}, rng)
    return question, "I do not know that. I only know small sums, stories, and the valley of Willowmere."


def repeat_turn(rng: random.Random) -> Turn:
    """Copying, word for word."""
    slots: Slots = {
        "look": lexicon.LOOKS, "item": lexicon.TREASURES, "name": person, "spot": lexicon.SPOTS, "food": lexicon.FOODS,
        "colour": lexicon.COLOURS, "animal": lexicon.ANIMALS, "weather": lexicon.WEATHER,
    }  # fmt: skip
    text = expand(rng.choice(_SENTENCES), slots, rng)
    return rng.choice(
        ("Repeat: ", "Please repeat: ", "Say this: ", "Repeat after me: ", "Echo: ", "Copy this sentence: ")
    ) + text, text


def recital_turn(rng: random.Random) -> Turn:
    """Copying without sense: every token of the answer can be had only by looking back, which is what teaches to look back."""
    words = [
        invented_name(rng) if rng.random() < 0.15 else rng.choice(rng.choice(_RECITED))
        for _ in range(rng.randint(3, 24))
    ]
    text = rng.choice((" ", " ", ", ")).join(words)
    return rng.choice(("Repeat: ", "Please repeat: ", "Repeat after me: ", "Echo: ")) + text, text


def story_turn(rng: random.Random) -> Turn:
    """A story, sometimes about someone that the reader names."""
    if rng.random() < 0.3:
        return rng.choice(
            ("Tell me a story.", "Please tell me a short story.", "I want to hear a story.", "Can you tell me a story?")
        ), story(rng, short=True)
    if rng.random() < 0.2:
        hero = resident(rng)
        who = rng.choice((hero.name, f"{hero.name} the {hero.kind}"))
        return f"{rng.choice(('Tell me', 'Please tell me', 'Write'))} a story about {who}.", story(
            rng, hero=hero, short=True
        )
    gender = rng.choice(("girl", "boy"))
    name = rng.choice(lexicon.GIRLS if gender == "girl" else lexicon.BOYS)
    kind = gender if rng.random() < 0.25 else rng.choice(lexicon.ANIMALS)
    hero = Character(name, kind, rng.choice(("little", "small", "young")), rng.choice(lexicon.TRAITS), gender)
    ask = "[Tell me|Please tell me|Write|Can you tell me] a [short|] story about a~ {kind} [named|called] {name}[.|?|]"
    return expand(ask, {"kind": kind, "name": name}, rng), story(rng, hero=hero, short=True)


def name_recall(rng: random.Random) -> list[Turn]:
    """A greeting, something in between, and the question for the name."""
    name = person(rng)
    first = _say(
        rng,
        "Hi, I am {n}.|Hello! My name is {n}.|I'm {n}.|My name is {n}.",
        "Hello, {n}! [How can I help you?|Nice to meet you.]",
        n=name,
    )
    last = _say(rng, "What is my name?|Do you remember my name?|Who am I?", "Your name is {n}.", n=name)
    return [first, *(turn(rng) for turn in rng.sample((fact_turn, sum_turn, about_turn), rng.randint(0, 2))), last]


TURNS: tuple[tuple[Callable[[random.Random], Turn], float], ...] = (
    (sum_turn, 16), (fact_turn, 6), (greeting_turn, 4), (plain_greeting_turn, 0.5), (about_turn, 1.5), (unknown_turn, 1),
    (repeat_turn, 1.5),
)  # fmt: skip


def any_turn(rng: random.Random) -> Turn:
    turn = rng.choices([turn for turn, _ in TURNS], [weight for _, weight in TURNS])[0]
    question, answer = turn(rng)
    return (question if turn is repeat_turn else casual(question, rng)), answer


def casual(text: str, rng: random.Random) -> str:
    """The question as people type it: now and then without capital, without the last mark, or with a few more words."""
    if rng.random() < 0.72 or len(text) > 60:
        return text
    if rng.random() < 0.3:
        return (
            rng.choice(("Please answer: ", "Can you tell me: ", "Tell me, ", "One question: ", "Ok, ", "And ", "So, "))
            + text
        )
    text = text[0].lower() + text[1:] if rng.random() < 0.7 and not text.startswith(("I ", "I'm")) else text
    return text.rstrip("?.!") if rng.random() < 0.7 and len(text) > 6 else text


def messages(turns: list[Turn]) -> list[Message]:
    """Turns as chat messages."""
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def conversation(rng: random.Random) -> list[Message]:
    """A whole conversation of one to five turns, or a story on request."""
    system: list[Message] = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.35 else []
    draw = rng.random()
    if draw < 0.10:
        return system + messages([story_turn(rng)])
    if draw < 0.26:
        return system + messages(name_recall(rng))
    if draw < 0.42:
        return system + messages([recital_turn(rng) for _ in range(rng.randint(1, 4))])
    if draw < 0.54:
        return system + messages([practice_turn(rng)])
    return system + messages([any_turn(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 5)))])
