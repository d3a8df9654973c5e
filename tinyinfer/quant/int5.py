"""int5: five bits a weight, and a scale for each group of 32, 64 or 128 columns of a row.

    with a minimum    w = scale * code + minimum      code 0..31, scale and minimum float16
    symmetric         w = scale * (code - 16)         code 0..31, scale float16, of either sign

    bits a weight, group 32 / 64 / 128:  6 / 5.5 / 5.25 with a minimum, 5.5 / 5.25 / 5.125 without

    codes     uint8 [NB, G, 5, 32]         lines 0 to 3: the lower four bits, just as int4's
                                           line 4: bit b of byte j is the fifth bit of row j // 4, column 4 b + j % 4
    scales    float16 [NB, K / group, 8]   and minimums, likewise (layout.py draws both)

So the nibbles of half a line and their fifth bits stand in the same bytes: a shift and a mask bring them together.
It holds GGUF's Q5_0 and Q5_1 exactly. `steps.py` says how a scale is chosen for other weights.
"""

from .steps import Steps

STEPS = Steps(top=31, shares=(1.0, 0.98, 0.95), reach=(16.0, 16.5, 17.0))
