"""CONTRIBUTING.md shows code that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = ["tinyinfer/config/families.py", "tinyinfer/model/names.py", "tests/golden/variants/make.py"]


def test_the_worked_example_is_the_code_itself():
    source = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in FILES)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    assert [block for block in blocks if block not in source] == []
