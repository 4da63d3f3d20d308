"""Small sums as questions and answers."""

import random

_PLUS = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a} + {b} = ?",
    "What is {a} plus {b}?",
    "How much is {a} + {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "{a} plus {b}?",
)
_MINUS = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} = ?",
    "What is {a} minus {b}?",
    "How much is {a} - {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "{a} minus {b}?",
)
LARGEST = 10
_THINGS = ("apples", "coins", "books", "eggs", "stones", "nuts", "buttons", "pears", "shells", "cookies")


def equation(rng: random.Random) -> str:
    """A sum of two numbers up to ten, or what is left when one is taken away again."""
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    return f"{a} + {b} = {a + b}" if rng.random() < 0.4 else f"{a + b} - {b} = {a}"


def practice_turn(rng: random.Random) -> tuple[str, str]:
    """Many sums in few tokens: an answer to one question holds one sum among forty tokens of conversation."""
    asked = rng.choice(("Practise sums.", "Tell me some sums.", "Write down some sums.", "Can you do sums?"))
    return asked, rng.choice(("\n", ", ")).join(equation(rng) for _ in range(rng.randint(5, 40)))


def sum_turn(rng: random.Random) -> tuple[str, str]:
    """One question with its answer: sums of two numbers up to ten, and what is left when one is taken away again."""
    draw = rng.random()
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    if draw < 0.5:
        return rng.choice(_PLUS).format(a=a, b=b), f"{a} + {b} = {a + b}"
    if draw < 0.88:
        return rng.choice(_MINUS).format(a=a + b, b=b), f"{a + b} - {b} = {a}"
    thing = rng.choice(_THINGS)
    if rng.random() < 0.5:
        return (
            f"I have {a} {thing} and get {b} more. How many do I have?",
            f"You have {a + b} {thing}, because {a} + {b} = {a + b}.",
        )
    return (
        f"I have {a + b} {thing} and give away {b}. How many are left?",
        f"You have {a} {thing} left, because {a + b} - {b} = {a}.",
    )
