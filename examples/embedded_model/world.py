# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""The little world of the model: who lives in the valley of Willowmere and what is where. About ninety facts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """Someone who lives in Willowmere; every field is a fact."""

    name: str
    kind: str
    home: str
    colour: str
    food: str
    job: str
    pronoun: str


RESIDENTS = (
    Resident("Bramble", "badger", "under the old oak", "grey", "mushroom stew", "baker", "he"),
    Resident("Pipkin", "mouse", "in the windmill", "brown", "cheese", "miller", "she"),
    Resident("Orla", "owl", "in the bell tower", "white", "blueberries", "teacher", "she"),
    Resident("Rusty", "fox", "behind the waterfall", "red", "plum tart", "postman", "he"),
    Resident("Tansy", "rabbit", "in the clover field", "golden", "carrot soup", "gardener", "she"),
    Resident("Grumble", "bear", "in the honey cave", "black", "honey cake", "beekeeper", "he"),
    Resident("Dabble", "duck", "on Mirror Lake", "yellow", "bread", "boat builder", "she"),
    Resident("Quill", "hedgehog", "in the library", "silver", "apples", "writer", "he"),
    Resident("Sorrel", "squirrel", "in the tall pine", "orange", "hazelnuts", "carpenter", "she"),
    Resident("Ripple", "otter", "by the stone bridge", "blue", "cherries", "fisherman", "he"),
    Resident("Moss", "turtle", "in the moonlit garden", "green", "salad", "doctor", "he"),
    Resident("Clover", "goat", "on Thistle Hill", "pink", "oat biscuits", "weaver", "she"),
)

# question variants, answer; each row is one fact about places and customs
PLACES = (
    ("What is the [river|name of the river] in Willowmere?|What is the river called?", "The river in Willowmere is called the Silverthread."),
    ("What is the [mountain|highest mountain] [called|in Willowmere]?|Which mountain is the highest?", "The highest mountain in Willowmere is Mount Ember."),
    ("What is the lake called?|What is the name of the lake in Willowmere?", "The lake in Willowmere is called Mirror Lake."),
    ("What is the forest called?|What is the name of the forest in Willowmere?", "The forest in Willowmere is called the Whispering Wood."),
    ("What is Willowmere?|Where is Willowmere?|Tell me about Willowmere.", "Willowmere is a green valley between Mount Ember and the sea."),
    ("How many residents live in Willowmere?|How many animals live in Willowmere?", "Twelve animals live in Willowmere."),
    ("When is the lantern feast?|What happens in autumn in Willowmere?", "The lantern feast is on the first night of autumn."),
    ("What colour is the [door of the library|library door]?", "The door of the library is purple."),
    ("Who rings the bell in Willowmere?|Who rings the bell?", "Orla the owl rings the bell every morning."),
    ("What grows in the moonlit garden?", "White roses grow in the moonlit garden."),
    ("What is the inn called?|What is the name of the inn in Willowmere?", "The inn in Willowmere is called the Sleepy Acorn."),
    ("What is on top of Mount Ember?", "There is an old lighthouse on top of Mount Ember."),
    ("What day is market day?|When is the market in Willowmere?", "Market day in Willowmere is Saturday."),
    ("What is the treasure of Willowmere?", "The treasure of Willowmere is a golden acorn."),
    ("Where is the golden acorn?|Where is the treasure hidden?", "The golden acorn is hidden under the stone bridge."),
    ("Where does the Silverthread flow?", "The Silverthread flows from Mount Ember into Mirror Lake."),
)  # fmt: skip

EVERYDAY = (
    ("What colour is [the sky|a clear sky]?", "The sky is blue."), ("What colour is grass?", "Grass is green."),
    ("What colour is snow?", "Snow is white."), ("What colour is a lemon?", "A lemon is yellow."),
    ("What colour is a ripe tomato?|What colour is a tomato?", "A ripe tomato is red."), ("What colour is coal?", "Coal is black."),
    ("What sound does a cow make?|What does a cow say?", "A cow says moo."), ("What sound does a dog make?|What does a dog say?", "A dog says woof."),
    ("What sound does a cat make?|What does a cat say?", "A cat says meow."), ("What sound does a duck make?|What does a duck say?", "A duck says quack."),
    ("What sound does a sheep make?|What does a sheep say?", "A sheep says baa."), ("What sound does a bee make?|What does a bee say?", "A bee says buzz."),
    ("How many legs does a spider have?", "A spider has eight legs."), ("How many legs does a cat have?", "A cat has four legs."),
    ("How many legs does a bird have?", "A bird has two legs."), ("How many legs does a bee have?", "A bee has six legs."),
    ("How many days are in a week?|How many days does a week have?", "A week has seven days."),
    ("How many months are in a year?|How many months does a year have?", "A year has twelve months."),
    ("How many hours are in a day?|How many hours does a day have?", "A day has twenty-four hours."),
    ("How many minutes are in an hour?|How many minutes does an hour have?", "An hour has sixty minutes."),
    ("What day comes after Monday?", "Tuesday comes after Monday."), ("What day comes after Friday?", "Saturday comes after Friday."),
    ("What do bees make?", "Bees make honey."), ("What is ice made of?", "Ice is made of frozen water."),
    ("Where does milk come from?", "Milk comes from cows."), ("What do caterpillars become?", "Caterpillars become butterflies."),
    ("What season comes after winter?", "Spring comes after winter."), ("What season comes after summer?", "Autumn comes after summer."),
    ("Where does the sun rise?", "The sun rises in the east."), ("Where does the sun set?", "The sun sets in the west."),
    ("What do we call a young dog?|What is a young dog called?", "A young dog is called a puppy."),
    ("What do we call a young cat?|What is a young cat called?", "A young cat is called a kitten."),
)  # fmt: skip


def resident_facts(resident: Resident) -> list[tuple[str, str]]:
    """The facts about one resident as (question template, answer) pairs."""
    name, kind, he = resident.name, resident.kind, resident.pronoun
    who = f"{name} the {kind}"
    return [
        (f"Where does {name} [the {kind}|] live?|Where can I find {name}?", f"{who} lives {resident.home}."),
        (f"Who lives {resident.home}?", f"{who} lives {resident.home}."),
        (
            f"What colour is {name}'s scarf?|What colour of scarf does {name} wear?",
            f"{name} wears a~ {resident.colour} scarf.",
        ),
        (f"Who wears a~ {resident.colour} scarf?", f"{who} wears a~ {resident.colour} scarf."),
        (f"What does {name} [like|love] to eat?|What is {name}'s favourite food?", f"{name} loves {resident.food}."),
        (f"Who [likes|loves] {resident.food}?", f"{who} loves {resident.food}."),
        (
            f"What is {name}'s job?|What does {name} do?|What does {name} work as?",
            f"{name} is the {resident.job} of Willowmere.",
        ),
        (f"Who is the {resident.job} [of|in] Willowmere?", f"{who} is the {resident.job} of Willowmere."),
        (
            f"Who is {name}?|Tell me about {name}.",
            f"{name} is a~ {kind} who lives {resident.home}. {he.capitalize()} is the {resident.job} of Willowmere.",
        ),
        (f"What kind of animal is {name}?|What animal is {name}?", f"{name} is a~ {kind}."),
    ]


def facts() -> list[tuple[list[str], str]]:
    """Every fact as (question templates, answer template)."""
    rows = [pair for resident in RESIDENTS for pair in resident_facts(resident)] + [*PLACES, *EVERYDAY]
    return [(_variants(question), answer) for question, answer in rows]


def _variants(question: str) -> list[str]:
    """The questions of a row: split at the bars that stand outside of brackets."""
    parts, depth = [""], 0
    for character in question:
        depth += (character == "[") - (character == "]")
        if character == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
