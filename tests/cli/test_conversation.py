"""What stays of a conversation, however a turn ends."""

from types import SimpleNamespace

import pytest

from tinyinfer.cli.conversation import Conversation
from tinyinfer.errors import ContextOverflow
from tinyinfer.sampling import SamplingParams


class Script:
    """A session that answers with given pieces, or raises where an exception stands among them."""

    def __init__(self, *answers):
        self.answers, self.heard, self.resets = list(answers), [], 0

    def chat_stream(self, messages, params, graphemes):
        self.heard.append([dict(message) for message in messages])
        for piece in self.answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            text, reasoning = piece if isinstance(piece, tuple) else (piece, "")
            yield SimpleNamespace(text=text, reasoning=reasoning, completion="done")

    def reset(self):
        self.resets += 1


def conversation(*answers, system=None):
    return Conversation(Script(*answers), SamplingParams(), system)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def test_turns_follow_each_other():
    chat, shown = conversation(["He", "llo", ""], ["Bye"], system="Be short"), []
    assert chat.say("Hi", shown.append) == "done"
    chat.say("Go", shown.append)
    assert [piece.text for piece in shown] == ["He", "llo", "", "Bye"]
    system = {"role": "system", "content": "Be short"}
    assert chat.session.heard == [[system, user("Hi")], [system, user("Hi"), assistant("Hello"), user("Go")]]


def test_an_interrupted_answer_stays_as_far_as_it_came():
    chat = conversation(["Once ", "upon", KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        chat.say("Tell", lambda text: None)
    assert chat.turns == [user("Tell"), assistant("Once upon")]


def test_an_interruption_while_showing_keeps_the_piece():
    def show(text):
        raise KeyboardInterrupt

    chat = conversation(["Once"])
    with pytest.raises(KeyboardInterrupt):
        chat.say("Tell", show)
    assert chat.turns == [user("Tell"), assistant("Once")]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ContextOverflow("40 tokens, but the context holds 32")])
def test_a_turn_without_an_answer_is_taken_back(failure):
    chat = conversation(["Hello"], [failure], ["Again"])
    chat.say("Hi", lambda text: None)
    with pytest.raises(type(failure)):
        chat.say("Long", lambda text: None)
    assert chat.turns == [user("Hi"), assistant("Hello")]
    chat.say("Short", lambda text: None)
    assert chat.turns == [user("Hi"), assistant("Hello"), user("Short"), assistant("Again")]


def test_an_empty_answer_is_an_answer():
    chat = conversation([""])
    chat.say("Hi", lambda text: None)
    assert chat.turns == [user("Hi"), assistant("")]


def test_reset_forgets_the_turns_and_keeps_the_system_message():
    chat = conversation(["Hello"], ["New"], system="S")
    chat.say("Hi", lambda text: None)
    chat.reset()
    assert chat.session.resets == 1
    assert chat.messages == [{"role": "system", "content": "S"}]


def test_reasoning_stays_beside_the_answer():
    chat = conversation([("", "So"), ("", " be it"), ("Yes", "")], [("", "Hm"), KeyboardInterrupt()])
    chat.say("Hi", lambda piece: None)
    with pytest.raises(KeyboardInterrupt):
        chat.say("Go", lambda piece: None)
    assert chat.turns[1] == assistant("Yes") | {"reasoning_content": "So be it"}
    assert chat.turns[3] == assistant("") | {"reasoning_content": "Hm"}
