"""Several ways on from one sequence, tried in one step: a tree of new tokens, of which one way is kept.

    rows of the step     0 1 2 3 4      row 0 follows the sequence, 1 and 3 follow 0, 2 follows 1, 4 follows 3
    parents             -1 0 1 0 3
    ways to a leaf       0 1 2 | 0 3 4  a sequence each, forked
    parts                0 1 2 | 3 4    rows in a row: for attention one chunk, which looks at the blocks of a way

A token sees those before it and, of the new ones, those that it goes on from: tree attention (SpecInfer,
https://arxiv.org/abs/2305.09781). With a mask, its keys would lie between those of other branches. Here each way is a
fork, which shares all blocks but the last ones, and keys and values of a token are written to every way that it is on.
So a token stands at its own position and sees just what it would see in a text of its own: to the same bit, with
windows, slopes and latent attention too, and what is kept lies where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence as Numbers

from .blocks import KVCache, Part, Sequence


class Branches:
    """A tree of new tokens after `sequence`. A forward pass takes it in the sequence's place; then call `keep`."""

    def __init__(self, sequence: Sequence, parents: Numbers[int]):
        """parents: for each new token the number of the one that it follows, a smaller one; -1 for the first alone."""
        if list(parents[:1]) != [-1] or any(not 0 <= parent < row for row, parent in enumerate(parents[1:], 1)):
            raise ValueError(f"expected -1, and then numbers of tokens before, found {list(parents)}")
        self.sequence = sequence
        self.paths = [_path(parents, row) for row in range(len(parents)) if row not in parents]
        self.ways = [sequence, *(sequence.fork() for _ in self.paths[1:])]
        begins = [row for row, parent in enumerate(parents) if row == 0 or parent != row - 1]
        self._spans = list(zip(begins, [*begins[1:], len(parents)], strict=True))
        self._way_of = [_first_with(self.paths, end - 1) for _, end in self._spans]

    @property
    def length(self) -> int:
        """Of what all ways begin with."""
        return self.sequence.length

    @property
    def cache(self) -> KVCache:
        """Where the blocks are."""
        return self.sequence.cache

    def parts(self, count: int) -> list[Part]:
        """The new tokens, `count` in all, as attention is to see them: part by part in order."""
        places = [self.paths[way].index(begin) for way, (begin, _) in zip(self._way_of, self._spans, strict=True)]
        return [
            Part(self.ways[way], self.length + place, end - begin)
            for way, place, (begin, end) in zip(self._way_of, places, self._spans, strict=True)
        ]

    def also_written(self) -> list[tuple[int, int]]:
        """Which token is to be written where beside its own way: its number, and that of a part with the other way."""
        home = {way: index for index, way in enumerate(self._way_of)}  # each way has a part, the one with its leaf
        own = {row: way for way, span in zip(self._way_of, self._spans, strict=True) for row in range(*span)}
        return [(row, home[way]) for way, path in enumerate(self.paths) for row in path if own[row] != way]

    def reserve(self, count: int) -> None:
        """Make room for the new tokens, `count` in all."""
        for way, path in zip(reversed(self.ways), reversed(self.paths), strict=True):
            way.reserve(len(path))  # the sequence is the last, and alone then: the block it goes on in stays its own

    def advance(self, count: int) -> None:
        """They have been written; none is held until a way is chosen."""

    def keep(self, row: int) -> None:
        """Let the sequence go on with the way to a token, up to and with it; the others are given back."""
        chosen = _first_with(self.paths, row)
        length = self.length + self.paths[chosen].index(row) + 1
        kept, path = self.ways[chosen], self.paths[chosen]
        kept.advance(len(path))
        if chosen:
            self.sequence.become(kept)
        for way in self.ways[1:]:
            way.release()
        self.sequence.rewind(length)

    def give_up(self) -> None:
        """Keep nothing: the sequence is as before."""
        for way in self.ways[1:]:
            way.release()


def _path(parents: Numbers[int], row: int) -> list[int]:
    path = [row]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def _first_with(paths: list[list[int]], row: int) -> int:
    return next(number for number, path in enumerate(paths) if row in path)
