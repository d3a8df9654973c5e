"""The numbers by which `tape.py`, which writes a forward pass down, and `run.py`, which runs it compiled, agree."""

# A row of the table begins with:
#   CODE     the address of the operation's code
#   OVER     where `step` says over how many rows it runs
#   PIECES   into how many pieces it falls, and COUNTED: pieces of what
#   PARTS    how many rows of the table, this and those after it, are done together, piece by piece
#   WAIT     whether what follows needs all of it done
#   SOURCE_OWN, TARGET_OWN: whether what it reads, and what it writes, are buffers of which threads may have their own
#   WEIGHT, WEIGHT_ROW: where a linear map's weight lies, and how many bytes a row of it takes
#   AHEAD    the row of the next linear map that has to wait for this operation, or 0
(
    CODE, OVER, PIECES, COUNTED, PARTS, WAIT, SOURCE_OWN, TARGET_OWN, WEIGHT, WEIGHT_ROW, AHEAD, FIELDS
) = range(12)  # fmt: skip
OF_EACH_ROW, OF_THE_WHOLE, OF_EACH_LOOK, OF_EACH_STORE = range(4)
COLUMNS = 32
TAKES_CODES = COLUMNS - 1  # of an expert's linear map, which has no use for it otherwise: whether x comes in 8 bits
ROW_BYTES = 8 * COLUMNS
NUMBERS = 4  # float32 that go with a row

# What stands in `step`; from ANGLES on, addresses of cosines and sines, a pair for each kind of rotation. Of a step of
# few rows, OWN says that each thread works them out for itself where a buffer is one of which threads have their own,
# and OWN_ROW where in such a buffer this thread's rows begin. SINGLE: no text has more than one new token. ADAPTERS:
# see `lora.py`. STORE_TABLE: a row and a chunk for each key and value to be written, each row with its own chunk first,
# then those that other chunks look at too; STORES: how many there are, or 0 where attention does it by itself.
(
    ROWS, WANTED, CHUNKS, CHUNK_WIDTH, CHUNK_TABLE, ROW_CHUNKS, WANTED_ROWS, LOGITS, STATES, NUM_STATES, SINGLE, OWN,
    IDS, ADAPTERS, ADAPTER_SCALES, STORES, STORE_TABLE, OWN_ROW, ANGLES,
) = range(19)  # fmt: skip
OWN_ROWS = 4  # steps of up to this many rows: working them out twice costs less than handing them over

# A row of the chunk table: the rows it has, the position of the first; tiles of queries and stretches of the past that
# they look at, in all up to and with this chunk; stretches of one tile; where its rows' states begin, of NUM_STATES, or
# -1 where none are kept; and from POOLS on for each pool of blocks: addresses of the block table, of keys and of
# values, and of their scales; the first block held; how many blocks the pool has room for.
FIRST_ROW, END_ROW, START, END_LOOK, STRETCHES, FIRST_STATE, POOLS = range(7)
BLOCK_TABLE, KEYS, VALUES, KEY_SCALES, VALUE_SCALES, FIRST_BLOCK, NUM_BLOCKS, BLOCK_SIZE, POOL_WIDTH = range(9)

QUERY_TILE = 8  # queries that go over a block of keys together
STRETCH = 128  # positions of the past that the queries of a chunk of one tile look at in one piece
MOST_REGISTERS = 1 << 16  # what an array over `step` says it has; nothing reads beyond what there is
