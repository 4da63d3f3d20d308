"""The tokenizer's endpoints agree with the tokenizer."""

from __future__ import annotations

from tests.fronts import MAX_LEN, TEMPLATE, TOKENIZER
from tests.server.rig import Live

TEXT = "Once upon a time"


def test_text_to_ids_and_back(server: Live) -> None:
    answer = server.post("/tokenize", prompt=TEXT, return_token_strs=True).json()
    ids = TOKENIZER.encode(TEXT)
    assert answer == {
        "count": len(ids),
        "max_model_len": MAX_LEN,
        "tokens": ids,
        "token_strs": [TOKENIZER.backend.id_to_token(token_id) for token_id in ids],
    }
    bare = server.post("/tokenize", model="tiny", prompt=TEXT, add_special_tokens=False).json()
    assert bare["tokens"] == ids[1:]
    assert server.post("/detokenize", tokens=ids).json() == {"prompt": f"<s>{TEXT}"}


def test_messages_are_tokenised_as_a_chat_request_would(server: Live) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tokens = server.post("/tokenize", messages=messages).json()["tokens"]
    chat = server.post("/v1/chat/completions", messages=messages, max_tokens=1, return_token_ids=True).json()
    assert tokens == chat["prompt_token_ids"]
    bare = server.post("/tokenize", messages=messages, add_generation_prompt=False, add_special_tokens=True).json()
    assert TOKENIZER.decode(bare["tokens"]) == "<s><user>Hi"


def test_wrong_requests(server: Live) -> None:
    for path, body, param in [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"prompt": "a", "tools": [{"type": "function", "function": {"name": "b"}}]}, "tools"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ]:
        response = server.post(path, **body)
        assert response.status_code == 400, (path, body, response.text)
        assert response.json()["error"]["param"] == param
    assert server.post("/tokenize", model="other", prompt="a").status_code == 404


def test_tokenizer_info(server: Live) -> None:
    info = server.http.get("/tokenizer_info").json()
    assert info["chat_template"] == TEMPLATE
    assert (info["bos_token"], info["eos_token"], info["add_bos_token"]) == ("<s>", "</s>", True)
    assert info["added_tokens_decoder"][str(TOKENIZER.bos_token_id)] == {"content": "<s>", "special": True}
