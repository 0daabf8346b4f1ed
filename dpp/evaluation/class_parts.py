"""Which parts tell PoseBirds' classes apart, and which ones they share: exact, from their words."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dpp.drawn.individuals import BIRD, REMOVABLE, SHOWN, shown_by
from dpp.drawn.species import Word

TELLING = tuple(part for part in BIRD if SHOWN[part])  # parts that show something of the class
SHARED = 2  # parts that a rival shares with a class, as in FunnyBirds


class Rivals(NamedTuple):
    """Two classes that look like another in some of its parts, each in others."""

    labels: tuple[int, int]
    shared: tuple[frozenset[str], frozenset[str]]


def minimal_sufficient_sets(words: Sequence[Word], label: int) -> list[frozenset[str]]:
    """All smallest sets of parts that tell a class from every other: exact, from the code's words.

    Args:
        words: the attributes of each class.
        label: the class.

    Returns:
        Sets of names from `BIRD`, none of which contains another.
    """
    own = [shown_by(words[label], part) for part in TELLING]
    others = [
        {part for part, seen in zip(TELLING, own, strict=True) if shown_by(word, part) != seen}
        for number, word in enumerate(words)
        if number != label
    ]
    found: list[frozenset[str]] = []
    for size in range(1, len(TELLING) + 1):
        for parts in map(frozenset, itertools.combinations(TELLING, size)):
            minimal = not any(smaller <= parts for smaller in found)
            if minimal and all(parts & differing for differing in others):
                found.append(parts)
    return found


def find_rivals(words: Sequence[Word], label: int) -> list[Rivals]:
    """Pairs of classes that each share two parts with a class, without a part that both share.

    As in FunnyBirds: a part is shared that shows the same in all its attributes, and the pairs come
    in the order of the classes. Parts that can be removed count: there and here, five that tell
    classes apart.
    """
    shared = _shared_parts(words, label, all)
    return _disjoint({other: parts for other, parts in shared.items() if len(parts) == SHARED})


def find_partial_rivals(words: Sequence[Word], label: int) -> list[Rivals]:
    """The same with parts that share at least one attribute, and any number of them.

    Pairs come in the order of how many parts the class that shares fewer does, then the other, most
    first.
    """
    pairs = _disjoint(_shared_parts(words, label, any))
    return sorted(pairs, key=lambda pair: sorted(map(len, pair.shared)), reverse=True)


def _shared_parts(words: Sequence[Word], label: int, enough: Callable) -> dict[int, frozenset[str]]:
    """Of every other class, the removable parts of which all, or any, attributes are the same."""

    def alike(word: Word, part: str) -> bool:
        pairs = zip(shown_by(word, part), shown_by(words[label], part), strict=True)
        return enough(mine == other for mine, other in pairs)

    parts = [part for part in REMOVABLE if SHOWN[part]]
    return {
        other: frozenset(part for part in parts if alike(word, part))
        for other, word in enumerate(words)
        if other != label
    }


def _disjoint(shared: dict[int, frozenset[str]]) -> list[Rivals]:
    return [
        Rivals((one, two), (shared[one], shared[two]))
        for one, two in itertools.combinations(shared, 2)
        if shared[one] and shared[two] and not shared[one] & shared[two]
    ]
