"""Answers of a given form: JSON, a JSON schema, a regular expression, one of some texts, a grammar.

    schema.py       what of JSON Schema is taken, checked keyword by keyword, and how it is handed on
    grammars.py     Grammars: a request becomes the matcher of its grammar, for one model's vocabulary
    search.py       where in a schema the matcher's library found what it can't do
    constraint.py   Constraint: one answer's place in its grammar, which is all that the sampler sees

The matcher is llguidance's (https://github.com/guidance-ai/llguidance), which is asked before each token for a bit for
every id of the vocabulary: whether the text may go on with it. Nothing here knows logits, and nothing of a model but
what its tokens say.
"""
