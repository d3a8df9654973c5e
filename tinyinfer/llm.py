"""The Python face: load a model, and give it prompts or conversations."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .adapters import Adapters, Folders, Wish
from .answer import Completion, Piece
from .asking import Asking, Message, Prompt, Tools, overridden
from .beams import Beam, BeamSearch, beams, greedy_params
from .cache import KV_DTYPES
from .cached_sequence import CachedSequence
from .checkpoint.places import find_model
from .checkpoint.quantized import quantize_checkpoint
from .checkpoint.source import Checkpoint, dequantized, naming, open_checkpoint
from .config import read_config
from .embedding import embed
from .errors import BadRequest
from .fingerprint import adapters_fingerprint, fingerprints
from .generate import generate
from .kernels.tape import use_compiled
from .model.adapters import Adapter
from .model.forward import Model
from .model.tensors import collect_tensors
from .sampling import SamplingParams
from .sampling.logprobs import Score, Scores
from .sampling.plan import Vocabulary
from .saved import SavedCache, bytes_of, restored, write_cache
from .session import Session, last
from .speculative.choose import drafter_for
from .speculative.drafter import Drafter
from .speculative.speculation import Speculation


def load(
    model: str | os.PathLike,
    *,
    quantize: str | None = None,
    method: str = "rtn",
    calibration: str | None = None,
    activations: str | None = None,
    context: int | None = None,
    kv_dtype: str = "float16",
    threads: int | None = None,
    lora: Folders | None = None,
    speculate: Any = None,
) -> LLM:
    """Load a model: a catalogue name, a repository id already pulled, a Hugging Face folder, or a .gguf file.

    A folder may be one that another program quantized, see `checkpoint/foreign`.

    quantize      round the weights to a form as `tinyinfer quantize` does: "int4", "int5", "int8", "nf4", "int4-g128"
                  What has that form already is kept; what has another is made anew from what its codes say, which adds
                  one error to the other
    method        how codes are then chosen: "rtn", the nearest, or for int4 and int5 "gptq" or "awq", by what the
                  matrices are multiplied with while a text is read, which takes minutes: `tinyinfer quantize` does it
                  once for all
    calibration   that text, by default a short one that comes with the package
    activations   what quantized weights are multiplied with: "int8", the default, rounded to 8 bits in groups of 32, or
                  "f32", for which weights are widened to float32 at load, to exactly what the files encode. Weights
                  stored as floats meet float32 in any case. Without Numba (TINYINFER_KERNELS=numpy) quantized weights
                  are widened as they are used and meet float32 too, by default; "int8" is then refused
    context       tokens that prompt and answer may have together, by default what the model was made for
    kv_dtype      what keys and values are kept in: "float16", the default, "float32", "int8" with a scale for each head
                  and token, or "int8-int4": keys in int8, values in 4 bits, with a scale and a minimum for 32 of them
    threads       how many to compute with, by default TINYINFER_THREADS, else one for each physical core that the
                  process may use; models that ask for the same number share them
    lora          folders of LoRA adapters as PEFT saves them, one or several, or a mapping from folders to scales: what
                  requests go through that do not say otherwise, see `LLM.load_adapter`
    speculate     what drafts the text of requests that do not say otherwise, see `LLM.stream`

    Raises `ModelNotFound` saying what to type where it is not there, `BadCheckpoint` and `UnsupportedModel` for what is
    wrong with its files, `BadRequest` for the other arguments.
    """
    checkpoint = weights_as_asked(model, quantize, activations, method, calibration)
    llm = LLM(checkpoint, context, kv_dtype=kv_dtype, threads=threads)
    if lora is not None:
        llm.adapters.load_usual(lora)
    llm.drafter = llm.chosen_drafter(speculate)
    return llm


def weights_as_asked(
    model: str | os.PathLike,
    quantize: str | None = None,
    activations: str | None = None,
    method: str = "rtn",
    calibration: str | None = None,
) -> Checkpoint:
    """The files of a model with its weights as `load` would have them, each made when it is asked for.

    Arguments are those of `load`, and so is what is raised.
    """
    if activations not in ("int8", "f32", None):
        raise BadRequest(f"activations should be 'int8' or 'f32', found {activations!r}", "activations")
    if activations == "int8" and not use_compiled():
        reason = "TINYINFER_KERNELS=numpy multiplies quantized weights with float32 activations alone"
        raise BadRequest(f"activations: {reason}, found 'int8'", "activations")
    checkpoint = open_checkpoint(find_model(model))
    if quantize is None and (method != "rtn" or calibration is not None):
        raise BadRequest("method and calibration say how weights are quantized, and quantize that they are", "quantize")
    if method == "rtn" and calibration is not None:
        raise BadRequest("calibration is for the methods gptq and awq; rtn looks at the weights alone", "calibration")
    if method != "rtn":
        from .calibration.walk import calibrated  # few need it

        checkpoint, _ = calibrated(checkpoint, method, calibration, scheme=quantize)
    if quantize is not None:
        checkpoint = quantize_checkpoint(checkpoint, scheme=quantize)
    return dequantized(checkpoint) if activations == "f32" else checkpoint


class LLM(Asking):
    """A loaded model. Calls do not share state: each has a cache of its own, unless it goes through a `session`.

    checkpoint       what the files say
    config           ModelConfig, the facts that the model reads
    context          tokens that prompt and answer may have together
    stop_ids         end-of-sequence ids, of generation_config, config and tokenizer together
    unused_tensors   names in the files that the model does not read
    adapters         the LoRA adapters at hand
    drafter          what drafts the text of requests that do not say otherwise, or None
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: int | None = None,
        *,
        kv_dtype: str = "float16",
        threads: int | None = None,
    ):
        """Take a checkpoint's weights as they are, mapped; see `load`."""
        if kv_dtype not in KV_DTYPES:
            raise BadRequest(f"kv_dtype should be one of {', '.join(KV_DTYPES)}, found {kv_dtype!r}", "kv_dtype")
        with naming(checkpoint.source):
            config = read_config(checkpoint.config)
            tensors = collect_tensors(config, checkpoint.tensors)
        super().__init__(checkpoint, config, context)
        self.unused_tensors = tensors.unused
        self.model = Model(self.config, tensors, kv_dtype=kv_dtype, threads=threads)
        self.adapters = Adapters(self.model)
        self.drafter: Drafter | None = None
        self._drafters: dict[str, Drafter | None] = {}
        if self.unused_tensors:
            shown = ", ".join(self.unused_tensors[:8])
            more = f" and {len(self.unused_tensors) - 8} more" if len(self.unused_tensors) > 8 else ""
            warnings.warn(f"{checkpoint.source}: tensors that the model does not read: {shown}{more}", stacklevel=3)

    def load_adapter(self, folder: str | os.PathLike, name: str | None = None) -> str:
        """Have a LoRA adapter at hand, a folder as PEFT saves it; gives its name, by default the folder's own.

        What a request goes through is its `adapters`: a name, several, pairs of a name and a scale, or a mapping from
        names to scales; an empty list is the model as it is, and None, the default, what `load` was given. Requests
        with different adapters run side by side. Raises `ModelNotFound`, `BadCheckpoint` or `UnsupportedModel` for what
        can't be applied, naming the tensor or the setting, and `BadRequest` for a name that is taken.
        """
        return self.adapters.load(folder, name)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; raises `BadRequest` where there is none of that name."""
        self.adapters.unload(name)

    def forward(self, ids: Sequence[int], adapters: Wish = None) -> np.ndarray:
        """Logits of a sequence with nothing before it: int [n] -> float32 [n, vocab]; row i scores what follows i."""
        chosen = self.adapters.chosen(adapters)
        ids = self._checked_ids(ids, "a flat list of ids")
        if not ids:
            raise BadRequest("expected at least one id, found none", "ids")
        return np.concatenate(list(CachedSequence(self.model).rows(ids, chosen)))

    def session(self) -> Session:
        """A conversation or document that grows: its cache is kept from call to call."""
        return Session(self)

    def save_cache(self, session: Session, file: str | os.PathLike) -> None:
        """Write what a session holds to a file, for `load_cache`; an older file there is replaced when it is whole.

        Raises `BadRequest` for a session that is not one of this model's own.
        """
        write_cache(*self._to_save(session), file)

    def load_cache(self, file: str | os.PathLike, adapters: Wish = None) -> Session:
        """A session that holds what one held when it was saved, maybe by another process.

        Raises `BadRequest` where it was saved with what makes other keys and values, saying what: another model,
        tokenizer, chat template or dtype of the cache, or other adapters than `adapters`, by default the usual ones;
        and `BadCheckpoint` where it is damaged, or no such file.
        """
        return self._restored(SavedCache.read(file), adapters)

    def export_cache(self, session: Session) -> bytes:
        """What `save_cache` writes, as bytes: for another process to `import_cache`."""
        return bytes_of(*self._to_save(session))

    def import_cache(self, content: bytes, adapters: Wish = None) -> Session:
        """A session that holds what `export_cache` was given; raises as `load_cache`."""
        return self._restored(SavedCache.from_bytes(content), adapters)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any) -> Iterator[Piece]:
        """Continue a prompt, text, ids or what `chat_prompt` gives, yielding pieces as they come.

        `overrides` are fields of SamplingParams, `adapters`, see `load_adapter`, and `speculate`; so they are in what
        follows. `speculate` says what drafts the text, to be verified several tokens at a time: the ids stay those that
        come without it, see `speculative/draft.py`. It is one of

            "ngram"             what followed the last tokens where they stood before, in prompt or answer
            "int4", "nf4", ...  the same model, rounded to that form in memory
            a model             another with the same vocabulary: loaded, or what `load` takes
            a mapping           as vLLM's speculative_config: "method" of "ngram" or "draft_model", "model",
                                "num_speculative_tokens", "prompt_lookup_min" and "prompt_lookup_max"; also "branches",
                                for trees of drafts, and "adaptive": false for drafts of that length at all costs
            a `Drafter`         with settings and what it has measured
            "off"               nothing, where `load` said something

        Drafts are as long as pays by what was measured, and where none pays there are none. A text that may outgrow
        its context (`context_full="roll"`) is not drafted, and neither are beams.
        With `graphemes=True` no piece ends inside of what is seen as one character, such as a flag or a letter and its
        accents; each then comes when the next begins, and the whole is the same.
        Everything asked is checked at once, before the first piece: raises `BadRequest`, or `ContextOverflow` where the
        prompt alone is longer than the context. A model without a tokenizer takes and gives ids, and its text is "".
        """
        return self.session().stream(prompt, params, **overrides)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any) -> Completion:
        """Continue a prompt, text or ids; see `stream`."""
        return last(self.stream(prompt, params, **overrides))

    def samples(
        self,
        prompt: Prompt,
        n: int,
        params: SamplingParams | None = None,
        *,
        adapters: Wish = None,
        speculate: Any = None,
        **overrides: Any,
    ) -> list[Completion]:
        """Continue a prompt in `n` ways, each what `generate` gives with the seed, the seed + 1, and so on.

        The prompt is run once, and its keys and values are held once. Raises as `stream` does.
        """
        if type(n) is not int or n < 1:
            raise BadRequest(f"n should be a whole number from 1, found {n!r}", "n")
        params = self.resolved_params(params, **overrides)
        first, chosen = CachedSequence(self.model), self.adapters.chosen(adapters)
        drafter = self.chosen_drafter(speculate)
        pieces = self._answer(first, prompt, params, chosen, drafter=drafter)
        began = next(pieces)  # the prompt has been run, and nothing after it
        branches = [first.fork() for _ in range(n - 1)]
        found = [began.completion or last(pieces)]
        for i, branch in enumerate(branches, 1):
            of_branch = params.with_overrides(seed=params.seed + i)
            found.append(last(self._answer(branch, prompt, of_branch, chosen, drafter=drafter)))
        return found

    def beams(
        self,
        prompt: Prompt,
        num_beams: int,
        params: SamplingParams | None = None,
        *,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        num_return_sequences: int = 1,
        adapters: Wish = None,
        **overrides: Any,
    ) -> list[Beam]:
        """The likeliest continuations that a beam search finds, best first, each with its `score`; see `beams.py`.

        What `BeamSearch` says of the first arguments holds; `overrides` are fields of SamplingParams. Nothing is drawn,
        whatever the model's generation_config advises, and nothing can be streamed, since which text wins is known
        when all is done. Raises as `stream` does, and `BadRequest` for what only a draw goes by, as a temperature, and
        for stop strings.
        """
        search = BeamSearch(num_beams, length_penalty, early_stopping, num_return_sequences)
        ids, chosen = self.prompt_ids(prompt), self.adapters.chosen(adapters)
        params = greedy_params(overridden(params, overrides)).resolved(self.checkpoint.generation_config)
        vocabulary = Vocabulary(self.config.vocab_size, self.stop_ids, self._dry_breakers(params))
        held = CachedSequence(self.model)
        return beams(
            held,
            ids,
            params,
            search,
            vocabulary,
            lambda: self._text_decoder(prompt, params, False),
            self.context,
            chosen,
        )

    def score(self, prompt: str | Sequence[int], continuation: str | Sequence[int], adapters: Wish = None) -> Score:
        """How likely a continuation is after a prompt, by the model's raw distribution.

        Texts are tokenized apart, so that no token lies across the seam. Raises `BadRequest` for an empty continuation,
        and `ContextOverflow` where both together are longer than the context.
        """
        before = self.prompt_ids(prompt)
        text = isinstance(continuation, str)
        after = self.tokenizer.encode(continuation, add_special_tokens=False) if text else continuation
        after = self._checked_ids(after, "text or a flat list of ids", "continuation")
        if not after:
            raise BadRequest("the continuation is empty: there is nothing to score", "continuation")
        ids = self.prompt_ids(before + after)
        scores = Scores(SamplingParams(prompt_logprobs=0), ids)
        CachedSequence(self.model).prefill(ids, self.adapters.chosen(adapters), scores.read_prompt)
        return Score(tuple(scores.prompt[len(before) :]))

    def embed(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        pooling: str = "mean",
        normalize: bool = True,
        adapters: Wish = None,
    ) -> np.ndarray:
        """A vector for each text, or list of ids: float32 [n, hidden]; a lone text counts as a list of one.

        See `embedding.embed` for the other arguments. Texts are tokenized as prompts are. Raises `BadRequest` where
        there is no text, for an id outside the vocabulary and for another pooling, `ContextOverflow` for a text longer
        than the context.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise BadRequest("expected at least one text, found none", "texts")
        return embed(self.model, list(map(self.prompt_ids, texts)), pooling, normalize, self.adapters.chosen(adapters))

    def chat_stream(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Tools | None = None,
        tool_format: str | None = None,
        **overrides: Any,
    ) -> Iterator[Piece]:
        """Answer a conversation in the model's own template, yielding pieces as they come.

        `tools` are descriptions as in OpenAI's API. What the model calls, and what it thinks before it answers, is kept
        apart from the text, see `Completion`; `tool_format` names how calls are written, see `text/calls.py` ("hermes",
        "llama3", "mistral", "granite", "gemma", "qwen3_coder", "glm", "deepseek"; "none" leaves all in the text), where
        the template does not show it.

        Raises `TemplateError` where the template refuses the conversation, and `BadRequest` where it has no place for
        tools; else as `stream` does.
        """
        return self.session().chat_stream(messages, params, tools, tool_format, **overrides)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Tools | None = None,
        tool_format: str | None = None,
        **overrides: Any,
    ) -> Completion:
        """Answer a conversation; see `chat_stream`."""
        return last(self.chat_stream(messages, params, tools, tool_format, **overrides))

    def chosen_drafter(self, speculate: Any = None) -> Drafter | None:
        """What drafts a request's text, by what it says, see `stream`; None where nothing does.

        What was asked for by name is made once. Raises `BadRequest` for what means nothing, and for a draft model with
        another vocabulary.
        """
        if speculate is None:
            return self.drafter
        if not isinstance(speculate, str):
            return drafter_for(self, speculate)
        if speculate not in self._drafters:
            self._drafters[speculate] = drafter_for(self, speculate)
        return self._drafters[speculate]

    def _answer(
        self,
        held: CachedSequence,
        prompt: Prompt,
        params: SamplingParams,
        adapters: Sequence[tuple[Adapter, float]],
        graphemes: bool = False,
        drafter: Drafter | None = None,
    ) -> Iterator[Piece]:
        """`generate` with all that this model adds; what was asked is checked before the first piece.

        A text that rolls is not drafted: which tokens come is the same.
        """
        answer = self.new_answer(prompt, params, graphemes=graphemes)
        drafts = drafter is not None and not answer.rolling
        return generate(held, answer, adapters, Speculation(drafter, answer, self.stop_ids) if drafts else None)

    def _to_save(self, session: Session) -> tuple[CachedSequence, dict[str, str], str]:
        """What a session holds, its key, and the model's name. Raises `BadRequest` where another model made it: its
        key would be wrong."""
        if not isinstance(session, Session) or session.llm is not self:
            found = "one of another" if isinstance(session, Session) else type(session).__name__
            raise BadRequest(f"what is saved should be a session of this model, found {found}", "session")
        return session._held, self._cache_key(session._held.adapters), self.path.name

    def _restored(self, saved: SavedCache, adapters: Wish) -> Session:
        chosen, session = self.adapters.chosen(adapters), self.session()
        session._held = restored(self.model, saved, self._cache_key(chosen))
        session._held.adapters = chosen
        return session

    def _cache_key(self, adapters: Sequence[tuple[Adapter, float]]) -> dict[str, str]:
        return self._fingerprints | {"adapters": adapters_fingerprint(adapters)}

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return fingerprints(self.checkpoint, self.model)
