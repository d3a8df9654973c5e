"""Where models live, and which one a name means.

    home()/
        smollm2-135m-instruct/          a model of the catalogue, or any folder or .gguf file that a person put there
        owner--name/                    a repository of the Hugging Face Hub
        owner--name@revision/           the same, of one revision
        .downloads/                     pulls under way; nothing in it is ever taken for a model

A folder gets its final name only when all of it is there (see `downloads`), so having the name is being complete.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import quote, unquote

from ..errors import BadRequest, ModelNotFound
from .catalogue import catalogue

PACKAGE = Path(__file__).resolve().parents[1]
DOWNLOADS = ".downloads"

# The Hub's own rules for owner and name: no '--' and no '..', so that 'owner--name' can be read back.
_PART = r"(?![^/@]*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?P<owner>{_PART})/(?P<name>{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/+-]*))?")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@%+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Repository:
    """A repository of the Hub as a person writes it: `owner/name`, or `owner/name@revision`."""

    id: str
    revision: str | None = None

    def __str__(self) -> str:
        """As a person writes it."""
        return f"{self.id}@{self.revision}" if self.revision else self.id

    @property
    def folder_name(self) -> str:
        """Its folder's name in `home()`: one level, whatever the revision's name holds."""
        folder = self.id.replace("/", "--")
        return f"{folder}@{quote(self.revision, safe='')}" if self.revision else folder


@dataclass(frozen=True)
class Place:
    """One line of `tinyinfer list`; `path` is None for a model of the catalogue that is not there yet.

    `kind` is "catalogue", "hub", "folder" or "gguf"; `bytes` is what it takes on disk, or will take, roughly.
    """

    name: str
    path: Path | None
    bytes: int
    kind: str


def home() -> Path:
    """The folder that models are pulled into; it need not exist yet.

    `TINYINFER_HOME` where that is set, `weights/` beside the package in a clone, else the user's data folder.
    """
    if chosen := os.environ.get("TINYINFER_HOME"):
        return Path(chosen).expanduser().absolute()
    return PACKAGE.parent / "weights" if _is_clone(PACKAGE.parent) else _user_data()


def _is_clone(folder: Path) -> bool:
    try:
        project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(r"""^name\s*=\s*["']tinyinfer["']\s*$""", project, re.MULTILINE) is not None


def _user_data() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tinyinfer"


def parse_repository(name: str) -> Repository | None:
    """`owner/name` or `owner/name@revision` taken apart; None where the text is neither."""
    match = _REPOSITORY.fullmatch(name)
    if match is None or (match["revision"] and ".." in match["revision"]):
        return None
    return Repository(f"{match['owner']}/{match['name']}", match["revision"])


def find_model(name: str | os.PathLike) -> Path:
    """The folder or .gguf file that `name` means; nothing is fetched and nothing inside is read.

    In this order: an existing folder or .gguf file; what stands in `home()` under that name, of the catalogue, of the
    Hub or a person's own; a complete snapshot in the Hugging Face cache. Raises `ModelNotFound` saying what to type.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise BadRequest(f"a model should be a name or a path, found {name!r}", "model")
    text = os.fspath(name)
    # the functions of os.path, unlike Path's methods, answer False to text that can't be a path at all
    given = os.path.expanduser(text)
    if os.path.isdir(given) or (os.path.isfile(given) and given.lower().endswith(".gguf")):
        return Path(given)
    if os.path.isfile(given):
        raise ModelNotFound(
            f"{text}: a model is a folder with config.json or a .gguf file; this is another kind of file"
        )
    if found := find_pulled(text):
        return found
    raise ModelNotFound(_advice(text))


def find_pulled(name: str) -> Path | None:
    """Like `find_model` for names alone: what was pulled or put into `home()`, or None."""
    repository = parse_repository(name)
    if repository:
        folder = home() / repository.folder_name
        return folder if _is_model(folder) else _cached_snapshot(repository)
    if not _PLAIN.fullmatch(name):
        return None
    path = home() / name
    return path if _is_model(path) else None


def installed() -> list[Place]:
    """What stands in `home()`, by name, then what of the catalogue does not."""
    folder = home()
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    there = [_place(path) for path in paths if not path.name.startswith(".") and _is_model(path)]
    names = {place.name for place in there}
    absent = [entry for entry in catalogue().values() if entry.name not in names]
    return there + [Place(entry.name, None, entry.disk_bytes, "catalogue") for entry in absent]


def _place(path: Path) -> Place:
    if path.is_file():
        return Place(path.name, path, path.stat().st_size, "gguf")
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    repository = parse_repository(unquote(path.name.replace("--", "/", 1)))
    if path.name in catalogue():
        return Place(path.name, path, size, "catalogue")
    if repository and repository.folder_name == path.name:
        return Place(str(repository), path, size, "hub")
    return Place(path.name, path, size, "folder")


def _is_model(path: Path) -> bool:
    return os.path.isfile(path / "config.json") or (path.suffix.lower() == ".gguf" and os.path.isfile(path))


def _cached_snapshot(repository: Repository) -> Path | None:
    """A whole snapshot that another program left in the Hugging Face cache, for reading only."""
    stored = _hub_cache() / f"models--{repository.id.replace('/', '--')}"
    commit = repository.revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (stored / "refs" / commit).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
    snapshot = stored / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and _is_whole_snapshot(snapshot) else None


def _is_whole_snapshot(snapshot: Path) -> bool:
    # that cache fills file by file, so there the folder's name says nothing about what is in it
    weights = ["model.safetensors"]
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        try:
            weights = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
    tokenizers = ("tokenizer.json", "tokenizer.model")
    needed = all((snapshot / str(file)).is_file() for file in ["config.json", *weights])
    return needed and any((snapshot / file).is_file() for file in tokenizers)


def _hub_cache() -> Path:
    # the rules of huggingface_hub.constants, repeated because importing that takes longer than finding a model may
    if chosen := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    return Path(os.environ.get("HF_HOME") or base / "huggingface").expanduser() / "hub"


def _advice(name: str) -> str:
    """One sentence for a model that is not there, with the command that would bring it."""
    name = name if len(name) <= 100 else f"{name[:97]}..."
    if name in catalogue():
        return f"{name} has not been pulled yet; type: tinyinfer pull {name}"
    if repository := parse_repository(name):
        near = nearest_name(repository.id.split("/")[1])
        also = f" (or the catalogue's own: tinyinfer pull {near})" if near else ""
        return f"{name} is neither a folder here nor a repository already pulled; type: tinyinfer pull {name}{also}"
    if near := nearest_name(name):
        pulled = find_pulled(near) is not None
        return f"there is no model {name!r}; did you mean {near}? type: tinyinfer {'run' if pulled else 'pull'} {near}"
    return (
        f"there is no model, folder or .gguf file {name!r}; to get one of the catalogue "
        f"({', '.join(catalogue())}), type: tinyinfer pull {next(iter(catalogue()), 'owner/name')}"
    )


def nearest_name(name: str) -> str | None:
    """The catalogue name that was probably meant, None where nothing is near."""
    wanted = name.lower()
    begun = [known for known in catalogue() if len(wanted) >= 3 and known.startswith(wanted)]
    return next(iter(begun or get_close_matches(wanted, catalogue(), n=1, cutoff=0.6)), None)
