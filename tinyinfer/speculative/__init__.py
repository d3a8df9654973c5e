"""Speculative decoding: several tokens of one forward pass, with the very ids that come without it.

draft.py         a draft, a chain or a tree; the walk that verifies it, and why nothing of the output changes
drafter.py       what drafts come from
ngram.py         from what was said before
model.py         from another model, or from the same one quantized lower
costs.py         what steps cost, measured
acceptance.py    how often drafts were right
pace.py          how long the next draft should be
speculation.py   all of it for one answer
choose.py        what a caller asks for
"""
