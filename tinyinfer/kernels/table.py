"""The numbers by which `tape.py`, which writes a forward pass down, and `run.py`, which runs it compiled, agree."""

# a row of the table begins with: the address of the operation's code; where `step` says over how many rows it runs;
# pieces, and what they are a number of: pieces of each row, of the whole, or of each tile of queries; then its fields
CODE, OVER, PIECES, COUNTED = range(4)
OF_EACH_ROW, OF_THE_WHOLE, OF_EACH_TILE = range(3)
COLUMNS = 24

# what stands in `step`; from ANGLES on, addresses of cosines and sines, a pair for each kind of rotation
ROWS, WANTED, CHUNKS, CHUNK_WIDTH, CHUNK_TABLE, ROW_CHUNKS, WANTED_ROWS, LOGITS, SPLITS, STATES, ANGLES = range(11)

# a row of the chunk table: the rows it has, the position of the first, tiles of queries up to and with this chunk;
# and from POOLS on for each pool of blocks: addresses of the block table, of keys and of values; the first block held;
# how many blocks the pool has
FIRST_ROW, END_ROW, START, END_TILE, POOLS = range(5)
BLOCK_TABLE, KEYS, VALUES, FIRST_BLOCK, NUM_BLOCKS, BLOCK_SIZE, POOL_WIDTH = range(7)

COUNTER_STRIDE = 16  # int64s from one counter to the next: no two in one cache line
QUERY_TILE = 8  # queries that go over a block of keys together
MOST_REGISTERS = 1 << 16  # what an array over `step` says it has; nothing reads beyond what there is
