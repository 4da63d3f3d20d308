# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""More plot skeletons: fears, rescues, mysteries, races, gardens and gifts."""

from examples.embedded_model.everyday_plots import EVERYDAY_PLOTS
from examples.embedded_model.plots import LONELY, LOST, MAKE, QUARREL, STORM, Plot
from examples.embedded_model.wonder_plots import WONDER_PLOTS

FEAR = Plot(
    "fear",
    ("fear", "do", "trick", "done"),
    (
        ("the dark", "go into the dark cellar", "hold a small lantern", "{he} saw that there were only old boxes"),
        ("deep water", "swim across the pond", "hold on to a piece of wood", "{he} reached the other side"),
        ("high places", "climb the tall tower", "look up and never down", "{he} could see the whole valley"),
        ("thunder", "stay outside in a storm", "count slowly after each flash", "the storm moved away"),
        ("singing in front of others", "sing at the summer feast", "look only at a friend", "everybody clapped"),
        ("the old bridge", "cross the old bridge", "take one step at a time", "{he} stood on the far side"),
        ("big dogs", "walk past the farmer's dog", "speak in a soft voice", "the dog wagged its tail"),
        ("the forest at night", "walk through the forest at night", "hum a happy tune", "{he} heard only the friendly owls"),
    ),
    (
        ("But there was one thing: {name} was afraid of {fear}.", "{name} was not afraid of much, only of {fear}.",
         "Nobody knew it, but {the} was afraid of {fear}."),
        ("One day, {he} had to {do}, because {his} {look} {item} was there.",
         "One day, {his} friends wanted to {do}. \"Are you coming?\" they asked. {name} [looked at {his} feet|shook {his} head].",
         "Then came a day when {he} had to {do}. There was no other way."),
        ("{His} heart beat fast, and {his} legs felt [weak|heavy].", "\"I cannot do it,\" {he} whispered.",),
        ("{intro2_cap} stood beside {him}. \"I was afraid of {fear} too,\" {he2} said. \"It helped me to {trick}.\"",
         "{His} friend {name2}, a~ {trait2} {kind2}, [took {his} hand|smiled at {him}]. \"Just {trick},\" {he2} said. \"I will stay with you.\""),
        ("{name} took a deep breath. {He} [tried|decided] to {trick}, just as {name2} had said.",
         "So {name} began to {trick}. Slowly, very slowly, {he} went on."),
        ("And it worked! {done_cap}. \"I did it!\" {he} shouted.", "After a while, {done}. {name} could not believe it. \"I am not afraid anymore!\" {he} said.",),
        ("\"I knew you could do it,\" said {name2}.", "{name2} [laughed|clapped]. \"You are [so brave|braver than you think]!\"",),
        "?thanks", "?share",
    ),
    ("be brave", "try again", "listen to friends"),
)  # fmt: skip

RESCUE = Plot(
    "rescue",
    ("trap", "tool", "use", "free"),
    (
        ("had fallen into a deep hole", "a long rope", "let the rope down into the hole", "climbed out"),
        ("was stuck on a small rock in the river", "a strong branch", "held the branch over the water", "came across safely"),
        ("was caught in an old net", "a sharp stone", "cut the net, one knot after another", "was free"),
        ("sat high up in a tree and could not come down", "a ladder", "put the ladder against the tree", "climbed down"),
        ("was stuck in the mud", "a wooden board", "pushed the board across the mud", "crawled to dry ground"),
        ("had one foot under a heavy log", "a strong pole", "lifted the log with the pole", "pulled the foot out"),
        ("was locked in the shed", "the spare key", "turned the key in the lock", "ran out into the light"),
    ),
    (
        ("One [day|morning], {name} was walking near {spot} when {he} heard a voice. \"Help! Help me!\"",
         "On {his} way to {spot}, {name} heard someone crying.", "Near {spot}, {he} suddenly heard a small voice."),
        ("{He} ran [closer|to the place] and saw {intro2}. {He2_cap} {trap}.", "It was {intro2}, who {trap}.",),
        ("\"Stay calm!\" called {name}. \"I will [help|save] you.\"", "\"Do not move!\" said {name}. \"I will think of something.\""),
        ("First {name} [tried to pull with bare hands|called for help], but [that did not work|{he} was not strong enough|nobody came].",
         "{name} was only a~ {size} {kind}. What could {he} do? {He} looked around and thought hard.",),
        ("Then {he} found {tool} [near {spot}|behind a fence|in the grass]. {He} {use}.", "{He} ran [home|to the farm] and came back with {tool}. Carefully, {he} {use}.",),
        ("{name2} [held on|was brave|did just what {name} said], and at last {he2} {free}.", "It took a long time, but in the end {name2} {free}.",),
        ("\"You saved me!\" said {name2}. \"How can I thank you?\"", "\"Thank you, {name}!\" said {name2}. \"You are a hero.\""),
        ("\"[Just be my friend|Come and eat {food} with me|There is no need to thank me]!\" said {name}.", "{name} [blushed|smiled]. \"Anyone would have helped,\" {he} said.",),
        "?share",
    ),
    ("help others", "be brave", "be kind", "look twice"),
)  # fmt: skip

MYSTERY = Plot(
    "mystery",
    ("noise", "guess", "truth", "finish"),
    (
        ("a strange tapping", "a ghost", "a woodpecker with a sore beak", "gave it a soft cushion"),
        ("a deep humming", "a monster", "a swarm of bees looking for a home", "built a hive for them"),
        ("a scratching sound", "a thief", "a kitten that was locked in", "gave it a bowl of milk"),
        ("a sad song", "a lost giant", "an old man who missed his violin", "brought him a new one"),
        ("a loud snoring", "a dragon", "a tired bear who had lost his cave", "covered him with leaves"),
        ("a soft ringing", "magic", "a sheep with a bell that had lost its way", "led it back to the farm"),
        ("a splashing sound", "a sea snake", "two baby otters at play", "played with them until noon"),
        ("a quiet sobbing", "the wind", "a small cloud that could not rain", "told it a sad story until it rained"),
    ),
    (
        ("One night, {name} heard {noise}. It came from {spot}.", "Every [evening|night], there was {noise} near {spot}. Nobody knew what it was."),
        ("\"It is {guess}!\" said [the others|the neighbours|the children]. They were all afraid.", "\"Maybe it is {guess},\" {name} thought, and pulled up the blanket."),
        ("But {name} was too {trait_curious} to stay [at home|in bed]. {He} went to {name2}, {his} friend, a~ {trait2} {kind2}.",
         "The next day, {he} told {intro2} about it. \"Let us find out,\" said {name2}."),
        ("They took a lantern and [tiptoed|crept|walked] to {spot}. The sound grew louder.", "\"Are you afraid?\" asked {name2}. \"A little,\" said {name}. They went on [anyway|together|all the same].",),
        ("{name} [lifted the lantern|looked around the corner|pushed the branches aside]. It was not {guess} at all. It was {truth}!",
         "And what did they see? It was not {guess}. It was only {truth}."),
        ("They both laughed, and then they {finish}.", "\"We must help,\" said {name2}. So they {finish}.",),
        ("After that, everyone slept well.", "When they told the others, nobody was afraid anymore.", "The others [could not believe it|laughed about their fear]."),
    ),
    ("look twice", "be brave", "be kind"),
)  # fmt: skip

RACE = Plot(
    "race",
    ("race", "goal", "trouble"),
    (
        ("the great running race", "the old oak tree", "fell over a root"), ("the boat race", "the stone bridge", "hit a sandbank"),
        ("the sledge race", "the frozen pond", "slid into a snowdrift"), ("the swimming race", "the far shore", "got a cramp in one leg"),
        ("the climbing race", "the top of the hill", "slipped on wet leaves"), ("the sack race", "the red flag", "got stuck in the sack"),
    ),
    (
        ("Every [year|summer], there was {race} in the village. This time, {name} wanted to win.", "The day of {race} had come. {name} had practised for weeks.",
         "\"This year I will win {race},\" said {name}. The winner would get a~ {look} {item}."),
        ("{name2}, a~ {trait2} {kind2}, was there too. \"I am the fastest of all,\" {he2} said[ proudly|].", "{His} strongest rival was {intro2}."),
        ("\"Ready, steady, go!\" They all started. {name} was soon in front, and {name2} was close behind.", "The bell rang, and off they went. First {name2} was ahead, then {name}.",),
        ("They could already see {goal}. Then {name2} {trouble}. \"Ouch!\" {he2} cried.", "Just before {goal}, {name2} {trouble} and could not go on.",),
        ("{name} [stopped|slowed down]. {He} looked at {goal}, and {he} looked at {name2}. Winning was not the most important thing.",
         "{name} could have won easily. But {he} turned around and went back.",),
        ("\"Hold on to me,\" {he} said. Together they reached {goal}, the last of all.", "{He} helped {name2} up, and they crossed the line together.",),
        ("But the crowd cheered for them more than for the winner. {name2} said, \"You are a better runner than I am, because you have a good heart.\"",
         "\"You could have won,\" said {name2}. \"I won a friend,\" said {name}.", "Everybody clapped, and the judge gave both of them a~ {look} {item}."),
        "?share",
    ),
    ("help others", "be kind"),
)  # fmt: skip

GARDEN = Plot(
    "garden",
    ("plant", "fruit"),
    (
        ("an apple seed", "a young apple tree"), ("a sunflower seed", "a sunflower as tall as the house"), ("a pumpkin seed", "a huge orange pumpkin"),
        ("a bean", "a green vine full of beans"), ("an acorn", "a tiny oak with two leaves"), ("a strange blue seed", "a flower that shone at night"),
        ("a cherry stone", "a small cherry tree"), ("a tulip bulb", "a bright red tulip"),
    ),
    (
        ("[One spring day|In spring], {name} found {plant} near {spot}. {He} put it in the ground and [gave it water|waited].",
         "{His} grandmother gave {name} {plant}. \"Plant it and be patient,\" she said."),
        ("The next day, {he} looked at the ground. Nothing. {He} waited another day. Still nothing.", "{name} sat beside it all day. \"Grow!\" {he} said. But nothing happened."),
        ("\"It is broken,\" said {name}. {He} wanted to dig it up again.", "{He} became {sad} and angry. \"I will never see it grow,\" {he} said.",),
        "*friend",
        ("\"Wait,\" said {name2}. \"Good things need time. Give it water and sun, and do not dig.\"", "\"A seed works in secret,\" said {name2}. \"You cannot see it, but it is not asleep.\"",),
        ("So {name} waited. {He} brought water every morning and told the seed [stories|songs|about {his} day].", "The two of them watered it every day. It rained, and the sun shone, and the weeks went by."),
        ("Then, one morning, a small green tip came out of the ground. \"{name2}, come quickly!\" {name} shouted. In the end it became {fruit}.",
         "And one day there stood {fruit}. {name} danced around it with joy."),
        "?thanks", "?share",
    ),
    ("be patient", "wait for the right time", "listen to friends"),
)  # fmt: skip

GIFT = Plot(
    "gift",
    ("event",),
    (("birthday",), ("name day",), ("wedding",), ("farewell party",), ("winter feast",)),
    (
        ("Tomorrow was {name2}'s {event}. {name2} was {name}'s best friend, a~ {trait2} {kind2}.", "{name} had been invited to the {event} of {his} friend {name2}, a~ {trait2} {kind2}."),
        ("{name} wanted to give {him2} something special, but {he} had no money.", "\"What can I give {him2}?\" {name} wondered. {He} had only [one coin|two coins|a few nuts]."),
        ("{He} went to the market. There was a~ {look} {item}, but it was too expensive.", "At {spot}, {he} saw a~ {look} {item}. It would have been perfect, but it cost too much.",),
        ("{name} sat down by {spot} and thought. Then {he} had an idea: {he} would make a present with {his} own hands.",
         "A~ {stranger} saw {his} {sad} face. \"The best presents are not bought,\" said the {stranger}. \"They are made.\""),
        ("All night {he} worked. {He} [made a~ {other} out of wood|baked {food}|wrote a song|painted a picture of the two of them].",
         "{He} took paper, glue and [a~ {colour} ribbon|some {colour} paint] and began. In the morning it was ready.",),
        ("The next day, {name2} opened {his2} presents. When {he2} saw the one from {name}, {his2} eyes [grew wide|shone].",
         "{name} was nervous. \"It is not much,\" {he} said, and held out the present."),
        ("\"You made this for me?\" asked {name2}. \"It is the most beautiful present of all.\"", "\"Nobody has ever made something for me,\" said {name2}, and {he2} hugged {him}.",),
        "?share",
    ),
    ("share with friends", "be kind", "take care of things"),
)  # fmt: skip

PLOTS = (LOST, MAKE, STORM, LONELY, QUARREL, FEAR, RESCUE, MYSTERY, RACE, GARDEN, GIFT, *EVERYDAY_PLOTS, *WONDER_PLOTS)
