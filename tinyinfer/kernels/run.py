"""A whole forward pass as one compiled call: the operations of a `Tape`, dealt out to a team of threads.

Every thread of the team runs `run` over the same table. It claims pieces of an operation, those of its own share first
and then what others have left, waits until those that others have claimed are done, and goes on to the next. A thread
that the system has put to sleep holds up no more than the piece it has, and one that comes late finds everything
claimed. What is small, the threads of a step with few rows each work out for themselves: that costs less than to wait
for each other.

`tape.py` writes the table, and says what its columns mean for each operation.
"""

from __future__ import annotations

from .addresses import chunk_at, share
from .jit import jit
from .memory import call_at, fetch_add, fetch_line, give_way, load_shared, pause, ticks
from .table import (
    AHEAD,
    CHUNKS,
    CODE,
    COUNTED,
    END_LOOK,
    FIELDS,
    OF_EACH_LOOK,
    OF_EACH_STORE,
    OF_THE_WHOLE,
    OVER,
    OWN,
    PARTS,
    PIECES,
    STORES,
    TARGET_OWN,
    WAIT,
    WEIGHT,
    WEIGHT_ROW,
)  # fmt: skip

LINE = 64  # bytes of a cache line
FIRST_LINES, MOST_BYTES = 16, 1 << 14  # of a thread's share of the next weight, asked for while it waits


@jit
def run(table, numbers, steps, me, counters, shares, patience, waited):
    """Do every operation of the table together with whoever else is in this call; return when all is done.

    table int64 [operations, COLUMNS], numbers float32 [operations, NUMBERS]: written once for a model.
    steps int64 [shares, ...]: what this step is about, a row for each thread; never changed. me: which is this one's.
    counters int64 [(shares + 1) * operations]: zeros, this step's own. For each share, how much has been claimed of it
    in each operation; then how much of each is done.
    patience: ticks to wait for others' pieces before giving way. waited int64 [1]: to it are added the ticks of all
    waits beyond that.
    """
    operations = table.shape[0]
    all_done = shares * operations  # where the counters of what is done begin
    step = steps[me]
    index, all_pieces, done = 0, 0, 0
    while index < operations:
        op, parts = table[index], table[index, PARTS]
        pieces = _count(op, step)
        if step[OWN] and op[TARGET_OWN]:
            for piece in range(pieces):
                _do(table, numbers, step, index, parts, piece)
            index += parts
            continue
        for turn in range(shares):
            whose = (me + turn) % shares
            begin, end = pieces * whose // shares, pieces * (whose + 1) // shares
            while begin < end:
                piece = begin + fetch_add(counters, whose * operations + index, 1)
                if piece >= end:
                    break
                _do(table, numbers, step, index, parts, piece)
                done += 1
        all_pieces += pieces
        if op[WAIT]:
            if done:
                fetch_add(counters, all_done + index, done)
            soon = _next_weight(table, op, me, shares)
            _wait(counters, all_done + index, all_pieces, patience, waited, soon)
            all_pieces = done = 0
        index += parts


@jit
def _do(table, numbers, step, index, parts, piece):
    """A piece of the operations that are done together."""
    for i in range(index, index + parts):
        call_at(table[i, CODE], table[i:].ctypes.data, numbers[i:].ctypes.data, step.ctypes.data, piece)


@jit
def _next_weight(table, op, me, shares):
    """Where this thread's share of the next weight begins; 0 where there is none."""
    if not op[AHEAD]:
        return 0
    then = table[op[AHEAD]]
    first = share(then[FIELDS], then[PIECES] * me // shares, then[PIECES])
    return then[WEIGHT] + first * then[WEIGHT_ROW]


@jit
def _wait(counters, counter, pieces, patience, waited, soon):
    """Until so many pieces are done; meanwhile memory is asked for what lies at `soon`, where it is not 0."""
    if soon:
        for _ in range(FIRST_LINES):
            fetch_line(soon)
            soon += LINE
    began, last = ticks(), soon + MOST_BYTES
    while load_shared(counters, counter) < pieces:
        if soon and soon < last:
            fetch_line(soon)
            soon += LINE
        elif ticks() - began < patience:
            pause()
        else:
            give_way()  # whoever has the last piece may be waiting for this very core
    spent = ticks() - began
    if spent > patience:
        fetch_add(waited, 0, spent)


@jit
def _count(op, step):
    """How many pieces an operation has at this step."""
    rows = step[op[OVER]]
    if rows == 0:
        return 0
    if op[COUNTED] == OF_THE_WHOLE:
        return op[PIECES]
    if op[COUNTED] == OF_EACH_LOOK:
        return chunk_at(step, step[CHUNKS] - 1)[END_LOOK] * op[PIECES]
    if op[COUNTED] == OF_EACH_STORE:
        return step[STORES] * op[PIECES]
    return rows * op[PIECES]
