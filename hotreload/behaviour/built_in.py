"""Questions and texts that every pair of weights is compared by.

Few enough to be asked in one batch with their second asking: six to answer, six answers to be led
along, four texts to read.
"""

from hotreload.behaviour.asked import Question, Text

LONGEST_ANSWER = 16

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "1, 2, 3, 4, 5,",
    "def add(a, b):\n    return",
    "Water boils at a temperature of",
    "Question: What is the opposite of hot?\nAnswer:",
)
TEXTS = (
    "The sun rises in the east and sets in the west, and the days are longer in the summer.",
    "She opened the door, looked at the rain for a while, and went back for her umbrella.",
    "To bake bread you need flour, water, salt and yeast; the rest is patience and a hot oven.",
    "If a train leaves at nine and the way takes two hours, it arrives at eleven in the morning.",
)


def questions() -> tuple[Question, ...]:
    """The prompts, to be answered greedily."""
    return tuple(Question(prompt, LONGEST_ANSWER) for prompt in PROMPTS)


def texts() -> tuple[Text, ...]:
    """The texts, to be read."""
    return tuple(Text(text, LONGEST_ANSWER) for text in TEXTS)
