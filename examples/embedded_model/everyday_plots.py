# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""Plot skeletons of everyday life: a letter, a market day, a lesson, a picnic, a way home."""

from examples.embedded_model.plots import Plot

LETTER = Plot(
    "letter",
    ("sender", "wish", "proof"),
    (
        ("{his} grandmother", "visit her on the other side of the mountain", "opened the door and laughed with joy"),
        ("an old sailor", "bring him a map of the coast", "rolled out the map with shaking hands"),
        ("a teacher from far away", "show the children how to draw", "clapped when the first picture was done"),
        ("{his} uncle", "help with the harvest", "filled a whole basket with apples for them"),
        ("a lonely king", "tell him a funny story", "laughed for the first time in years"),
        ("somebody without a name", "come to the old tower at noon", "stepped out of the shadow and bowed"),
        ("a shepherd", "look for a lost lamb", "counted the flock and nobody was missing"),
    ),
    (
        ("One [morning|day], a letter lay in front of the door. It was for {name}, and it came from {sender}.", "The postman brought {name} a letter with a~ {colour} seal. \"It is from {sender},\" he said."),
        ("In the letter it said: \"Please {wish}.\" {name} read it [twice|three times|aloud].", "{name} opened it with care. There was only one line: \"Please {wish}.\""),
        ("{He} packed a~ {item}, some {food} and a warm {cloth}.", "\"I have never gone so far,\" {he} thought. But {he} took {his} {item} and set out."),
        "*friend",
        ("\"Where are you going?\" asked {name2}. {name} showed {him2} the letter. \"Then I will come with you,\" {he2} said.", "\"That is a long way,\" said {name2}. \"Two can walk it better than one.\""),
        "*journey", "?tries", "?journey",
        ("In the evening they arrived. {sender_cap} {proof}.", "At last they were there. {sender_cap} was waiting, and {proof}.",),
        ("\"You really came,\" said {sender}. \"I did not think that anyone would.\"", "\"How good that you are here,\" said {sender}, and gave them [hot soup|a place by the fire|a~ {look} {other}].",),
        "?thanks", "?share",
    ),
    ("help others", "be brave", "be kind"),
)  # fmt: skip

MARKET = Plot(
    "market",
    ("goods", "first", "second", "third"),
    (
        ("an old cow bell", "a sack of flour", "a pair of boots", "a place in the baker's shop"), ("a basket of eggs", "a red hen", "a goat", "a small boat"),
        ("a bag of nuts", "a wool blanket", "a wooden chair", "a whole cart of hay"), ("a jar of honey", "a straw hat", "a silver spoon", "a ticket for the circus"),
        ("a bunch of carrots", "a clay pot", "a fishing net", "a ride on the big ship"), ("a pile of old books", "a lamp", "a bicycle", "a warm winter coat"),
    ),
    (
        ("It was market day. {name}'s mother gave {him} {goods}. \"Sell it for a good price,\" she said.", "{name} went to the market with {goods}. {He} wanted to come home with something better.",),
        ("The first one {he} met was a~ {stranger}. \"I will give you {first} for {goods},\" said the {stranger}. {name} agreed.",),
        ("Then {name2}, a~ {trait2} {kind2}, came along with {second}. \"I need {first} very much,\" {he2} said. \"Will you trade?\" So {name} took {second}.",
         "Near {spot}, {intro2} was sitting on the ground. {He2_cap} had {second}, but {he2} needed {first}. They traded and both were {glad}.",),
        ("\"You have a kind heart,\" said {name2}. \"Come with me. I know someone who is looking for {second}.\"", "\"You could have asked for more,\" said {name2}. \"I have enough,\" said {name}.",),
        ("At {spot}, an old man gave them {third} for {second}. {name} could not believe {his} luck.", "And before the sun went down, {second} had become {third}.",),
        ("\"We will share it,\" said {name}. \"Without you, I would still have {first}.\"", "When {name} came home, {his} mother [laughed|was surprised]. \"{third_cap}! How did you do that?\" she asked.",),
        "?thanks", "?reply",
    ),
    ("share with friends", "be kind", "help others"),
)  # fmt: skip

TEACH = Plot(
    "teach",
    ("skill", "mistake", "advice", "success"),
    (
        ("swim", "sank like a stone", "breathe slowly and kick with both legs", "glided through the water like a fish"),
        ("whistle", "only made a wet sound", "make a small round mouth", "whistled a whole song"),
        ("juggle", "dropped every ball", "start with one ball", "kept three balls in the air"),
        ("skate", "fell on the ice", "bend both knees", "made a big circle on the ice"),
        ("read", "mixed up all the letters", "say each letter aloud", "read a whole page"),
        ("ride a bicycle", "fell into the bushes", "look far ahead", "rode down the lane without a wobble"),
        ("row a boat", "went round and round", "pull with both arms at once", "rowed straight across the lake"),
        ("dance", "stepped on everybody's feet", "listen to the drum", "danced until the music stopped"),
    ),
    (
        ("There was one thing {name} could not do: {he} could not {skill}. All the others could.", "{name} wanted to learn to {skill} more than anything.",),
        ("{He} tried it alone by {spot}, but {he} {mistake}.", "The first time, {he} {mistake}, and someone laughed. {name} ran away.",),
        "*friend",
        ("\"I can teach you,\" said {name2}. \"I could not {skill} either when I was small.\"", "\"Shall I tell you a secret?\" asked {name2}. \"The first time, I {mistake} too.\"",),
        ("\"You only have to {advice},\" {he2} explained, and {he2} showed {him} how.", "\"Now {advice},\" said {name2}. \"Do not think of anything else.\"",),
        "*tries",
        ("They met every day for a week. On the seventh day, {name} {success}!", "Again and again {he} tried. And suddenly it worked: {name} {success}.",),
        ("\"Look at me!\" {he} shouted. {name2} was almost as proud as {name}.", "The others stopped and stared. \"Who taught you that?\" they asked. {name} pointed at {name2}.",),
        "?thanks", "?reply",
    ),
    ("try again", "be patient", "ask for help"),
)  # fmt: skip

WAY_HOME = Plot(
    "way home",
    ("lure", "clue", "home"),
    (
        ("a blue butterfly", "the sound of the church bell", "{his} mother was standing at the gate"), ("a trail of berries", "the smoke above the roofs", "the soup was still warm"),
        ("a strange song", "the stream that flowed to the village", "a light was burning in the window"), ("a rolling ball", "their own footprints in the mud", "{his} father lifted {him} up high"),
        ("a white rabbit", "the evening star", "the whole family was waiting"), ("a paper boat on the stream", "the smell of fresh bread", "the dog barked with joy"),
    ),
    (
        ("\"Do not go past {spot},\" {his} mother always said. But one day {name} saw {lure} and ran after it.", "One afternoon, {name} followed {lure}. {He} went farther and farther.",),
        ("When {he} looked up, everything was strange. {name} did not know the way home.", "Suddenly it was gone, and {name} stood alone among the trees. \"Where am I?\" {he} whispered.",),
        ("It grew dark. {He} called out, but only an echo answered.", "{His} feet hurt, and {he} was hungry. {He} felt very {sad}.",),
        ("Then something moved in the bushes. It was {intro2}. \"Are you lost?\" {he2} asked.", "\"Do not cry,\" said a voice. {intro2_cap} stood in front of {him}.",),
        ("\"I want to go home,\" said {name}. \"Then we must use our heads,\" said {name2}.", "{name} nodded. {name2} gave {him} [a~ {treat}|some {food}], and {he} felt a little better.",),
        ("They stood still and paid attention. And there it was: {clue}! \"This way!\" cried {name}.", "\"Look and listen,\" said {name2}. After a while, {name} noticed {clue}. They followed it step by step.",),
        ("When they came to the house, {home}. \"Where have you been?\" everyone asked.", "At last they saw the house. There {home}.",),
        ("\"I will not run off again,\" said {name}. And {name2} was allowed to stay for supper.", "{name} told them how {name2} had helped {him}, and all of them thanked {him2}.",),
    ),
    ("listen to friends", "look twice", "ask for help"),
)  # fmt: skip

EVERYDAY_PLOTS = (LETTER, MARKET, TEACH, WAY_HOME)
