"""What texts cost in tokens: languages, emoji, digits, code, chat templates, and a space in front."""

from __future__ import annotations

import unicodedata

from ...checkpoint.places import find_model, installed
from ...checkpoint.source import open_checkpoint
from ...errors import TinyinferError
from ...text.chat import ChatTemplate
from ...text.tokenizer import Tokenizer
from .finding import Drawing, Finding, Table
from .setting import Setting

# one sentence said in many languages, so that tokens for the same meaning can be compared
TEXTS = {
    "English": "The water in the river is cold today, and we will wait until tomorrow to swim.",
    "German": "Das Wasser im Fluss ist heute kalt, und wir werden bis morgen warten, um zu schwimmen.",
    "Spanish": "El agua del río está fría hoy, y esperaremos hasta mañana para nadar.",
    "Turkish": "Nehirdeki su bugün soğuk ve yüzmek için yarına kadar bekleyeceğiz.",
    "Russian": "Вода в реке сегодня холодная, и мы подождём до завтра, чтобы поплавать.",
    "Greek": "Το νερό στο ποτάμι είναι κρύο σήμερα και θα περιμένουμε μέχρι αύριο για να κολυμπήσουμε.",
    "Arabic": "الماء في النهر بارد اليوم، وسوف ننتظر حتى الغد لنسبح.",
    "Hebrew": "המים בנהר קרים היום, ואנחנו נחכה עד מחר כדי לשחות.",
    "Hindi": "नदी का पानी आज ठंडा है, और हम तैरने के लिए कल तक इंतज़ार करेंगे।",
    "Thai": "น้ำในแม่น้ำวันนี้เย็น และเราจะรอจนถึงพรุ่งนี้เพื่อว่ายน้ำ",
    "Chinese": "今天河里的水很冷，我们要等到明天再去游泳。",
    "Japanese": "今日は川の水が冷たいので、泳ぐのは明日まで待ちます。",
    "Korean": "오늘은 강물이 차가워서 내일까지 기다렸다가 수영하겠습니다.",
}
SCRIPTS = ("Russian", "Greek", "Arabic", "Hebrew", "Hindi", "Thai", "Chinese", "Japanese", "Korean")
OTHERS = {
    "emoji": "🌧️🏊‍♀️👩‍👩‍👧‍👦🇺🇦👍🏽🔥",
    "digits": "3141592653589793238462643383279502884197",
    "code": "def total(prices):\n    return sum(price for price in prices if price > 0)\n",
}
MESSAGES = [{"role": "user", "content": "Hello"}]
WORDS = ("Paris", "water", "2024", "naïve")


def measure(setting: Setting) -> Finding:
    """Count tokens by every tokenizer at hand."""
    tokenizers = _at_hand(setting)
    rows = [row for name, (tokenizer, _) in tokenizers.items() for row in _rows(name, tokenizer)]
    columns = ("tokenizer", "text", "characters", "graphemes", "tokens", "tokens a character", "tokens a grapheme",
               "times English", "course")  # fmt: skip
    tables = [
        Table("the same sentence in many languages, and other texts", columns, rows, 2),
        Table("what a chat template adds to one short message", ("tokenizer", "the text alone", "as a chat", "added"), [
            _template(name, *found) for name, found in tokenizers.items()
        ]),
        Table("a word, and the same after a space", ("tokenizer", "word", "alone", "after a space"), [
            (name, word, _pieces(tokenizer, word), _pieces(tokenizer, f" {word}"))
            for name, (tokenizer, _) in tokenizers.items() for word in WORDS
        ], 4),
    ]  # fmt: skip
    if setting.text is not None:
        given = [(name, *_counts(tokenizer, setting.text)) for name, (tokenizer, _) in tokenizers.items()]
        tables.append(Table("the text given", ("tokenizer", *columns[2:7]), given))
    lines = {
        name: [(text, times) for who, text, *_, times, _ in rows if who == name and text in TEXTS]
        for name in tokenizers
    }
    title = "The same sentence costs more in other scripts"
    return Finding(
        tables, _says(setting.model, rows), [Drawing(title, "language", "tokens, times English", lines, bars=True)]
    )


def _says(model: str, rows: list[tuple]) -> str:
    times = {text: times for name, text, *_, times, _ in rows if name == model and text in SCRIPTS}
    twice = sum(ratio >= 2 for ratio in times.values())
    emoji = next(row[6] for row in rows if row[:2] == (model, "emoji"))
    dear, cheap = (pick(times, key=times.__getitem__) for pick in (max, min))
    return (
        "A tokenizer is thrifty with what it was trained on, and a text in a script that it saw little of fills "
        f"contexts sooner: beside English the same sentence costs this model {times[cheap]:.2g} times as many tokens "
        f"in {cheap} and {times[dear]:.2g} times in {dear}, and {twice} of {len(times)} other scripts cost the "
        "course's 2 to 4 times or more. One visible character of an emoji or of an Indic script is several "
        f"characters, and an emoji is {emoji:.2g} tokens here. A word after a space is often another token than the "
        "word alone, so a prompt should not end in a space."
    )


def _at_hand(setting: Setting) -> dict[str, tuple[Tokenizer, ChatTemplate | None]]:
    """The tokenizer of the model asked for, then those of all others that are installed, each once."""
    paths = {setting.model: find_model(setting.model)}
    paths |= {place.name: place.path for place in installed() if place.path and place.path not in paths.values()}
    found, seen = {}, []
    for name, path in paths.items():
        try:
            checkpoint = open_checkpoint(path)
            tokenizer = Tokenizer.from_checkpoint(checkpoint)
        except TinyinferError as error:
            if name == setting.model:
                raise
            setting.say(f"{name}: {error}")
            continue
        if tokenizer.ids_of_tokens in seen:
            continue
        seen.append(tokenizer.ids_of_tokens)
        source = checkpoint.chat_template
        found[name] = tokenizer, None if source is None else ChatTemplate(source, tokenizer.special_tokens)
    return found


def _rows(name: str, tokenizer: Tokenizer) -> list[tuple]:
    english = len(tokenizer.encode(TEXTS["English"], add_special_tokens=False))
    rows = []
    for text, written in (TEXTS | OTHERS).items():
        counts = _counts(tokenizer, written)
        times = counts[2] / english if text in TEXTS else None
        rows.append((name, text, *counts, times, "2 to 4 times" if text in SCRIPTS else None))
    return rows


def _counts(tokenizer: Tokenizer, text: str) -> tuple[int, int, int, float, float]:
    """Characters, graphemes, tokens, and tokens for each."""
    tokens, graphemes = len(tokenizer.encode(text, add_special_tokens=False)), count_graphemes(text)
    return len(text), graphemes, tokens, tokens / max(len(text), 1), tokens / max(graphemes, 1)


def _template(name: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> tuple:
    plain = len(tokenizer.encode(MESSAGES[0]["content"], add_special_tokens=False))
    if template is None:
        return name, plain, None, None
    chat = len(tokenizer.encode(template.render(MESSAGES), add_special_tokens=False))
    return name, plain, chat, chat - plain


def _pieces(tokenizer: Tokenizer, text: str) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return " ".join(f"{id} {tokenizer.decode([id])!r}" for id in ids)


def count_graphemes(text: str) -> int:
    """Characters as people see them: marks, joiners and skin tones belong to what stands before them, flags are two.

    The rules of Unicode's annex 29 that matter here, without those of Hangul letters and of Indic conjuncts.
    """
    count, joined, flags = 0, False, 0
    for character in text:
        flag = "\U0001f1e6" <= character <= "\U0001f1ff"
        flags = flags + 1 if flag else 0
        tone = "\U0001f3fb" <= character <= "\U0001f3ff"
        extends = unicodedata.category(character) in ("Mn", "Mc", "Me") or character == "\u200d" or tone
        if not (extends or joined or (flag and flags % 2 == 0)):
            count += 1
        joined = character == "\u200d"
    return count
