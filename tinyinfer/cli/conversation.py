"""What was said so far in a chat, and how a turn adds to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..sampling import SamplingParams

Message = dict[str, str]


class Conversation:
    """The messages of one chat, and the session whose cache holds them.

    However a turn ends, the messages stay a conversation that the next turn can go on from.
    """

    def __init__(self, session: Any, params: SamplingParams, system: str | None = None, graphemes: bool = False):
        """`session` is what `LLM.session()` gives; `params` and `graphemes` hold for every turn."""
        self.session, self.params, self.system, self.graphemes = session, params, system, graphemes
        self.turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """What the template is given: the system message where there is one, then the turns."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.turns

    def say(self, text: str, show: Callable[[Any], None]) -> Any:
        """Add a turn of the user and the answer to it, each piece of which is shown; gives the completion.

        An answer that is interrupted stays as far as it was shown. One that never began takes the user's turn with it:
        many templates refuse two turns of the user in a row.
        """
        self.turns.append({"role": "user", "content": text})
        answer: Message | None = None
        try:
            for piece in self.session.chat_stream(self.messages, self.params, graphemes=self.graphemes):
                answer = answer or {"role": "assistant", "content": ""}
                answer["content"] += piece.text
                if piece.reasoning:
                    answer["reasoning_content"] = answer.get("reasoning_content", "") + piece.reasoning
                show(piece)
            return piece.completion
        finally:
            if answer is None:
                self.turns.pop()
            else:
                self.turns.append(answer)

    def reset(self) -> None:
        """Forget every turn; the system message stays."""
        self.turns.clear()
        self.session.reset()
