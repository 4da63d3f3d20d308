"""The words of the corpus: plain lists, one idea each."""


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


GIRLS = _words(
    "Mina, Lily, Anna, Clara, Ruby, Nora, Ella, Tess, Ivy, Hazel, Poppy, Daisy, Rosa, Molly, Zoe, Maya, Lucy, Emma, Sara,"
    "Olive, Wren, Fern, Luna, Stella, Bella, Penny, Willa, Elsie, Greta, Juna, Kira, Lena, Mira, Nina, Opal, Pia, Runa,"
    "Sophie, Tilda, Una, Vera, Amy, Edith, Freya, Grace, Holly, Iris, June, Kate, Alma"
)
BOYS = _words(
    "Tom, Ben, Sam, Max, Leo, Finn, Jack, Oscar, Toby, Theo, Hugo, Milo, Otto, Jasper, Felix, Noah, Eli, Owen, Charlie, Henry,"
    "Arlo, Bruno, Casper, Dan, Emil, Fred, George, Harry, Ivan, Jonas, Karl, Louis, Marcus, Nico, Oliver, Peter, Quinn, Rory,"
    "Silas, Tim, Ugo, Victor, Will, Zack, Alfie, Barney, Colin, Dexter, Gus, Pip"
)
ANIMALS = _words(
    "fox, rabbit, mouse, bear, owl, hedgehog, squirrel, frog, duck, otter, badger, mole, cat, dog, hare, deer, goat, sheep,"
    "beaver, turtle, sparrow, robin, lamb, pony, donkey, goose, raccoon, panda, elephant, lion, penguin, monkey, koala, kitten,"
    "puppy, piglet, snail, bee, crow, dragon"
)
SIZES = _words("little, small, tiny, young, big")
TRAITS = _words(
    "curious, brave, shy, clever, gentle, cheerful, kind, quiet, lively, stubborn, patient, careful, hopeful, playful, proud,"
    "dreamy, honest, busy, sleepy, funny, thoughtful, bold, messy, polite, restless, eager"
)
COLOURS = _words("red, blue, green, yellow, orange, purple, pink, brown, white, black, grey, golden, silver")
LOOKS = _words(
    "shiny, old, tiny, soft, round, smooth, bright, heavy, striped, wooden, dusty, pretty, strange, crooked, wonderful,"
    "sparkling, plain, warm, little, painted, ragged, polished"
)
PLACES = _words(
    "a quiet forest, a small village, a green valley, a house by the sea, a cottage at the edge of the woods, "
    "a busy little town, a farmhouse on a hill, a meadow full of flowers, a tall house with a red door, "
    "an old mill beside a river, a village near the mountains, a cosy burrow under an oak tree, "
    "a hut on a far island, a garden behind a stone wall, a snug den near the lake, a town with narrow streets, "
    "a hut in the snow, a barn at the end of a long road"
)
SPOTS = _words(
    "the river, the old bridge, the pond, the fountain, the market, the meadow, the oak tree, the mill, the garden gate, the"
    " orchard, the bakery, the school, the harbour, the lighthouse, the well, the barn, the library, the stone wall, the"
    " berry bushes, the tall pines, the village square, the quiet lake, the windmill, the sandy beach, the hollow log"
)
TREASURES = _words(
    "ball, kite, hat, scarf, key, book, drum, lantern, button, whistle, basket, ring, blanket, boat, bell, map, spoon, flute,"
    "feather, marble, coin, ribbon, mitten, spinning top, music box, compass, umbrella, paintbrush, teapot, acorn, shell, star"
)
FOODS = _words(
    "apple pie, honey cake, bread, soup, jam, pancakes, berries, cheese, carrots, nuts, porridge, biscuits, pears, plum tart,"
    "mushroom stew, cherry cake, muffins, roasted chestnuts, gingerbread, corn soup, rice pudding"
)
TREATS = _words("apple, cookie, pear, bun, pancake, honey cake, carrot, muffin, plum, slice of pie, peach, orange")
WEATHER = _words(
    "the sun was shining, a soft rain was falling, the wind was blowing, the sky was clear and blue, snow covered the ground,"
    "the clouds hung low, mist lay over the fields, the morning was cold and bright, the air smelled of flowers, the leaves"
    " were turning gold, thunder rumbled far away, frost glittered on the grass"
)
GLAD = _words("happy, glad, proud, thankful, cheerful, full of joy, delighted, pleased")
SAD = _words("sad, worried, lonely, upset, gloomy, unhappy, miserable")
CHAT_NAMES = _words(
    "Ada, Akira, Alice, Amir, Bob, Carlos, Chen, Diana, Elena, Fatima, Gita, Hana, Ian, Ingrid, Jamal, Jane, Joao, John, Kofi,"
    "Lars, Laura, Leila, Liam, Maria, Mark, Mehmet, Nadia, Olga, Omar, Paul, Priya, Raj, Rita, Samir, Sven, Tara, Tariq, Uma,"
    "Viktor, Wendy, Yara, Yuki, Zara, David, Eva, Simon, Julia, Martin, Robert, Susan"
)
CITIES = _words(
    "Paris, London, Berlin, Madrid, Rome, Vienna, Prague, Oslo, Dublin, Lisbon, Athens, Warsaw, Helsinki, Tokyo, Kyoto, Delhi,"
    "Cairo, Lagos, Nairobi, Boston, Chicago, Denver, Toronto, Lima, Sydney, Seoul, Hanoi, Munich, Hamburg, Geneva, Milan,"
    "Porto, Lyon, Bergen, Riga, Budapest, Ankara, Quito"
)
