"""A guess at what comes next, and what becomes of it: one forward pass scores it all, and a walk keeps what is right.

    text so far   ... the cat           last id: cat
    draft             sat on the mat    parents -1 0 1 2, a chain; or a tree, where several nodes follow one
    one step          cat sat on the mat     logits after each of these five
    walk              the id drawn after "cat" is "sat": go on; after "sat", "on"; after "on" it is "a": stop there

The walk draws each id from the target model's own logits, through the sequence's own sampler and with its own next
random number, as a step without a draft does. The draft only decides how far one forward pass reaches. So the ids are
those that come without speculation, for the same seed, whatever was drafted; penalties, constraints and mirostat see
nothing but chosen ids, and nothing of theirs is ever taken back.

The rule of https://arxiv.org/abs/2211.17192 and https://arxiv.org/abs/2302.01318 keeps a drafted id with probability
min(1, p / q), and so sum(min(p, q)) of those that a draft model draws from q; it equals the target in distribution, but
gives other ids than plain sampling. Here an id that was drafted without knowledge of the random number is kept with
probability p. A draft model can do better than that: given the very number that the target will use, it draws the same
id wherever the two sums of probabilities that the number falls into overlap (`model.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..answer import Answer, Piece
from ..cache import Branches
from ..cached_sequence import CachedSequence
from ..model.forward import Chunk

ROOT = -1  # the node that the last id of the text is


class Draft:
    """Ids that may follow, each with the node it follows: a number of an earlier one, or ROOT.

    kind: whatever tells drafts apart that are as likely to be right as others of the kind.
    """

    def __init__(self, ids: Sequence[int] = (), parents: Sequence[int] | None = None, kind: int = 0):
        """Without `parents`, a chain."""
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.kind = kind
        self._children: dict[tuple[int, int], int] = {}
        for node, id in enumerate(ids):
            self.add(id, node - 1 if parents is None else parents[node])

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, id: int, parent: int) -> int:
        """Let `id` follow a node; gives its own, which may have been there already."""
        if not ROOT <= parent < len(self.ids):
            raise ValueError(f"node {len(self.ids)} can't follow {parent}")
        node = self._children.setdefault((parent, id), len(self.ids))
        if node == len(self.ids):
            self.ids.append(id)
            self.parents.append(parent)
        return node

    def child(self, node: int, id: int) -> int | None:
        """The node that holds `id` after `node`."""
        return self._children.get((node, id))

    def is_leaf(self, node: int) -> bool:
        """Whether nothing was drafted after a node."""
        return node not in self.parents

    def path(self, node: int) -> list[int]:
        """The ids on the way to a node, its own the last; of ROOT, none."""
        ids = []
        while node != ROOT:
            ids.append(self.ids[node])
            node = self.parents[node]
        return ids[::-1]

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before."""
        return self.parents == list(range(ROOT, len(self.ids) - 1))


@dataclass
class Walk:
    """How far a draft was right.

    node      the last one that the text now goes on behind: what was drawn after it is not in the cache
    drawn     how many tokens came
    accepted  how many drafted ids were drawn
    rejected  whether something else was drawn where the draft had an id: not so where all were right, or all was said
    failure   what the sampler had against the next row of logits
    """

    node: int = ROOT
    drawn: int = 0
    accepted: int = 0
    rejected: bool = False
    pieces: list[Piece] = field(default_factory=list)
    failure: Exception | None = None


def walk(draft: Draft, rows: np.ndarray, answer: Answer, so_far: Walk) -> None:
    """Take tokens of logits float32 [1 + len(draft), vocab], the first row after the last id, while the draft is right.

    What is found is in `so_far`, also where an interrupt cuts this short.
    """
    node = ROOT
    while answer.going:
        try:
            piece = answer.take(rows[node + 1])
        except Exception as error:  # comes once the pieces before it have been read
            so_far.failure = error
            return
        so_far.drawn += 1
        if piece:
            so_far.pieces.append(piece)
        child = draft.child(node, answer.ids[-1])
        if child is None:
            so_far.rejected = not draft.is_leaf(node)
            return
        so_far.accepted += 1
        if answer.going:  # else the last id stays outside the cache, as it does without a draft
            so_far.node = node = child


class Attempt:
    """A draft on its way through the model: run `chunk`, walk, then `keep`."""

    def __init__(self, held: CachedSequence, last_id: int, draft: Draft):
        """`last_id` is the last of the text, whose keys are not held yet."""
        self.held, self.last_id, self.draft = held, last_id, draft
        rows = [ROOT, *(parent + 1 for parent in draft.parents)]
        self.branches = None if draft.is_chain else Branches(held.sequence, rows)
        self.begin = held.sequence.length

    @property
    def chunk(self) -> Chunk:
        """What is to be run, all rows of logits wanted."""
        ids = np.array([self.last_id, *self.draft.ids])
        return Chunk(self.branches or self.held.sequence, ids, None, slice(None), self.held.adapters)

    def keep(self, node: int) -> None:
        """Hold the text up to a node, as if no more had ever been run."""
        ids = [self.last_id, *self.draft.path(node)]
        if self.branches:
            self.branches.keep(node + 1)
        else:
            self.held.sequence.rewind(self.begin + len(ids))
        self.held.fed(ids, self.begin + len(ids))

    def give_up(self) -> None:
        """The model could not run it: hold what was held."""
        if self.branches:
            self.branches.give_up()
        else:
            self.held.sequence.rewind(self.begin)
