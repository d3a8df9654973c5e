"""Text to token ids and back, by the `tokenizers` library and the rules of a model's tokenizer files.

The library knows the vocabulary and how text is split. What is added here is what `tokenizer_config.json` says beside
it: added tokens that tokenizer.json lacks, which tokens are special, and whether a beginning-of-sequence (BOS) or
end-of-sequence (EOS) token belongs around a text.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import BadCheckpoint, BadRequest, ModelNotFound
from .decoder import BYTE_PIECE, byte_characters, decoder_steps

if TYPE_CHECKING:
    import tokenizers

    from ..checkpoint.source import Checkpoint

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FILES = "tokenizer.json, tokenizer.model"


class Tokenizer:
    """A model's vocabulary. Ids run from 0 to `vocab_size` - 1; safe to share between threads."""

    def __init__(
        self, backend: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None, model_vocab_size: int = 0
    ):
        """Take a `tokenizers.Tokenizer`, what tokenizer_config.json holds, and the rows of the model's embedding.

        The backend is changed: truncation and padding are turned off, added tokens of `config` are added.
        Raises `BadCheckpoint` where the config's added tokens are malformed or contradict the vocabulary.
        """
        config = config or {}
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = False
        _add_tokens(backend, config.get("added_tokens_decoder") or {})
        self._backend = backend
        self.special_tokens = _special_tokens(config)
        self.stop_ids = _known_ids(backend, _contents(config.get("eos_token")))
        _mark_special(backend, self.special_tokens.values())
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.added_ids = frozenset(added)
        self.vocab_size = max([model_vocab_size, *(id + 1 for id in backend.get_vocab().values())])
        self._before, self._after = self._surroundings(config)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The tokenizer of a model.

        Raises `ModelNotFound` where the model has no tokenizer file, `BadCheckpoint` where it cannot be read.
        """
        import tokenizers

        if checkpoint.tokenizer_json is None:
            raise ModelNotFound(f"{checkpoint.source}: there is no tokenizer: looked for {FILES}")
        try:
            backend = tokenizers.Tokenizer.from_str(checkpoint.tokenizer_json)
        except Exception as error:  # the library raises plain Exception for anything wrong in the file
            raise BadCheckpoint(f"{checkpoint.source}: tokenizer.json cannot be read: {error}") from error
        return cls(backend, checkpoint.tokenizer_config, _model_vocab_size(checkpoint.config))

    @property
    def bos_token(self) -> str | None:
        """The beginning-of-sequence token's text, None where tokenizer_config.json names none."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The end-of-sequence token's text (the first of several), None where tokenizer_config.json names none."""
        return self.special_tokens.get("eos_token")

    @cached_property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`, None where there is none."""
        return self.id_of(self.bos_token)

    @cached_property
    def eos_token_id(self) -> int | None:
        """The id of `eos_token`, None where there is none. `stop_ids` has all ids that end a text."""
        return self.id_of(self.eos_token)

    @cached_property
    def decoder(self) -> tokenizers.decoders.Decoder | None:
        """What joins pieces to text; None joins them with spaces."""
        return self._backend.decoder

    @cached_property
    def ids_of_tokens(self) -> dict[str, int]:
        """Every token and its id."""
        return self._backend.get_vocab()

    def id_of(self, token: str | None) -> int | None:
        """The id of one whole token, None where the vocabulary has no such token."""
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Split a text into ids; special tokens written in the text become their own ids, nothing is cut or padded.

        With `add_special_tokens`, BOS goes before (and EOS after) if the tokenizer asks for it, unless the text itself
        begins (ends) with it. A rendered chat already holds its BOS: encode it with `add_special_tokens=False`.
        Raises `BadRequest` for what is not text.
        """
        try:
            ids = self._backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise BadRequest(f"cannot tokenize: {_why_not_text(text)}", "prompt") from error
        if not add_special_tokens:
            return ids
        before, after = self._before, self._after
        if ids[: len(before)] == before:
            before = []
        if ids[max(0, len(ids) - len(after)) :] == after:
            after = []
        return [*before, *ids, *after]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Join ids to text as the tokenizer's decoder does, with U+FFFD for bytes that are not UTF-8.

        An id that the model has but the vocabulary does not (rows that pad the embedding) gives no text.
        Raises `BadRequest` for an id outside the model's vocabulary.
        """
        pieces = [piece for id in ids if (piece := self.piece(id, skip_special_tokens)) is not None]
        return " ".join(pieces) if self.decoder is None else self.decoder.decode(pieces)

    def piece(self, id: int, skip_special_tokens: bool = False) -> str | None:
        """A token as the decoder takes it; None for one that gives no text. Raises `BadRequest` as `decode` does."""
        try:
            id = operator.index(id)
        except TypeError:
            raise BadRequest(f"a token id should be an integer, found {id!r}", "ids") from None
        if not 0 <= id < self.vocab_size:
            raise BadRequest(f"token id {id} is outside the vocabulary of {self.vocab_size} tokens", "ids")
        if skip_special_tokens and id in self.special_ids:
            return None
        return self._respelled.get(id) or self._backend.id_to_token(id)

    def token_bytes(self, id: int) -> bytes:
        """What a token says, as bytes: also half a character, and a space that a text would not begin with.

        A special token gives its own text, an id that the vocabulary lacks nothing. Raises `BadRequest` as `decode`.
        """
        piece = self.piece(id)
        if piece is None:
            return b""
        if self._byte_of is not None and all(char in self._byte_of for char in piece):
            return bytes(self._byte_of[char] for char in piece)
        if match := BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        if self.decoder is None:
            return piece.encode()
        # behind another piece, so that nothing is taken from its front
        return self.decoder.decode(["a", piece]).removeprefix("a").encode()

    def ids_with(self, text: str) -> list[int]:
        """The ids of all tokens that hold a text."""
        wanted = text.encode()
        return [id for id, said in enumerate(self.all_bytes) if wanted in said]

    @cached_property
    def all_bytes(self) -> list[bytes]:
        """What each id says, as `token_bytes` gives it."""
        return [self.token_bytes(id) for id in range(self.vocab_size)]

    @cached_property
    def _byte_of(self) -> dict[str, int] | None:
        """For a byte-level decoder, the byte that each of its characters is."""
        if [spec["type"] for spec in decoder_steps(self.decoder)[:1]] != ["ByteLevel"]:
            return None
        return {char: byte for byte, char in enumerate(byte_characters())}

    @cached_property
    def _respelled(self) -> dict[int, str]:
        # A byte-level decoder reads each character of a token as one byte. Added tokens are kept as plain text, so
        # one that holds a letter such as Ö would come out as a stray byte; it is given to the decoder spelled in bytes.
        if self._byte_of is None:
            return {}
        spelled = byte_characters()
        added = self._backend.get_added_tokens_decoder()
        return {id: "".join(spelled[byte] for byte in token.content.encode()) for id, token in added.items()}

    def _surroundings(self, config: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        # A post-processor puts constant ids around one text: see them around any text. As in transformers, what it adds
        # is not taken away by the config; unlike there, the config can ask for what it does not add.
        probe = self._backend.encode("a", add_special_tokens=True)
        inside = [i for i, special in enumerate(probe.special_tokens_mask) if not special]
        first, last = (inside[0], inside[-1] + 1) if inside else (len(probe.ids), len(probe.ids))
        before, after = probe.ids[:first], probe.ids[last:]
        bos, eos = self.bos_token_id, self.eos_token_id
        if config.get("add_bos_token") is True and bos is not None and bos not in before:
            before = [bos, *before]
        if config.get("add_eos_token") is True and eos is not None and eos not in after:
            after = [*after, eos]
        return before, after


def _model_vocab_size(config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    size = (text if isinstance(text, Mapping) else config).get("vocab_size", 0)
    return size if isinstance(size, int) else 0


def _contents(token: Any) -> list[str]:
    """The texts of a token given as a string, an AddedToken's dict, a list of these, or null."""
    if isinstance(token, (list, tuple)):
        return [content for item in token for content in _contents(item)]
    content = token.get("content") if isinstance(token, Mapping) else token
    return [content] if isinstance(content, str) else []


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _contents(config.get(name)) for name in SPECIAL_NAMES}
    return {name: contents[0] for name, contents in found.items() if contents}


def _known_ids(backend: tokenizers.Tokenizer, contents: Iterable[str]) -> frozenset[int]:
    ids = (backend.token_to_id(content) for content in contents)
    return frozenset(id for id in ids if id is not None)


def _add_tokens(backend: tokenizers.Tokenizer, declared: Mapping[str, Any]) -> None:
    """Add the "added_tokens_decoder" of tokenizer_config.json; its flags replace those that tokenizer.json gives."""
    from tokenizers import AddedToken

    try:
        tokens = {int(id): AddedToken(**_flags(token)) for id, token in declared.items()}
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise BadCheckpoint(f"tokenizer_config.json: added_tokens_decoder cannot be read: {error}") from error
    known = backend.get_added_tokens_decoder()
    for id, token in sorted(tokens.items(), key=lambda item: item[0]):
        if id in known:
            token.special = token.special or known[id].special  # once special, the library keeps it so
        if repr(known.get(id)) == repr(token):
            continue
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        found = backend.token_to_id(token.content)
        if found != id:
            where = f"tokenizer_config.json: added token {token.content!r}"
            raise BadCheckpoint(f"{where} should have id {id}, but tokenizer.json leads to {found}")


def _flags(token: Mapping[str, Any]) -> dict[str, Any]:
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: token[name] for name in names if name == "content" or name in token}


def _mark_special(backend: tokenizers.Tokenizer, contents: Iterable[str]) -> None:
    """Make the named tokens special: never split, left out when special tokens are skipped."""
    from tokenizers import AddedToken

    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for content in contents:
        token = added.get(content, AddedToken(content, normalized=False))
        if not token.special and backend.token_to_id(content) is not None:
            token.special = True
            backend.add_special_tokens([token])


def _why_not_text(text: Any) -> str:
    if not isinstance(text, str):
        return f"expected text, found {type(text).__name__}"
    at = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    return f"the text holds half a surrogate pair at character {at}"
