"""int4: four bits a weight, and a scale for each group of 32, 64 or 128 columns of a row.

    with a minimum    w = scale * code + minimum      code 0..15, scale and minimum float16
    symmetric         w = scale * (code - 8)          code 0..15, scale float16, of either sign

    bits a weight, group 32 / 64 / 128:  5 / 4.5 / 4.25 with a minimum, 4.5 / 4.25 / 4.125 without

    codes     uint8 [NB, G, 4, 32]         byte j of line c: row j // 4 of the block,
                                           column 8 c + j % 4 in the low nibble, 8 c + 4 + j % 4 in the high one
    scales    float16 [NB, K / group, 8]   and minimums, likewise (layout.py draws both)

`steps.py` says how a group's scale is chosen. On normal weights that takes 2 to 6 % off the error of the whole range.
"""

from .steps import Steps

STEPS = Steps(top=15, shares=(1.0, 0.94, 0.88), reach=(8.0, 8.5, 9.0))
