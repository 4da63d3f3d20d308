# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""The shapes of tools that the model learns to call, with many names for each, and how a user asks for them."""

import random
from dataclasses import dataclass

from examples.embedded_model import lexicon
from examples.embedded_model.invented import invented_name
from examples.embedded_model.templates import Slots, expand

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool: the names it may go by, its JSON type, what it means, and where values come from."""

    names: tuple[str, ...]
    type: str
    description: str
    values: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A family of tools that do the same thing under different names."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]  # slots {0}, {1} are the argument values
    results: tuple[str, ...]  # JSON templates of what the tool answers; {x}, {y} are drawn
    answer: str  # the sentence made of it
    decline: str


CITY = Parameter(("city", "location"), "string", "Name of the city", "city")
SHAPES = (
    Shape(("get_weather", "weather"), ("Get the weather in a city", "Current weather of a place", "Look up the weather"), (CITY,),
          ("What is the weather in {0}?", "How is the weather in {0}?", "What's the weather like in {0}?", "Tell me the weather in {0}.", "Is it raining in {0}?", "Do I need an umbrella in {0}?", "Weather in {0}?", "Is it cold in {0} today?"),
          ('{"temperature": {n}, "condition": "{sky}"}', '{"condition": "{sky}", "temperature": {n}}'), "It is {sky} in {0}, with {n} degrees.", "look up the weather"),
    Shape(("add", "add_numbers"), ("Add two numbers", "The sum of two numbers"), (Parameter(("a", "x"), "integer", "First number", "number"), Parameter(("b", "y"), "integer", "Second number", "number")),
          ("What is {0} + {1}?", "Add {0} and {1}.", "What is {0} plus {1}?", "How much is {0} plus {1}?", "Calculate {0} + {1}."), ('{"result": {n}}', "{n}"), "{0} + {1} = {n}", "add such numbers"),
    Shape(("set_timer", "start_timer"), ("Start a timer", "Set a timer for some minutes"), (Parameter(("minutes", "duration"), "integer", "Minutes until it rings", "number"),),
          ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Please set a {0} minute timer.", "Wake me in {0} minutes.", "Remind me in {0} minutes.", "Timer for {0} minutes, please."), ('{"status": "ok"}', '{"started": true}', '"ok"'), "The timer is set for {0} minutes.", "set a timer"),
    Shape(("search", "web_search"), ("Search for information", "Search the web"), (Parameter(("query", "q"), "string", "What to search for", "topic"),),
          ("Search for {0}.", "Please search for {0}.", "Find information about {0}.", "Look up {0}.", "Search the web for {0}.", "Can you search for {0}?"), ('{"results": {n}}', '{"count": {n}}', '{"hits": {n}}'), "I found {n} results for {0}.", "search the web"),
    Shape(("get_time", "current_time"), ("Get the time in a city", "Current local time of a place"), (CITY,),
          ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?", "What is the time in {0}?", "Current time in {0}?"), ('{"time": "{clock}"}', '"{clock}"', '{"local_time": "{clock}"}'), "It is {clock} in {0}.", "tell the time"),
    Shape(("turn_on_light", "light_on"), ("Turn on the light in a room", "Switch a light on"), (Parameter(("room", "where"), "string", "Which room", "room"),),
          ("Turn on the light in the {0}.", "Switch on the light in the {0}.", "Light in the {0}, please.", "It is dark in the {0}, turn on the light."), ('{"status": "on"}', '{"ok": true}', '"on"'), "The light in the {0} is on.", "switch lights"),
)  # fmt: skip
_ROOMS = ("kitchen", "bedroom", "hall", "garden", "cellar", "bathroom", "living room", "garage", "attic", "office")
_TOPICS = ("{colour} {item}s", "{animal}s", "hotels in {city}", "trains to {city}", "{food}", "the {colour} {animal}")
_SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy")


def _city(rng: random.Random) -> str:
    return invented_name(rng) if rng.random() < 0.3 else rng.choice(lexicon.CITIES)


VALUES: Slots = {
    "city": _city, "number": lambda rng: str(rng.randint(1, 60)), "item": lexicon.TREASURES,
    "colour": lexicon.COLOURS, "food": lexicon.FOODS, "animal": lexicon.ANIMALS, "room": _ROOMS, "topic": _TOPICS,
    "sky": _SKIES, "n": lambda rng: str(rng.randint(0, 40)), "clock": lambda rng: f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}",
}  # fmt: skip


def draw_value(name: str, rng: random.Random) -> str:
    """A value of a kind, as text."""
    return _plain(rng, "{" + name + "}")


def _plain(rng: random.Random, template: str) -> str:
    """The template filled, with its own letters kept (no sentence capitals)."""
    text = expand("x " + template, VALUES, rng)
    return text[2:]


@dataclass(frozen=True, slots=True)
class Tool:
    """A shape under one set of names."""

    shape: Shape
    name: str
    arguments: tuple[str, ...]
    schema: Json

    def call(self, values: list[str]) -> Json:
        """The call that passes these values."""
        typed = [int(v) if p.type == "integer" else v for v, p in zip(values, self.shape.parameters, strict=True)]
        return {"name": self.name, "arguments": dict(zip(self.arguments, typed, strict=True))}


def draw_tool(shape: Shape, rng: random.Random) -> Tool:
    """The shape with names drawn, and its schema in the form of the OpenAI interface."""
    arguments: list[str] = []
    properties: Json = {}
    for parameter in shape.parameters:
        arguments.append(rng.choice([name for name in parameter.names if name not in arguments]))
        described = {"description": parameter.description} if rng.random() < 0.2 else {}
        properties[arguments[-1]] = {"type": parameter.type} | described
    name = rng.choice(shape.names)
    parameters: Json = {"type": "object", "properties": properties, "required": list(arguments)}
    function: Json = {"name": name, "description": rng.choice(shape.descriptions), "parameters": parameters}
    return Tool(shape, name, tuple(arguments), {"type": "function", "function": function})


def draw_toolbox(rng: random.Random, *, count: int, without: Shape | None = None) -> list[Tool]:
    """Some different tools."""
    shapes = [shape for shape in SHAPES if shape is not without]
    return [draw_tool(shape, rng) for shape in rng.sample(shapes, count)]
