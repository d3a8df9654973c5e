"""`tinyinfer chat`: piped, and on a terminal of its own (a pty)."""

import os
import select
import signal
import subprocess
import time

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import COMMAND, environment, refused, tinyinfer


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_chain_model(folder / "hi", say("Hi!"), context=200)
    write_chain_model(folder / "plain", say("Hi!"), template=None)
    write_chain_model(folder / "endless", say("talk ", end=None), context=100_000)
    return folder


def test_each_piped_line_is_a_turn_and_only_answers_are_written(models):
    done = tinyinfer("chat", models / "hi", input="Hello\n\nHow are you?")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hi!\nHi!\n", "")


def test_commands_work_in_a_pipe_too(models):
    done = tinyinfer("chat", models / "hi", input="/help\n/reset\n/nonsense\nHello\n/exit\nnever\n")
    assert (done.returncode, done.stdout) == (0, "Hi!\n")
    assert "/system TEXT" in done.stderr
    assert "there is no command /nonsense" in done.stderr


def test_what_only_looks_like_a_command_is_a_turn(models):
    assert tinyinfer("chat", models / "hi", input="/usr/bin is a folder\n").stdout == "Hi!\n"


def test_a_template_that_refuses_loses_the_turn_and_not_the_session(models):
    done = tinyinfer("chat", models / "hi", "--system", "forbidden", input="Hello\n/system fine\nHello\n")
    assert (done.returncode, done.stdout) == (2, "Hi!\n")
    assert "System role refused" in done.stderr
    assert "/system without a text" in done.stderr


def test_an_overflow_loses_the_turn_and_not_the_session(models):
    done = tinyinfer("chat", models / "hi", input=f"Hello\n{'x' * 300}\nHello\n")
    assert (done.returncode, done.stdout) == (2, "Hi!\nHi!\n")
    assert "200" in done.stderr
    assert "/reset" in done.stderr


def test_an_answer_that_fills_the_context_says_so(models):
    done = tinyinfer("chat", models / "endless", "-n", "5", input="Hello\n")
    assert done.stdout == "talk \n"
    assert "cut at --max-tokens" in done.stderr
    done = tinyinfer("chat", models / "endless", "-c", "60", input="Hello\n")
    assert done.stdout.startswith("talk talk")
    assert "the context is full" in done.stderr


def test_a_model_without_a_template_is_refused(models):
    assert "has no chat template" in refused(tinyinfer("chat", models / "plain", input="Hello\n"))


def test_a_broken_character_is_an_error_of_one_turn(models):
    done = tinyinfer("chat", models / "hi", input=b"Hello\n\xff\xfe\nHello\n")
    assert "Traceback" not in done.stderr
    assert done.stdout.count("Hi!") >= 2


pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")


class Terminal:
    """A command whose standard streams are one terminal, and everything that it shows there."""

    def __init__(self, *argv):
        self.screen = ""
        self.own, theirs = pty.openpty()
        environ = environment() | {"TERM": "dumb"}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, argv)], stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.own)

    def type(self, text):
        os.write(self.own, text.encode())

    def wait_for(self, text, seconds=30):
        """Read until `text` is shown after what was already waited for; gives what came before it."""
        end = time.monotonic() + seconds
        while text not in self.screen:
            ready, _, _ = select.select([self.own], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{text!r} was not shown, but {self.screen!r}"
            try:
                self.screen += os.read(self.own, 4096).decode()
            except OSError:  # Linux says so when the other side is closed
                raise AssertionError(f"it ended before {text!r} was shown: {self.screen!r}") from None
        before, self.screen = self.screen.split(text, 1)
        return before

    def press_ctrl_c(self):
        time.sleep(0.3)  # a signal between showing a prompt and waiting for input is seen by Python only after a key
        # not the character: whether the terminal turns that into a signal depends on who holds it
        self.process.send_signal(signal.SIGINT)

    def leaves_with(self):
        return self.process.wait(timeout=30)


def test_a_session_on_a_terminal(models):
    with Terminal("chat", models / "hi") as terminal:
        terminal.wait_for("> ")
        terminal.type("Hello\n")
        terminal.wait_for("Hi!")
        terminal.wait_for("> ")
        terminal.type('"""two\n')
        terminal.wait_for(". ")
        terminal.type('lines"""\n')
        terminal.wait_for("Hi!")
        terminal.wait_for("> ")
        terminal.type("/exit\n")
        assert terminal.leaves_with() == 0


def test_ctrl_d_leaves(models):
    with Terminal("chat", models / "hi") as terminal:
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.leaves_with() == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(models):
    with Terminal("chat", models / "hi") as terminal:
        terminal.wait_for("> ")
        terminal.press_ctrl_c()
        terminal.wait_for("Ctrl-D or /exit leaves")
        terminal.wait_for("> ")
        terminal.type("Hello\n")
        terminal.wait_for("Hi!")


def test_ctrl_c_stops_the_answer_and_not_the_program(models):
    with Terminal("chat", models / "endless") as terminal:
        terminal.wait_for("> ")
        for _ in range(2):
            terminal.type("Hello\n")
            terminal.wait_for("talk talk")
            terminal.press_ctrl_c()
            terminal.wait_for("(stopped)")
            terminal.wait_for("> ")
        terminal.type("/exit\n")
        assert terminal.leaves_with() == 0


def test_ctrl_c_while_a_piped_chat_answers_ends_it(models):
    process = subprocess.Popen(
        [*COMMAND, "chat", models / "endless"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    process.stdin.write(b"Hello\n")
    process.stdin.flush()
    assert os.read(process.stdout.fileno(), 4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_answers_to_a_file_hold_no_prompts(models, tmp_path):
    own, theirs = pty.openpty()
    with open(tmp_path / "answers", "wb") as answers:
        process = subprocess.Popen(
            [*COMMAND, "chat", models / "hi"],
            stdin=theirs,
            stdout=answers,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        os.write(own, b"Hello\n/exit\n")
        assert process.wait(timeout=30) == 0
    os.close(theirs)
    os.close(own)
    assert (tmp_path / "answers").read_text() == "Hi!\n"
