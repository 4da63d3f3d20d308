"""The playground as a person uses it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser.conftest import paced
from tests.browser.visit import Visit
from tests.server.rig import Live
from tests.server.scripted import WEATHER
from tests.text import tiny

pytestmark = pytest.mark.browser


def test_a_first_conversation(visit: Visit, server: Live) -> None:
    server.runner.write("It is **raining** in `Rome`.\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    assert visit.page.locator("#server").inner_text() == f"at {server.url}/"
    assert visit.page.get_by_label("Model").input_value() == "tiny"
    visit.say("How is the weather?")
    visit.done()
    assert visit.answer.locator("strong").inner_text() == "raining"
    assert visit.answer.locator("pre code").inner_text() == "print(1)\n"
    assert visit.answer.locator("td").all_inner_texts() == ["1", "2"]
    assert "tokens/s" in visit.page.locator(".figures").inner_text()


def test_an_answer_is_seen_while_it_comes_and_can_be_stopped(visit: Visit, server: Live) -> None:
    server.runner.pause_s = 0.02
    server.runner.write("word " * 400)
    visit.say("Go on and on")
    visit.page.get_by_text("word word word word").wait_for()
    assert server.engine.core.has_unfinished
    visit.page.get_by_role("button", name="Stop").click()
    visit.page.get_by_text("Stopped.").wait_for()
    server.settle()  # the engine was told
    written = visit.answer.inner_text()
    assert 20 < len(written) < 1500
    assert "stopped" in visit.page.locator(".figures").inner_text()
    server.runner.pause_s = 0.0
    server.runner.write("Again.")
    visit.say("And now?")
    visit.done()
    assert visit.answer.inner_text() == "Again."


def test_another_answer_and_an_edited_question(visit: Visit, server: Live) -> None:
    server.runner.write("First.")
    visit.say("What?")
    visit.done()
    server.runner.write("Second.")
    visit.page.get_by_role("button", name="Another answer").click()
    visit.page.get_by_text("2 of 2").wait_for()
    visit.done()
    assert visit.answer.inner_text() == "Second."
    visit.page.get_by_role("button", name="Previous answer").click()
    assert visit.answer.inner_text() == "First."
    server.runner.write("Third.")
    visit.page.get_by_role("button", name="Edit this message").click()
    visit.page.get_by_label("Your message", exact=True).last.fill("Why?")
    visit.page.get_by_role("button", name="Send again").click()
    visit.done()
    assert visit.page.locator(".turn.user .body").all_inner_texts() == ["Why?"]
    assert visit.answer.inner_text() == "Third."


def test_settings_are_what_is_asked(visit: Visit, server: Live) -> None:
    asked: list[dict[str, Any]] = []
    visit.page.on("request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None)
    visit.set("System text", "Be brief.")
    visit.set("Temperature", "0.3")
    visit.set("Top p", "0.9")
    visit.set("Top k", "7")
    visit.set("Most tokens", "5")
    visit.set("Seed", "11")
    visit.set("Stop texts", "one\ntwo")
    visit.say("Hi")
    visit.done()
    [body] = asked
    assert body.pop("messages") == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    streamed = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
    sampled = {"temperature": 0.3, "top_p": 0.9, "top_k": 7, "max_tokens": 5, "seed": 11, "stop": ["one", "two"]}
    assert body == streamed | sampled
    assert "ended at the most tokens" in visit.page.locator(".figures").inner_text()


def test_several_answers_and_their_tokens(visit: Visit) -> None:
    visit.set("Answers", "3")
    visit.set("Most tokens", "12")
    visit.page.get_by_label("Token probabilities").check()
    visit.say("Tell me")
    visit.done()
    visit.page.get_by_text("1 of 3").wait_for()
    visit.page.get_by_role("button", name="Tokens", exact=True).click()
    tokens = visit.page.locator(".token")
    assert tokens.count() == 12
    tokens.nth(4).hover()
    tip = visit.page.locator(".tip")
    assert "%" in tip.locator("caption").inner_text()
    assert tip.locator("tr").count() >= 2
    before = tip.inner_text()
    visit.page.get_by_role("listbox").focus()
    visit.page.keyboard.press("Home")
    assert tip.inner_text() != before
    assert tokens.first.get_attribute("aria-selected") == "true"


def test_thoughts_are_folded(visit: Visit, server: Live) -> None:
    server.runner.write("<think>\nHm, a riddle.\n</think>\n\nForty two.")
    visit.say("What is it?")
    visit.done()
    thoughts = visit.page.locator("details.thoughts")
    assert visit.answer.inner_text().strip() == "Forty two."
    assert not thoughts.locator("div").is_visible()
    thoughts.locator("summary").click()
    assert "a riddle" in thoughts.locator("div").inner_text()


def test_a_tool_is_called_and_its_result_sent(visit: Visit, server: Live) -> None:
    call = {"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}
    server.runner.write(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
    visit.set("Tools", "not JSON")
    visit.say("Weather?")
    visit.page.locator("#note.problem").get_by_text("This is not JSON").wait_for()
    visit.set("Tools", json.dumps([WEATHER]))
    visit.say("Weather?")
    visit.done()
    card = visit.page.locator(".call")
    assert card.locator("code").inner_text() == "get_weather"
    assert json.loads(card.locator("pre").inner_text()) == call["arguments"]
    server.runner.write("Sunny.")
    visit.page.get_by_label("Result of get_weather").fill('{"sky": "clear"}')
    with visit.page.expect_request("**/chat/completions") as sent:
        visit.page.get_by_role("button", name="Send results").click()
    visit.done()
    roles = [message["role"] for message in sent.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert sent.value.post_data_json["messages"][2]["content"] == '{"sky": "clear"}'
    assert visit.answer.inner_text() == "Sunny."


@pytest.mark.parametrize(
    ("form", "text", "field"),
    [
        ("json_object", "", {"response_format": {"type": "json_object"}}),
        ("regex", "[ab]+", {"structured_outputs": {"regex": "[ab]+"}}),
        ("choice", "yes\nno", {"structured_outputs": {"choice": ["yes", "no"]}}),
        (
            "json_schema",
            '{"type": "integer"}',
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "integer"}},
                }
            },
        ),
    ],
)
def test_forms_of_the_answer(form: str, text: str, field: dict[str, Any], visit: Visit) -> None:
    visit.page.get_by_label("Form of the answer", exact=True).select_option(form)
    visit.set("Schema, expression, lines or grammar", text)
    visit.set("Most tokens", "8")
    with visit.page.expect_request("**/chat/completions") as sent:
        visit.say("Go")
    visit.done()
    assert field.items() <= sent.value.post_data_json.items()


def test_conversations_are_kept(visit: Visit, server: Live) -> None:
    for question in ("Who?", "Where?"):
        visit.page.get_by_role("button", name="New conversation").first.click()
        server.runner.write(f"About {question}")
        visit.say(question)
        visit.done()
    visit.page.reload()
    titles = visit.page.locator("#conversations .open")
    visit.page.get_by_text("Where?").wait_for()
    assert titles.all_inner_texts() == ["Where?", "Who?"]
    titles.last.click()
    assert visit.answer.inner_text() == "About Who?"
    visit.page.get_by_role("button", name="Delete Who?").click()
    assert titles.all_inner_texts() == ["Where?"]


def test_what_has_come_of_an_answer_outlives_the_page(visit: Visit, server: Live) -> None:
    server.runner.pause_s = 0.02
    server.runner.write("word " * 400)
    visit.say("Go on")
    visit.page.get_by_text("word word word word").wait_for()
    visit.page.reload()
    server.settle()  # nobody reads it any more
    visit.page.locator("#conversations .open").first.click()
    assert visit.answer.inner_text().startswith("word word")


def test_a_model_without_a_chat_template_goes_on_with_a_text(browser: Any) -> None:
    with paced(tokenizer=tiny.byte_level()) as server, Visit.of(browser, server.url) as visit:
        visit.page.get_by_text("it goes on with your text as it stands").wait_for()
        assert not visit.page.get_by_label("Tools", exact=True).is_visible()
        server.runner.write(" a fox.")
        visit.say("There was")
        visit.done()
        assert visit.answer.inner_text() == "a fox."
        server.runner.write("")
        visit.page.get_by_label("Token probabilities").check()
        visit.set("Most tokens", "5")
        with visit.page.expect_request("**/v1/completions") as sent:
            visit.say(" It")
        visit.done()
        assert sent.value.post_data_json["prompt"] == "There was a fox. It"
        visit.page.get_by_role("button", name="Tokens", exact=True).click()
        assert visit.page.locator(".token").count() == 5
        visit.page.get_by_role("button", name="Request").click()
        compile(visit.page.locator("#python").inner_text(), "shown", "exec")


def test_a_server_that_starts_is_waited_for(browser: Any, server: Live) -> None:
    starts = {"error": {"message": "the engine is starting (compile for 7 s)"}}
    with Visit.of(browser, server.url, "/dashboard", refusals=(503,)) as visit:
        for pattern, path, ready in (
            ("**/playground/about", "/", "#send:enabled"),
            ("**/dashboard/stream", "/dashboard", "#state:text('Live')"),
        ):
            visit.page.route(pattern, lambda route: route.fulfill(status=503, json=starts))
            visit.page.goto(server.url + path)
            visit.page.get_by_text("the engine is starting (compile for 7 s)").wait_for()
            visit.page.unroute(pattern)
            visit.page.locator(ready).wait_for()


def test_the_request_as_a_program(visit: Visit, server: Live) -> None:
    visit.set("Top k", "7")
    visit.page.get_by_label("Message", exact=True).fill("It's me")
    visit.page.get_by_role("button", name="Request").click()
    curl, python = (visit.page.locator(name).inner_text() for name in ("#curl", "#python"))
    assert curl.startswith(f"curl -N {server.url}/v1/chat/completions")
    assert r"It'\''s me" in curl
    assert 'extra_body={"top_k": 7}' in python
    compile(python, "shown", "exec")
    told: list[str] = []
    client = python.replace("print(", "told.append(").replace(', end="", flush=True', "")
    server.runner.write("It works.")
    exec(client, {"told": told})
    assert "".join(told) == "It works."


def test_pictures_are_offered_where_the_model_takes_them(visit: Visit) -> None:
    assert not visit.page.get_by_text("Attach").is_visible()
    told = visit.page.evaluate("fetch('playground/about').then(answer => answer.json())")
    visit.page.route("**/playground/about", lambda route: route.fulfill(json={**told, "inputs": ["text", "image"]}))
    visit.page.reload()
    visit.page.get_by_text("Attach").wait_for()
    picture = {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": b'<svg xmlns="http://www.w3.org/2000/svg"/>'}
    visit.page.locator("#file").set_input_files(picture)
    visit.page.locator("#files img").wait_for()
    seen: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        seen.append(route.request.post_data_json)
        route.fulfill(body="data: [DONE]\n\n", content_type="text/event-stream")

    visit.page.route("**/chat/completions", answer)
    visit.say("What is this?")
    visit.done()
    picture_part, text_part = seen[0]["messages"][0]["content"]
    assert picture_part["image_url"]["url"].startswith("data:image/svg+xml;base64,")
    assert text_part == {"type": "text", "text": "What is this?"}


def test_only_keys(visit: Visit, server: Live) -> None:
    keys, focus = visit.page.keyboard, "document.activeElement.id || document.activeElement.textContent"
    visit.page.locator("#message:focus").wait_for()
    visit.page.locator("#send:enabled").wait_for()
    server.runner.write("One.")
    keys.type("Question")
    keys.press("Shift+Enter")
    keys.type("of two lines")
    keys.press("Enter")
    visit.done()
    assert visit.page.locator(".turn.user .body").inner_text() == "Question\nof two lines"
    server.runner.write("Two.")
    keys.press("Alt+r")
    visit.page.get_by_text("2 of 2").wait_for()
    visit.done()
    keys.press("Alt+e")
    keys.press("Control+a")
    keys.type("Changed")
    server.runner.pause_s = 0.02
    server.runner.write("word " * 400)
    keys.press("Enter")
    visit.page.get_by_text("word word").wait_for()
    keys.press("Escape")
    visit.page.get_by_text("Stopped.").wait_for()
    keys.press("Alt+s")
    assert not visit.page.locator("#settings").is_visible()
    keys.press("Alt+n")
    assert visit.page.locator(".turn.user").count() == 0
    reached = set()
    for _ in range(12):
        keys.press("Tab")
        reached.add(visit.page.evaluate(focus))
    assert {"model", "show-request", "show-settings", "theme", "new"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility(scheme: str, visit: Visit, server: Live) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.get_by_label("Token probabilities").check()
    visit.set("Most tokens", "8")
    visit.say("Show me tokens")
    visit.done()
    visit.page.get_by_role("button", name="Tokens", exact=True).click()
    visit.page.get_by_label("Token probabilities").uncheck()
    server.runner.write("<think>Hm</think>\n# Title\n\n- a [link](https://example.org)\n\n```js\n1\n```")
    visit.set("Most tokens", "")
    visit.say("And this")
    visit.done()
    assert visit.faults() == []
    visit.page.get_by_role("button", name="Request").click()
    assert visit.faults() == []


def test_light_and_dark(visit: Visit) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(ground)
    visit.page.get_by_role("button", name="Light or dark").click()
    dark = visit.page.evaluate(ground)
    assert light != dark
    visit.page.reload()
    assert visit.page.evaluate(ground) == dark


def test_on_a_phone(visit: Visit, server: Live) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 640})
    visit.page.reload()
    assert not visit.page.locator("#list").is_visible()
    server.runner.write("A" * 300 + "\n\n```\n" + "b" * 300 + "\n```")
    visit.say("On the way")
    visit.done()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    visit.page.get_by_role("button", name="Settings").click()
    visit.set("Temperature", "0.5")
    visit.page.get_by_role("button", name="Settings").click()
    visit.page.get_by_role("button", name="Conversations").click()
    visit.page.locator("#conversations .open").first.click()
