"""The chat page: what it may load, and how it works in a real browser, by keyboard alone.

The browser is Debian's or any other chromium on the path, driven by playwright; without one those tests are skipped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.served import HELLO, Served, chain_llm, served, wait_for
from tests.server.test_models import BYE, Shelf, serving
from tests.test_tools import THINKS, saying
from tinyinfer.server import Settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_nothing_is_loaded_from_elsewhere(server: Served):
    found = server.get("/")
    policy = found.headers["content-security-policy"]
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2
    assert not re.search(r"(src|href)=.?(http|//)|@import|\son\w+=|style=", found.text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
    if CHROMIUM is None:
        pytest.skip("the page's tests need chromium")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page on the server of the test; nothing may go wrong in it, and it may ask nobody else."""
    context = browser.new_context(locale="en", viewport={"width": 900, "height": 700})
    page, faults, asked = context.new_page(), [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.on("request", lambda sent: asked.append(sent.url))
    page.set_default_timeout(20_000)
    page.faults = faults
    yield page
    context.close()
    assert faults == []
    assert all(url.startswith("http://127.0.0.1:") for url in asked if not url.startswith("data:"))


def turns(page: Any) -> list[str]:
    return page.locator(".said").all_text_contents()


def send(page: Any, text: str) -> None:
    """As a person does who has a keyboard only."""
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def done(page: Any) -> None:
    page.locator("#send").wait_for(state="visible")


def test_asking_retrying_and_editing_by_keyboard(server: Served, page: Any):
    page.goto(server.url)
    page.get_by_text("chain, 512 tokens of context").wait_for()
    assert page.title() == "chain: tinyinfer"
    send(page, "One")
    done(page)
    assert turns(page) == ["One", HELLO]
    figures = page.locator(".assistant .foot p").inner_text()
    assert re.fullmatch(
        r"first token after [\d.]+ s · [\d.]+ tokens a second · 14 tokens · \d+ of \d+ prompt tokens cached", figures
    )
    assert page.get_by_role("status").inner_text() == f"The answer is done: {HELLO}"
    send(page, "Two")
    done(page)
    assert turns(page) == ["One", HELLO, "Two", HELLO]

    page.get_by_role("button", name="Ask for another answer").first.focus()
    page.keyboard.press("Enter")
    done(page)
    assert turns(page) == ["One", HELLO]

    page.get_by_role("button", name="Edit this message and ask again").focus()
    page.keyboard.press("Enter")
    assert turns(page) == []
    page.keyboard.press("End")
    send(page, " more")
    done(page)
    assert turns(page) == ["One more", HELLO]
    page.get_by_role("button", name="New chat").click()
    assert turns(page) == []
    assert page.locator("#prompt").evaluate("element => element === document.activeElement")


def test_markup_is_text_and_lines_stay(server: Served, page: Any):
    page.goto(server.url)
    page.keyboard.type("<img src=x onerror=alert(1)>")
    page.keyboard.press("Shift+Enter")
    send(page, "second line")
    done(page)
    assert turns(page) == ["<img src=x onerror=alert(1)>\nsecond line", HELLO]
    assert page.locator("main img").count() == 0


def test_reasoning_is_shown_apart(page: Any):
    with served(saying("<think>", "Hm, ", "so.", "</think>", "Yes", template=THINKS)) as server:
        page.goto(server.url)
        send(page, "Well?")
        done(page)
        assert turns(page) == ["Well?", "Hm, so.", "Yes"]
        assert page.get_by_text("Hm, so.", exact=True).is_hidden()
        page.get_by_text("Reasoning").click()
        assert page.get_by_text("Hm, so.", exact=True).is_visible()


def test_stopping(page: Any):
    with served(chain_llm(context=60_000, chain={ord("\n"): ord("a"), ord("a"): ord("b"), ord("b"): ord("a")})) as long:
        page.goto(long.url)
        send(page, "Go on")
        wait_for(lambda: len(turns(page)[1]) > 20)
        page.keyboard.press("Escape")
        done(page)
        wait_for(lambda: long.at_rest)
        assert page.locator(".assistant .foot p").inner_text().endswith("stopped")
        assert page.get_by_role("status").inner_text() == "Stopped."
        page.get_by_role("button", name="Ask for another answer").click()
        wait_for(lambda: long.engine.load.running)
        page.get_by_role("button", name="Stop", exact=True).click()
        done(page)
        wait_for(lambda: long.at_rest)


def test_choosing_a_model(page: Any):
    with serving(Shelf(context=512)) as server:
        page.goto(server.url)
        page.get_by_text("512 tokens of context").wait_for()
        assert page.title() == "first: tinyinfer"
        choice = page.get_by_label("Model", exact=True)
        assert choice.locator("option").all_text_contents() == ["first", "second", "third"]
        choice.focus()
        page.keyboard.press("ArrowDown")
        page.get_by_text("to be loaded by the first message").wait_for()
        page.get_by_label("Message", exact=True).focus()
        send(page, "One")
        done(page)
        assert turns(page) == ["One", BYE]
        page.get_by_text("512 tokens of context").wait_for()  # it is loaded now, and still chosen
        assert page.title() == "second: tinyinfer"
        choice.select_option("first")
        send(page, "Two")
        done(page)
        assert turns(page) == ["One", BYE, "Two", HELLO]


def test_settings_and_their_errors(server: Served, page: Any):
    page.goto(server.url)
    page.get_by_text("Settings").click()
    page.get_by_label("Most tokens").fill("2")
    page.get_by_label("System message").fill("Be brief")
    page.get_by_label("Message", exact=True).focus()
    send(page, "One")
    done(page)
    assert turns(page) == ["One", "Hi"]
    assert page.locator(".assistant .foot p").inner_text().endswith("cut at the limit of tokens")
    page.get_by_label("Temperature").fill("warm")
    page.get_by_label("Message", exact=True).focus()
    send(page, "Two")
    done(page)
    assert "temperature should be" in page.get_by_role("alert").inner_text()
    assert [fault for fault in page.faults if "400" not in fault] == []
    page.faults.clear()  # the browser's own note of the status


def test_with_a_key_the_browser_asks_for_it(browser: Any):
    with served(settings=Settings(api_key="secret")) as server:
        context = browser.new_context(http_credentials={"username": "me", "password": "secret"}, locale="en")
        page = context.new_page()
        page.goto(server.url)
        page.get_by_text("chain, 512 tokens of context").wait_for()
        send(page, "One")
        done(page)
        assert turns(page) == ["One", HELLO]
        context.close()


def test_every_control_has_a_name_and_text_can_be_read(server: Served, page: Any):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(server.url)
        page.get_by_text("chain, 512 tokens of context").wait_for()
        send(page, "One")
        done(page)
        page.get_by_text("Settings").click()
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, textarea")].filter(control =>
                !(control.getAttribute("aria-label") || control.textContent || control.labels?.length)).length"""
        )
        assert unnamed == 0
        assert min(page.evaluate(CONTRASTS)) >= 4.5  # WCAG 2.2, 1.4.3


# of every visible text: the contrast of its colour with what is painted below it
CONTRASTS = """() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(part => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("h1, h2, p, span, label, summary, button, textarea")]
    .filter(element => element.checkVisibility() && (element.textContent.trim() || element.value))
    .map(element => {
      const pair = [light(getComputedStyle(element).color), light(below(element))].sort((a, b) => b - a);
      return (pair[0] + 0.05) / (pair[1] + 0.05);
    });
}"""
