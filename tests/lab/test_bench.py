"""What is run and counted; how fast it is, no test can know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import CONFIG, WINDOWED, random_model
from tinyinfer import LLM
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadRequest
from tinyinfer.kernels import tape
from tinyinfer.lab import bench as module
from tinyinfer.lab.bench import BATCH_DEPTH, STEPS, Decode, Limits, Measurement, Plan, Prefill, Report, bench
from tinyinfer.lab.timing import Samples
from tinyinfer.model.forward import MOST_ROWS, Model


def llm(**changes) -> LLM:
    return LLM(Checkpoint(Path("tiny"), *random_model(None, 0, **changes)))


@pytest.fixture
def passes(monkeypatch):
    """For every pass its chunks: (tokens, length of the text when it began, what it says the text has, logits)."""
    seen, forward = [], Model.forward

    def watched(model, chunks):
        lengths = [chunk.sequence.length for chunk in chunks]
        logits = forward(model, chunks)
        said = [(len(chunk.ids), length, chunk.text_length) for chunk, length in zip(chunks, lengths, strict=True)]
        seen.append((said, len(logits)))
        return logits

    monkeypatch.setattr(Model, "forward", watched)
    return seen


def test_prefill_begins_anew_each_time(passes):
    case = Prefill(llm().model, 20)
    assert case.rate() > 0
    assert case.rate() > 0
    assert passes == [([(20, 0, 20)], 1)] * 2


def test_a_long_prompt_is_fed_as_generate_does(passes):
    case = Prefill(llm(max_position_embeddings=2000).model, MOST_ROWS + 3)
    case.rate()
    assert passes == [([(MOST_ROWS, 0, MOST_ROWS + 3)], 1), ([(3, MOST_ROWS, MOST_ROWS + 3)], 1)]


@pytest.mark.parametrize("sequences", [1, 3])
def test_decoding_goes_back_to_where_it_began(passes, sequences):
    case = Decode(llm().model, 5, sequences)
    case.rate()
    assert passes[:sequences] == [([(5, 0, 5)], 0)] * sequences  # no logits: they are not asked for
    steps = [([(1, 5 + step, None)] * sequences, sequences) for step in range(STEPS)]
    assert passes[sequences:] == steps
    case.rate()
    assert passes[sequences + STEPS :] == steps


def test_decoding_from_nothing(passes):
    case = Decode(llm().model, 0)
    case.rate()
    case.rate()
    assert [said for said, _ in passes] == 2 * [[(1, step, None)] for step in range(STEPS)]


def test_where_a_window_has_moved_on_the_text_is_fed_again(passes):
    case = Decode(llm(**WINDOWED).model, 30)  # the first block of 32 is given back on the way
    case.rate()
    case.rate()
    assert [length for said, _ in passes for _, length, _ in said] == [0, *range(30, 46)] * 2


# keys and values of a token: 3 layers, 2 heads of 10, float16; weights in all
KV, HIDDEN = 3 * 2 * 2 * 10 * 2, CONFIG["hidden_size"]
LAYERS = 3 * (HIDDEN * 100 + 60 * HIDDEN + 3 * HIDDEN * 56)
HEAD, NORMS = 97 * HIDDEN, 7 * HIDDEN
WEIGHTS = 4 * (LAYERS + HEAD + NORMS)


def test_bytes_and_multiply_adds_of_a_token():
    model = llm(tie_word_embeddings=True).model
    prefill, alone, three = Prefill(model, 20), Decode(model, 5), Decode(model, 5, 3)
    for case in (prefill, alone, three):
        case.rate()
    assert prefill.bytes_per_token() == pytest.approx((WEIGHTS + 20 * KV) / 20)
    # the sixteen tokens see 6, 7, ... 21, themselves among them
    seen = np.mean(range(6, 22)) * KV
    assert alone.bytes_per_token() == pytest.approx(WEIGHTS + seen)
    assert three.bytes_per_token() == pytest.approx(WEIGHTS / 3 + seen)
    assert prefill.multiply_adds_per_token() == pytest.approx((20 * LAYERS + HEAD) / 20)
    assert alone.multiply_adds_per_token() == three.multiply_adds_per_token() == LAYERS + HEAD


def test_a_long_prompt_reads_the_weights_once_a_pass():
    model = llm(tie_word_embeddings=True, max_position_embeddings=2000).model
    case = Prefill(model, MOST_ROWS + 3)
    case.rate()
    read = 2 * WEIGHTS + (2 * MOST_ROWS + 3) * KV
    assert case.bytes_per_token() == pytest.approx(read / (MOST_ROWS + 3))
    assert case.multiply_adds_per_token() == pytest.approx(LAYERS + 2 * HEAD / (MOST_ROWS + 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill": (16, 0)}, "prefill should be numbers from 1, found 0"),
        ({"decode": (-1,)}, "decode should be numbers from 0, found -1"),
        ({"batch": (0,)}, f"batch should be numbers from 1 to {MOST_ROWS}, found 0"),
        ({"batch": (MOST_ROWS + 1,)}, f"batch should be numbers from 1 to {MOST_ROWS}, found {MOST_ROWS + 1}"),
        ({"repeats": 0}, "repeats should be a whole number from 1, found 0"),
        ({"prefill": (), "decode": (), "batch": ()}, "nothing to measure: .* are all empty"),
    ],
)
def test_impossible_plans(changes, message):
    with pytest.raises(BadRequest, match=message):
        Plan(**changes)


@pytest.fixture
def small_probes(monkeypatch):
    monkeypatch.setattr(module, "probe_bytes", lambda: 0)
    monkeypatch.setattr("tinyinfer.lab.machine.ROUNDS", 1)


@pytest.mark.usefixtures("small_probes")
def test_all_is_measured_in_the_order_asked():
    asked = Plan(prefill=(3, 129), decode=(0, 112, 113), batch=(1, 2), repeats=2)
    report = bench(llm(), asked)
    assert [one.name for one in report.measurements] == [
        "prefill 3",
        "decode at 0",
        "decode at 112",
        f"batch of 1 at {BATCH_DEPTH}",
        f"batch of 2 at {BATCH_DEPTH}",
    ]
    found = [(one.phase, one.sequences, one.tokens, one.depth) for one in report.measurements]
    assert found[0] == ("prefill", 1, 3, 0)
    assert found[2] == ("decode", 1, 1, 112)
    assert found[-1] == ("batch", 2, 1, BATCH_DEPTH)
    assert report.skipped == (
        "prefill 129 takes 129 tokens, more than the context of 128",
        f"decode at 113 takes {113 + STEPS} tokens, more than the context of 128",
    )
    assert all(len(one.tokens_per_second.values) == 2 for one in report.measurements)
    assert all(one.tokens_per_second.low > 0 for one in report.measurements)
    assert (report.model, report.weights, report.kv_dtype) == ("tiny", {"float32": WEIGHTS}, "float16")


def test_nothing_that_fits_is_refused():
    with pytest.raises(BadRequest, match="decode at 200 takes 216 tokens, more than the context of 128"):
        bench(llm(), Plan(prefill=(), decode=(200,), batch=()))


@pytest.mark.usefixtures("small_probes")
@pytest.mark.skipif(not tape.use_compiled(), reason="limits take compiled kernels")
def test_limits_are_measured_once_more_at_the_end():
    report = bench(llm(), Plan(prefill=(3,), decode=(), batch=(), repeats=2))
    limits = report.limits
    assert len(limits.bytes_per_second.values) == len(limits.multiply_adds_per_second.values) == 3
    assert limits.kind == "float32"
    assert report.threads >= 1
    assert report.memory_share(report.measurements[0]) > 0
    assert report.arithmetic_share(report.measurements[0]) > 0


def test_in_numpy_there_are_no_limits(monkeypatch):
    monkeypatch.setattr(module, "use_compiled", lambda: False)
    report = bench(llm(), Plan(prefill=(3,), decode=(), batch=(), repeats=1))
    assert (report.limits, report.threads, report.backend) == (None, None, "numpy")
    assert report.memory_share(report.measurements[0]) is None
    assert report.arithmetic_share(report.measurements[0]) is None


def test_shares_are_of_medians():
    one = Measurement("decode at 8", "decode", 1, 1, 8, Samples((1.0, 10.0, 4.0)), 50.0, 300.0)
    limits = Limits(Samples((400.0, 900.0, 100.0)), 1024, Samples((6000.0,)), "int8")
    report = Report("m", {}, 2, "avx2", "float32", "cpu", (None, None), 3, limits, (one,), ())
    assert (one.bytes_per_second, one.multiply_adds_per_second) == (200, 1200)
    assert report.memory_share(one) == 0.5
    assert report.arithmetic_share(one) == 0.2


@pytest.mark.usefixtures("small_probes")
@pytest.mark.skipif(not tape.use_compiled(), reason="limits take compiled kernels")
def test_the_machine_is_measured_with_the_models_threads():
    tiny = LLM(Checkpoint(Path("tiny"), *random_model()), threads=3)
    assert bench(tiny, Plan(prefill=(3,), decode=(), batch=(), repeats=1)).threads == 3
