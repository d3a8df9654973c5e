"""The command itself: help, imports, wrong arguments, and the commands that load no model."""

import json
import os
import subprocess
import sys

import pytest

from tests.chain_models import END, say, write_chain_model
from tests.cli.commands import environment, refused, tinyinfer
from tests.tiny_models import GOLDEN
from tinyinfer.cli import COMMANDS
from tinyinfer.config import FAMILIES

HEAVY = ["numpy", "numba", "llvmlite", "tokenizers", "jinja2", "gguf", "huggingface_hub", "tqdm", "torch"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chain_model(tmp_path_factory.mktemp("models") / "hi", say("Hi!"))


def test_help_lists_every_command():
    done = tinyinfer("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert all(usage in done.stdout for _, usage, _ in COMMANDS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    done = tinyinfer(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: tinyinfer {name}")


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS], ["run", "m", "--top-k", "x"]]
)
def test_help_and_usage_errors_import_nothing_heavy(argv):
    program = (
        "import sys; from tinyinfer.cli import main; main(sys.argv[1:]);"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, env=environment())
    assert done.stderr.splitlines()[-1] == "[]"


def test_without_a_command_the_help_goes_to_standard_error():
    done = tinyinfer()
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage" in done.stderr


def test_version():
    done = tinyinfer("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("tinyinfer ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["frobnicate"], "there is no command 'frobnicate'"),
        (["run"], "a model is needed"),
        (["run", "m", "hi", "--frob"], "unrecognized arguments: --frob"),
        (["run", "m", "hi", "--temp", "nan"], "--temp should be"),
        (["run", "m", "hi", "--top-p", "2"], "--top-p should be a number from 0 to 1, found 2.0"),
        (["run", "m", "-f", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["pull"], "the following arguments are required: NAME"),
        (["pull", "no such model"], "not in the catalogue"),
        (["info", "/no/such/folder"], "/no/such/folder"),
        (["tokenize", "nosuchmodel", "x"], "nosuchmodel"),
        (["convert", "/no/such.gguf", "out"], "/no/such.gguf"),
        (["convert", "a.gguf"], "required: OUT"),
        (["convert", "a.gguf", "b", "--dtype", "int3"], "invalid choice: 'int3'"),
    ],
)
def test_wrong_arguments_are_one_sentence(argv, message, tmp_path):
    assert message in refused(tinyinfer(*argv, home=tmp_path))


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("hello")
    assert "config.json" in refused(tinyinfer("info", tmp_path / "notes"))
    assert "file.txt" in refused(tinyinfer("info", tmp_path / "file.txt"))


def test_info_of_experts_and_short_vectors():
    shown = tinyinfer("info", GOLDEN / "deepseek-v3-mla").stdout
    assert "feed-forward 96, 8 experts, 2 for each token" in shown
    assert "4 for keys and values, unpacked from 48 numbers" in shown


def test_info_for_people_and_scripts(model):
    shown = tinyinfer("info", model).stdout
    assert "LlamaForCausalLM" in shown
    assert "165,275" in shown
    facts = json.loads(tinyinfer("info", model, "--json").stdout)
    assert facts["parameters"] == 165_275
    assert facts["weight_bytes"] == 4 * 165_275
    assert (facts["kv_dtype"], facts["kv_bytes_per_token"]) == ("float16", 2 * 4 * 2)
    assert facts["context"] == 512
    assert facts["tokens_that_fit"] == {"1": 512, "4": 512, "16": 512}


def test_list_shows_what_is_there_and_what_could_be(tmp_path):
    write_chain_model(tmp_path / "mine", say("Hi!"))
    done = tinyinfer("list", home=tmp_path)
    assert done.returncode == 0
    states = {line.split()[0]: line.split()[3:5] for line in done.stdout.splitlines()}
    assert states["mine"][0] == "here"
    assert states["smollm2-135m-instruct"] == ["to", "pull"]
    places = {place["name"]: place for place in json.loads(tinyinfer("list", "--json", home=tmp_path).stdout)}
    assert places["mine"]["path"] == str(tmp_path / "mine")
    assert places["smollm2-135m-instruct"]["path"] is None


def test_a_model_is_found_by_its_name_in_home(tmp_path):
    write_chain_model(tmp_path / "mine", say("Hi!"))
    assert tinyinfer("tokenize", "mine", "Hi", "--ids", home=tmp_path).stdout == "[72, 105]\n"


def test_tokenize(model):
    done = tinyinfer("tokenize", model, "quick é<|im_end|>")
    assert done.stdout.splitlines()[0].split() == ["264", "'quick'"]
    assert done.stdout.splitlines()[-1].split() == [str(END), "'<|im_end|>'"]
    assert json.loads(tinyinfer("tokenize", model, "--ids", input="Hi\n").stdout) == [72, 105]
    assert json.loads(tinyinfer("tokenize", "--json", "-m", model, "Hi").stdout) == {
        "ids": [72, 105],
        "pieces": ["H", "i"],
    }
    assert "not UTF-8" in refused(tinyinfer("tokenize", model, input=b"\xff"))


def test_convert_writes_a_folder_once(model, tmp_path):
    target = tmp_path / "half"
    done = tinyinfer("convert", model, target, "--dtype", "bfloat16")
    assert (done.returncode, done.stdout) == (0, f"{target}\n")
    assert done.stderr.startswith("writing half (331 kB)")
    assert json.loads(tinyinfer("info", target, "--json").stdout)["weight_bytes"] == 2 * 165_275
    assert "already there" in refused(tinyinfer("convert", model, target))


def test_progress_is_a_bar_on_a_terminal(model, tmp_path):
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    own, theirs = pty.openpty()
    argv = [sys.executable, "-m", "tinyinfer", "convert", str(model), str(tmp_path / "out")]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=theirs, env=environment())
    os.close(theirs)
    assert done.returncode == 0
    assert b"100%" in os.read(own, 65536)
    os.close(own)


def test_info_shows_every_family_that_can_be_run():
    done = tinyinfer("info", "--supported", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    traits = {one["architecture"]: one["traits"] for one in facts["families"]}
    assert set(traits) == set(FAMILIES)
    assert traits["LlamaForCausalLM"] == []
    assert {"experts", "attention sinks", "sliding windows"} <= set(traits["GptOssForCausalLM"])
    assert {"latent attention", "experts"} <= set(traits["DeepseekV3ForCausalLM"])
    assert {"gptq", "awq", "mlx"} <= set(facts["quantized_by"])
    text = tinyinfer("info", "--supported").stdout
    assert all(f"\n{name} " in text for name in FAMILIES)


def test_info_of_a_model_and_of_all_families_is_not_asked_at_once(model):
    assert "give it alone" in refused(tinyinfer("info", model, "--supported"))
