# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""Plot skeletons: each is a want, an obstacle, help and an end, told in stages.

A stage is a tuple of variants of which one is told. A `*name` stage takes one from `passages`; a `?name` stage may be
left out. `cast` draws values that stay the same in one story, as rows so that they fit each other.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plot:
    """A named way for a story to go."""

    name: str
    columns: tuple[str, ...]
    cast: tuple[tuple[str, ...], ...]
    stages: tuple[str | tuple[str, ...], ...]
    lessons: tuple[str, ...]


LOST = Plot(
    "lost",
    ("where", "how"),
    (
        ("under a bush", "looked under the leaves"), ("in the tall grass", "searched the grass step by step"),
        ("on top of a branch", "looked up into the tree"), ("behind a big stone", "pushed the stone aside"),
        ("at the bottom of a basket", "turned the basket over"), ("in the sand", "dug with both hands"),
        ("inside a hollow log", "peeked into every dark hole"), ("next to the well", "walked around the well twice"),
        ("under the bed", "looked in every corner of the house"), ("in an old nest", "climbed up very slowly"),
        ("between two barrels", "rolled a barrel away"), ("in the mud", "washed the mud away"),
    ),
    (
        ("{name} had a~ {look} {item}. [It was a present from {his} grandmother|{He} took it everywhere|{He} loved it very much].",
         "The thing {name} loved most was {his} {look} {item}.",
         "For {his} birthday, {name} got a~ {look} {item}. {He} played with it every day."),
        "?weather",
        ("But one day, the {item} was gone. {name} looked [everywhere|here and there|under the table and behind the door], but {he} could not find it.",
         "One morning, {he} wanted to play with the {item}, but it was not there. \"Where is my {item}?\" {he} cried.",
         "On the way home from {spot}, {name} lost the {item}. When {he} noticed, {he} felt very {sad}."),
        "*friend",
        "*ask",
        ("\"I have lost my {item},\" said {name}. \"I [looked|searched] everywhere, but it is [gone|not there].\"",
         "\"My {look} {item} is gone,\" {name} [answered|said sadly]. \"I had it near {spot}.\""),
        ("\"Do not cry,\" said {name2}. \"We will look for it together.\"",
         "\"Let us go back the way you came,\" said {name2}. \"[Four eyes see more than two|I am good at finding things].\"",
         "\"When did you see it last?\" asked {name2}. {name} thought about it. \"Near {spot},\" {he} said. So they went there."),
        "?journey",
        ("{name2} {how}, and there it was: the {item}, {where}!",
         "First they found a~ {look} {other}, but no {item}. Then {name2} {how}. \"Look!\" {he2} shouted. The {item} was {where}.",
         "They {how}. Something {look} lay {where}. It was the {item}!"),
        "*thanks", "*reply", "?share",
    ),
    ("take care of things", "ask for help", "look twice", "help others"),
)  # fmt: skip

MAKE = Plot(
    "make",
    ("want", "made", "need", "source", "price"),
    (
        ("bake a honey cake", "the honey cake", "honey", "the bees", "a song"),
        ("build a boat", "the boat", "wood", "the beaver", "a day of work"),
        ("fly a kite", "the kite", "a long string", "the old spider", "a good story"),
        ("cook a big pot of soup", "the soup", "carrots", "the farmer", "help in the field"),
        ("make a warm scarf", "the scarf", "wool", "the sheep", "a basket of grass"),
        ("build a tree house", "the tree house", "nails", "the blacksmith", "a clean workshop"),
        ("paint a picture of the sea", "the picture", "blue paint", "the painter", "a basket of shells"),
        ("make a lantern", "the lantern", "a candle", "the candle maker", "a jar of jam"),
        ("bake bread for the whole village", "the bread", "flour", "the miller", "two hours of sweeping"),
        ("build a raft", "the raft", "rope", "the fisherman", "a bucket of clams"),
        ("sew a coat", "the coat", "cloth", "the tailor", "a bag of buttons"),
        ("plant a flower garden", "the garden", "seeds", "the gardener", "help with the weeds"),
        ("build a snow house", "the snow house", "a shovel", "the baker", "a cleared path"),
        ("make a flute", "the flute", "a dry reed", "the old heron", "a kind word"),
    ),
    (
        ("[One day|One morning], {name} wanted to {want}. But {he} had no {bare}.",
         "{name} had a [dream|wish|plan]: {he} wanted to {want}. There was only one problem. {He} did not have {need}.",
         "\"Today I will {want},\" said {name}. {He} looked in every cupboard, but there was no {bare} left."),
        "?weather", "*friend",
        ("\"What are you doing?\" asked {name2}. \"I want to {want},\" said {name}, \"but I need {need}.\"",
         "{name} told {name2} about {his} plan. \"To {want}, we need {need},\" {he} said."),
        ("\"I know who has {need}!\" said {name2}. \"{source_cap} [has some|can help us].\"",
         "{name2} thought for a moment. \"Let us ask {source},\" {he2} said.",
         "\"Ask {source},\" said {name2}. \"I will [come with you|show you the way].\""),
        "?journey",
        ("\"You may have {need},\" said {source}, \"but I want {price} for it.\" {name} [agreed|nodded|was glad to do it].",
         "{source_cap} [smiled|listened] and asked for {price}. That was [fair|easy|not too much], and soon they had {need}."),
        "?tries",
        ("[Back at home|Then], they worked [all day|for hours|until the evening]. At last, {made} was [ready|done|finished].",
         "{name} and {name2} [worked side by side|did it step by step]. In the end, {made} [looked wonderful|was better than {name} had hoped]."),
        "*thanks", "?reply", "?share",
    ),
    ("ask for help", "share with friends", "be patient", "try again"),
)  # fmt: skip

STORM = Plot(
    "storm",
    ("storm", "danger", "shelter", "after"),
    (
        ("a big storm", "the wind blew down branches", "a dry cave", "a rainbow stood over the hills"),
        ("heavy rain", "the water rose higher and higher", "the old mill", "the meadow shone in the sun"),
        ("a snowstorm", "the path was gone under the snow", "a small hut", "the whole world was white and still"),
        ("thick fog", "nobody could see the way", "a lighthouse", "the fog was gone and the sea was calm"),
        ("thunder and lightning", "the ground shook", "a warm barn", "the air was fresh and clean"),
        ("a cold north wind", "everything froze", "a deep burrow", "the ice sparkled like glass"),
    ),
    (
        ("One [day|afternoon], {name} went to {spot} to [pick berries|gather nuts|play|fetch water|visit {his} aunt].",
         "{name} was far from home, near {spot}, when the sky turned dark."),
        ("Suddenly, {storm} came. {danger_cap}, and {name} was [afraid|all alone|wet and cold].",
         "Before {he} could turn back, there was {storm}. {danger_cap}. {name} did not know what to do.",),
        ("\"Help!\" {he} [called|cried|shouted]. [For a while, nobody answered|Only the wind answered].",
         "{He} [hid|crouched] under a tree and [shivered|waited|tried not to cry]."),
        ("Then {he} saw a light. It was {intro2} with a lantern. \"Come with me!\" {he2} called.",
         "Then a voice called, \"Over here!\" It was {intro2}. \"I know {shelter}. It is safe there.\"",),
        ("They ran [as fast as they could|hand in hand|through the [rain|wind|dark]] until they reached {shelter}.",
         "{name2} [led the way|took {his} hand], and soon they came to {shelter}."),
        ("Inside it was [warm|dry|quiet]. {name2} [gave {him} a blanket|made a fire|shared {food} with {him}].",
         "\"You are safe now,\" said {name2}, and gave {him} [some {food}|a~ {treat}|a dry {cloth}]."),
        ("They told each other stories [all night|until the storm was over]. In the morning, {after}.",
         "They waited and talked. When they looked out at last, {after}."),
        "*thanks", "?reply",
    ),
    ("help others", "be brave", "listen to friends"),
)  # fmt: skip

LONELY = Plot(
    "lonely",
    ("game", "role"),
    (
        ("hide and seek", "the one who hides"), ("ball", "the one who throws"), ("a running game", "the fastest runner"),
        ("knights", "the brave knight"), ("school", "the teacher"), ("treasure hunt", "the one who reads the map"),
        ("pirates", "the captain"), ("music", "the drummer"), ("circus", "the one who walks the rope"),
    ),
    (
        ("{name} was new in [the village|town|the valley], and {he} had no friends yet.",
         "{name} was often alone. {He} was too shy to [talk to the others|ask the others to play]."),
        ("Every day {he} watched the others play {game} near {spot}. {He} wanted to join them, but {he} did not dare.",
         "The others played {game} by {spot}. {name} only watched from behind a tree and felt {sad}."),
        ("[One day|Then one afternoon], {intro2} saw {him}. \"Why are you hiding?\" {he2} asked.",
         "But {intro2} had noticed {him}. \"Hello,\" {he2} said. \"I am {name2}. What is your name?\""),
        ("\"I am {name},\" said {the} very quietly. \"I would like to play, but I am afraid that [nobody wants me|you will laugh].\"",
         "\"My name is {name},\" {he} said. \"I [do not know how to play {game}|have never played {game} before].\""),
        ("\"Nobody will laugh,\" said {name2}. \"Come, you can be {role}!\"",
         "\"It is easy,\" said {name2}. \"I will show you. You can be {role}.\"",),
        ("At first {name} made a few mistakes, but nobody minded. Soon {he} was {role}, and {he} laughed with the others.",
         "So {name} played {game} for the first time, and {he} was good at it. \"You are a wonderful player!\" the others shouted.",),
        "?share", "*thanks", "?reply",
    ),
    ("be kind", "be brave", "share with friends"),
)  # fmt: skip

QUARREL = Plot(
    "quarrel",
    (),
    ((),),
    (
        ("{name} and {name2} were [neighbours|friends], and {name2} was a~ {trait2} {kind2}. They [did everything together|met every day at {spot}].",
         "{name} had a friend, {intro2}. The two of them [played|met] by {spot} every day."),
        ("One day, they found a~ {look} {item} [near {spot}|in the grass|on the path]. \"It is mine!\" said {name}. \"No, I saw it first!\" said {name2}.",
         "One day, {name2} broke {name}'s {look} {item}. \"You did that on purpose!\" shouted {name}. \"I did not!\" said {name2}.",
         "One day, {name} borrowed {name2}'s {look} {item} and forgot to bring it back. {name2} was very angry."),
        ("They [shouted|argued] until both were [tired|red in the face]. Then each went home alone.",
         "\"I will never play with you again!\" said {name2}, and {he2} ran away."),
        ("That night, {name} could not sleep. The bed was warm, but {he} felt cold inside. {He} missed {name2}.",
         "At home it was very quiet. {name} tried to play alone, but it was no fun. \"I miss {name2},\" {he} thought."),
        ("The next morning, {name} [baked {food}|picked some flowers|took the {item}] and went to {name2}'s door.",
         "Early in the morning, {name} [ran|walked] to {spot}. {name2} was already there, looking {sad}."),
        ("\"I am sorry,\" said {name}. \"A friend is worth more than a~ {item}.\"",
         "\"I was wrong,\" {name} said. \"Please forgive me. I do not want to fight [anymore|about a~ {item}].\"",),
        ("\"I am sorry too,\" said {name2}. [They hugged, and everything was good again|Then both of them laughed].",
         "{name2} smiled. \"Let us share it,\" {he2} said. \"One day you have the {item}, and the next day I have it.\"",),
        "?share",
    ),
    ("say sorry", "share with friends", "be kind"),
)  # fmt: skip
