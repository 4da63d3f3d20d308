# ruff: noqa: E501 -- sentences of the corpus keep to one line each
"""Sentences that any story can use: openings, small talk, journeys, feelings, endings.

Slots: `{name}`, `{he}`, `{him}`, `{his}`, `{the}`, `{intro}` for the hero, the same with `2` for the friend.
"""

OPENINGS = (
    "Once upon a time, there [was|lived] {intro} [who lived in {place}|in {place}|who had a home in {place}].",
    "Once upon a time, in {place}, there [was|lived] {intro}.",
    "Once there was {intro}. {He} lived in {place} [with {his} [mother|father|grandmother|family|three sisters|two brothers]|].",
    "In {place} there lived {intro}.",
    "[Long ago|Many years ago], {intro} lived in {place}.",
    "One [fine|cold|warm|bright|quiet] [morning|day|spring day|autumn morning|summer day], {intro} woke up [early|late|with a smile|and yawned] [in {place}|].",
    "There was once {intro} who lived in {place}.",
    "{name} was a~ {trait} {kind}. {He} lived in {place}.",
    "[Far away|Not far from here], in {place}, there lived {intro}.",
    "This is the story of {intro}[ who lived in {place}|].",
    "[Nobody|Hardly anyone] in the world was as {trait} as {name}. {He} was a~ {kind} and lived in {place}.",
    "When the {season} wind came [over the hills|from the sea], {intro} [sat|stood] at the window [and looked out|and waited|]. {His} home was in {place}.",
    "Once upon a time, there was a~ {size} {kind}. {His} name was {name}, and {he} lived in {place}.",
    "{intro_cap} lived in {place}[, far from any road|, next to a~ {kind2}|].",
)
HABITS = (
    "{name} was [very|always|often] {trait}, and everyone [knew it|liked that about {him}|said so].",
    "Every day {he} [walked|ran|went] to {far} [to play|to look at the clouds|to meet {his} friends|and sang a song].",
    "{He} loved [{food}|the smell of {food}] more than anything [else|in the world|].",
    "In the [mornings|evenings] {he} [liked to sit by {far}|helped at home|told stories to {his} family|picked flowers near {far}].",
    "{name} liked to [sing|draw|climb trees|count the stars|collect stones|read|swim|bake|dance|build small houses] [when the weather was fine|with {his} friends|all day long|].",
    "[People|Everyone] in the [village|valley] [knew|liked] {the}, because {he} was so {trait}.",
    "{His} room was full of [books|old shoes|shells and stones|drawings|tools and ropes|small bottles].",
    "[Every evening|On Sundays|After breakfast] {he} [wrote in {his} diary|fed the birds|talked to the moon|polished {his} boots|watered the flowers|practised the [flute|drum|violin]].",
    "{name} could [whistle|run|climb|cook|draw|listen] better than anyone [else|in the village|{he} knew].",
    "{He} had [two brothers|a small sister|no brothers and sisters|an old aunt] and [a~ {look} {other}|a~ {colour} {other}] [that {he} was proud of|from {his} uncle|].",
    "{name} was good at [listening|making soup|telling jokes|finding things|keeping secrets], but not at [waiting|getting up early|singing|saying no].",
    "What {he} liked best was {food} [on a~ {season} day|with a lot of butter|in the evening|fresh from the oven].",
)
WEATHER = (
    "One [morning|day|afternoon], {weather}[, and {name} went outside|].",
    "It was [a~ {season} [morning|day|afternoon]|early in the morning|late in the afternoon], and {weather}.",
    "That [morning|day], {weather}, and {name} felt [{glad}|full of energy|ready for anything|a bit {sad}].",
    "[Then one|One] day, while {weather}, something [happened|new happened|surprising happened].",
    "It had rained all night, and [the paths were muddy|everything smelled of earth|the river was high].",
    "The day began [like any other|badly|with a song|with {food} for breakfast].",
    "It was the first day of {yearseason}, and {weather}.",
)
FRIEND_ARRIVES = (
    "[Just then|Soon|After a while|A little later], {intro2} came [along|by|down the path|over from {spot}].",
    "[On the way|Near {spot}|By {spot}], {he} met {intro2}.",
    "{intro2_cap} [saw|heard] {him} and [stopped|came closer|hurried over].",
    "[Suddenly|At that moment], {intro2} [looked over the fence|stepped out of the bushes|jumped down from a wall|came around the corner].",
    "[Not far away|By chance], {intro2} was [picking berries|mending a fence|resting in the shade|carrying a basket] and saw {him}.",
)
ASKS_WHATS_WRONG = (
    '"What is [wrong|the matter], {name}?" asked {name2}. "You look [so|very|a bit] {sad}."',
    '"Why do you look so {sad}?" {name2} asked [kindly|softly|gently|].',
    '{name2} sat down beside {him}. "[Can|May] I help you?" {he2} asked.',
    '"[Hello|Good morning|Hi], {name}," said {name2}. "[Is something wrong|What happened|Do you need help]?"',
    '"[You do not look well|Something is on your mind|Tell me what happened]," said {name2}. "[I have time|I am a good listener|Maybe I know what to do]."',
    '{name2} [tilted {his2} head|came a step closer|put down {his2} basket]. "[What is it|Are you all right|Shall I stay with you]?"',
)
THANKS = (
    '"Thank you[ so much|, {name2}| for your help| for helping me|]!" said {name}.',
    '"I could not have done it without you," {name} [said|told {name2}].',
    "{name} [hugged {name2}|gave {name2} a big hug|thanked {name2} [again and again|with all {his} heart]].",
    '"You are a [true|good|wonderful|kind] friend, {name2}," said {name}[ with a smile|].',
    '"[What would I do without you|How can I ever thank you]?" [asked|said] {name}.',
    "{name} did not know what to say. {He} just [held {name2}'s hand|smiled from ear to ear|nodded again and again].",
)
REPLIES = (
    '"[Friends help each other|That is what friends are for|You are welcome|It was fun|I am glad I could help]," said {name2}[ with a smile|, and {he2} meant it|].',
    '{name2} [smiled|laughed|blushed a little|only smiled]. "[Any time|It was nothing|I would do it again|You would do the same for me]!"',
    '"[Next time you will help me|Let us not talk about it|Now I am hungry]," said {name2}, and they both laughed.',
)
JOURNEY = (
    "[Together|Side by side], they walked [past {far}|along {far}|to {far}] and [over|up] the hill.",
    "They [walked and walked|went on and on] until they [came to|reached] {far}.",
    "The way was [long|steep|muddy|dark], but {name} did not [stop|give up|turn back].",
    "[On the way|As they walked], they [sang a song|told each other jokes|shared a~ {snack}|saw {kinds} in the grass|talked about {food}].",
    "They passed {far}, where [the wind was strong|the birds were singing|a~ {stranger} was sleeping|the water was deep].",
    "[First|Soon] they had to [cross a narrow bridge|climb over a wall|jump across a stream|crawl under a fence]. {name2} went [first|last], and {name} held {his} breath.",
    'At {far}, they [asked a~ {stranger} for the way|rested for a while|drank some cold water]. "[It is not far now|Keep to the left|Follow the river]," [said the {stranger}|said {name2}].',
    "[Hour after hour|Step by step] they went on. The [sun|moon] [was high|followed them|went behind a cloud].",
)
TRIES = (
    "At first it did not work[ at all|]. {name} tried [again|once more|another way], and [still nothing happened|it was no good|failed].",
    "{name} [wanted to give up|almost cried|sat down and sighed], but then {he} [took a deep breath|thought of {his} friends|had an idea].",
    '"This is [hard|harder than I thought]," [said {name}|{he} said]. "But I will [try again|not give up|keep trying]."',
    '"[Never mind|Do not worry|Take your time]," said {name2}. "We can [try again|do it together|find another way]."',
    '"[Once more|Let us start again|Hold this for me]!" {name} [called|said]. {name2} [nodded|rolled up {his2} sleeves|did not give up either].',
)
SHARE = (
    "Then they [sat down|rested] [by {spot}|under a tree|in the sun] and [ate {food}|shared {food}|ate a~ {treat} each].",
    "That evening, they [ate {food} together|sat by the fire and told the story|looked at the stars|drank warm milk and laughed].",
    "{name} [broke|cut] {his} {treat} in two, and {name2} took [half|the bigger part].",
    "There was {food} for supper, and [everybody ate too much|nobody wanted to go home|it tasted better than ever].",
    "[To celebrate|Afterwards], they [danced until midnight|made a big fire|cooked {food}|sang every song they knew].",
)
ENDINGS = (
    "From that day on, {name} and {name2} were [best friends|good friends|always together].",
    "And [from then on|after that], {name} [always remembered|never forgot|always tried] to {lesson}.",
    "{name} had learned [something|a lesson] that day: it is good to {lesson}.",
    "And so {the} [fell asleep|went to bed|slept well] that night, [{glad} and warm|tired but {glad}|dreaming of tomorrow].",
    "They [all|both] lived happily [ever after|for many years].",
    '"[What a day|That was a good day|Let us do it again tomorrow]!" said {name}, and {name2} [agreed|laughed|nodded].',
    "[When|As] the sun went down, {name} and {name2} walked home[, hand in hand|, singing|, {glad}|]. [The end.|]",
    "Everyone was {glad}, and {name} [smiled|was the happiest of all|knew that {he} had done the right thing].",
    "[Even today|To this day], people in the village tell the story of {name} and {name2}.",
    '{name} [closed {his} eyes|looked at the moon|leaned back]. "[Today was a good day|I would not change a thing|Tomorrow we will do something new]," {he} thought.',
    "[And that is how|And so] {name} [found a friend|became a little wiser|learned to {lesson}]. [The end.|]",
    'Before they said good night, {name2} asked, "[Will you come again tomorrow|Shall we meet again]?" "[Of course|Every day|Always]," said {name}.',
    "[Sometimes|Now and then], when {weather}, {name} still thinks of that day and smiles.",
)
DETAILS = (
    "[Above them|High above], a~ [crow|hawk|seagull|white cloud] [drifted by|circled slowly|crossed the sky].",
    "[Somewhere|Far away], [a bell rang|a dog barked|someone was singing|a cock crowed|water was running].",
    "{name} [counted to ten|rubbed {his} eyes|scratched {his} head|bit {his} lip|held {his} breath].",
    "It smelled of [wet leaves|fresh bread|smoke|flowers|the sea|rain and earth].",
    "[For a moment|For a while], [nobody spoke|it was very quiet|everything was still|neither of them said a word].",
    "{name2} [hummed a little tune|looked at the sky|kicked a small stone|took out a~ {snack} and ate it|yawned].",
    '"[I have an idea|Wait a moment|Listen|Look over there]," {name2} [said|whispered].',
    '"[Did you hear that|What do you think|Do you remember last {yearseason}]?" asked {name}. "[I think so|Yes|I am not sure]," said {name2}.',
)
YEAR_SEASONS = ("spring", "summer", "autumn", "winter")
SEASONS = (*YEAR_SEASONS, "warm", "cold", "windy", "sunny", "rainy")
LESSONS = (
    "help others", "tell the truth", "share with friends", "ask for help", "be patient", "try again", "listen to friends",
    "be kind", "look twice", "say sorry", "take care of things", "be brave", "wait for the right time",
)  # fmt: skip
