"""Write clusters.json: texts of characters that Unicode's rules for grapheme clusters tell apart, cut into clusters.

Run where `pyuegc` and `uniseg` are installed (16.0.3 and 0.10.1, both with the tables of Unicode 16.0, made the file):
`python tests/golden/graphemes/make.py`. Two programs must agree on every text. Left out is what Unicode 18.0 changed:
there, a virama joins what follows also where no consonant stands before it.
"""

from __future__ import annotations

import json
import random
import re
from importlib.metadata import version
from pathlib import Path

from pyuegc import EGC
from uniseg.graphemecluster import grapheme_clusters

# at least one of each class of GraphemeBreakProperty, of Extended_Pictographic and of Indic_Conjunct_Break
CHARACTERS = [
    "\r", "\n", "\u0001", "\u200b", "\u2028", "a", " ", "é", "中",
    "\u0300", "\u0308", "\u20dd", "\u200c", "\u200d", "\ufe0f", "\U0001f3ff", "\U000e0061", "\u3099",
    "\u0903", "\u093e", "\u0e33", "\u1b04", "\u0600", "\u0d4e", "\u110bd",
    "\u1100", "\ua960", "\u1160", "\ud7b0", "\u11a8", "\uac00", "\uac01",
    "\U0001f1e9", "\U0001f1ea", "\u231a", "\u2764", "\U0001f469", "\U0001f680", "\u00a9",
    "\u0915", "\u0924", "\u0937", "\u094d", "\u093c", "\u0995", "\u09cd", "\u0d15", "\u0d4d", "\u0b95", "\u0bcd",
]  # fmt: skip

CONSONANT, VIRAMA = "[\u0915\u0924\u0937\u0995\u0d15]", "[\u094d\u09cd\u0d4d]"
MARKS = "[\u0300\u0308\u20dd\u200c\u200d\ufe0f\U0001f3ff\U000e0061\u3099\u093c\u0bcd\u094d\u09cd\u0d4d]"
CONJUNCT = re.compile(f"{CONSONANT}{MARKS}*")


def main() -> None:
    rng = random.Random(29)
    texts = [a + b for a in CHARACTERS for b in CHARACTERS]
    texts += ["".join(rng.choices(CHARACTERS, k=rng.randint(3, 9))) for _ in range(3000)]
    texts = [text for text in texts if not re.search(VIRAMA, CONJUNCT.sub("", text))]
    found = []
    for text in texts:
        clusters = EGC(text)
        if clusters != list(grapheme_clusters(text)):
            raise SystemExit(f"they differ on {text!r}: {clusters} and {list(grapheme_clusters(text))}")
        found.append(clusters)
    made_by = ", ".join(f"{name} {version(name)}" for name in ("pyuegc", "uniseg"))
    path = Path(__file__).with_name("clusters.json")
    path.write_text(json.dumps({"made_by": made_by, "clusters": found}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
