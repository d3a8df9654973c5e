"""CONTRIBUTING.md shows code that is there; links of the README lead somewhere, and it names all that there is."""

import re
from pathlib import Path

from tinyinfer.lab.course.catalogue import EXPERIMENTS

ROOT = Path(__file__).parent.parent
FILES = ["tinyinfer/config/families.py", "tinyinfer/model/names.py", "tests/golden/variants/make.py"]


def test_the_worked_example_is_the_code_itself():
    source = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in FILES)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    assert [block for block in blocks if block not in source] == []


def test_links_of_the_readme_lead_to_sections_and_files_that_are_there():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", readme, re.MULTILINE)
    sections = {"#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 20
    inner = [link for link in links if "://" not in link]
    assert [link for link in inner if link not in sections and not (ROOT / link).exists()] == []


def test_the_readme_names_every_experiment_and_every_example():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"tinyinfer lab ([a-z-]+)", readme)) - {"all"} == {one.name for one in EXPERIMENTS}
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f"(examples/{path.name})" not in readme] == []
