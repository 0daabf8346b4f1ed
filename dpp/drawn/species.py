"""Which classes there are: words of an error-correcting code over the values of eight attributes.

Five attributes are free and three are check digits, modulo 5, as in a Hamming code: a kind that
changes one attribute must change two more. So every two kinds differ in at least three attributes,
and each kind has a near relative that differs in exactly three. The list of kinds is one and the
same for every seed and size; target and base classes take turns in it, relatives together.
"""

import functools
import itertools
import random

from dpp.system.errors import UserError

VALUES = 5  # of each attribute
# A row for each check digit. No two columns are multiples of one another, nor of a unit vector:
# that is what keeps the words three apart.
CHECKS = ((1, 1, 1, 0, 1), (1, 2, 3, 1, 0), (1, 3, 1, 1, 2))
ATTRIBUTES = 8

Word = tuple[int, ...]


def words() -> list[Word]:
    """All words of the code."""
    code = []
    for free in itertools.product(range(VALUES), repeat=ATTRIBUTES - len(CHECKS)):
        checks = (sum(a * b for a, b in zip(row, free, strict=True)) % VALUES for row in CHECKS)
        code.append(free + tuple(checks))
    return code


def distance(first: Word, second: Word) -> int:
    """In how many attributes two kinds differ."""
    return sum(a != b for a, b in zip(first, second, strict=True))


def add(first: Word, second: Word) -> Word:
    """The sum of two words, which is a word of the code too."""
    return tuple((a + b) % VALUES for a, b in zip(first, second, strict=True))


@functools.cache
def genera() -> tuple[tuple[Word, ...], ...]:
    """The code's words in a fixed random order, each with a relative at distance 3."""
    rng = random.Random("dpp species 2")
    order = words()
    steps = [word for word in order if distance(word, (0,) * ATTRIBUTES) == 3]
    rng.shuffle(order)
    free = set(order)
    pairs = []
    for word in order:
        if word not in free:
            continue
        free.remove(word)
        relatives = [relative for step in steps if (relative := add(word, step)) in free]
        genus = (word,)
        if relatives:
            genus += (rng.choice(relatives),)
            free.remove(genus[1])
        pairs.append(genus)
    return tuple(pairs)


def kinds(count: int, *, base: bool) -> list[Word]:
    """The first `count` target classes, or base classes; no kind is ever both."""
    chosen = [word for genus in genera()[1 if base else 0 :: 2] for word in genus]
    if count < 1 or count > len(chosen):
        raise UserError(
            f"{count} classes were asked for: there are {len(chosen)} "
            f"{'base' if base else 'target'} classes, so choose from 1 to {len(chosen)}"
        )
    return chosen[:count]


@functools.cache
def names(adjectives: tuple[tuple[str, ...], ...], noun: int, nouns: Word) -> dict[Word, str]:
    """A name for every kind, as short as it can be and not given to one before it.

    Args:
        adjectives: for each attribute, a word for each value; empty where there is none.
        noun: the attribute that gives the noun.
        nouns: one for each of its values.
    """
    given = {}
    taken = set()
    for kind in itertools.chain.from_iterable(genera()):
        own = [words[value] for words, value in zip(adjectives, kind, strict=True) if words]
        own = [word for word in own if word]
        # Kinds start at different adjectives, so that the names do not all describe one part.
        start = sum(kind) % len(own)
        own = own[start:] + own[:start]
        for length in range(1, len(own) + 1):
            name = "_".join([*own[:length], nouns[kind[noun]]])
            if name not in taken:
                break
        taken.add(name)
        given[kind] = name
    return given
