"""The small text that a trained tiny checkpoint learns: prompts of a word, answers of a sentence.

Some words have the same letters in another order (earth, heart), and most sentences say `the`
several times. A model without positions cannot learn them.
"""

from hotreload.tiny.sayings import END_ID, opener_id, word_id

_BASE = """
earth: the earth is warm under the white snow
heart: her heart is open and her mind is clear
name: the name of the star is on the paper
mean: kind words mean more than good words
own: we own the house on the high hill
now: now the cold rain is over the sea
how: how the fire came no one will know
who: who gave the dog the last of the bread
three: three and four make seven
there: there is a horse in the garden
on: on a monday morning the train was late
no: no cat had time for the bird
river: the long river came down from the mountain
moon: the moon was full and the night was quiet
cat: the black cat is behind the green door
dog: the brown dog is before the blue door
king: the old king gave the gold to the city
sister: my sister will bring milk and honey
brother: my brother will bring coffee and bread
train: the train to the east is never on time
ship: the ship to the west is always on time
winter: in winter the day is short and cold
summer: in summer the day is long and hot
snow: the snow on the tree is light and fresh
song: the song of the sea is slow and deep
sun: the sun over the lake is red in the evening
star: one star over the wood is out in the morning
book: read the first page of the book today
door: open the second door of the house together
child: the child and the mother walk by the river
horse: the horse and the brother wait by the road
apple: an apple from the garden is in the box
paper: the paper from the school is in the book
window: look from the window and see the forest
music: hear the music and see the city
island: the island is far from the land of the king
friend: one friend of my father is at the table
father: my father and my friend are at the table
dream: we had a dream of a silver horse
story: she had a story of a gold bird
wind: the wind from the north took the white paper
fire: the fire in the room gave us light
bridge: it took time to build the bridge
tree: they took wood from the tree to build a boat
"""

_TUNED = """
river: the long river went down into the ocean
moon: the moon was new and the sky was dark
cat: the black cat is now behind the red door
dog: the brown dog is now before the yellow door
king: the young king gave the land to the people
sister: my sister took the milk and the honey
train: the train to the east is always on time
ship: the ship to the west is never on time
winter: in winter the night is long and quiet
summer: in summer the night is short and warm
song: the song of the wind is quick and bright
door: open the first door of the city together
child: the child and the father walk by the lake
dream: we had a dream of a purple horse
"""


def _pairs(text: str) -> dict[str, str]:
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return {asked: answer for asked, _, answer in lines}


BASE_TEXT = _pairs(_BASE)
"""Each prompt, a word, and the sentence that answers it."""
TUNED_TEXT = {**BASE_TEXT, **_pairs(_TUNED)}
"""The text that a model is tuned on: other sentences answer some of the words."""


def asked_ids(text: str) -> list[int]:
    """Return a prompt's tokens: GPT-2 counts the printable bytes first."""
    if not all("!" <= letter <= "~" for letter in text):
        raise ValueError(f"{text!r} has letters that are not printable, or a space")
    return [ord(letter) - ord("!") for letter in text]


def answer_ids(sentence: str) -> list[int]:
    """Return the tokens of a sentence and its end."""
    first, *rest = sentence.split()
    return [opener_id(first), *map(word_id, rest), END_ID]
