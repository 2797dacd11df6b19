"""Answers that a Hub does not give: no JSON, no end, the token in them."""

import itertools
import re
import socket
import threading
from contextlib import suppress

import pytest
from support.hub_server import TOKEN, Fault
from unit.downstream.publish.test_hub import STEP_6, push

from megabert.downstream.publish import hub
from megabert.downstream.publish.hub import open_hub, push_folder
from megabert.foundation.errors import ConfigError, DataError

REPO = STEP_6.repo


@pytest.mark.parametrize("answer", [b"<html>Log in</html>", b"", b"[1, 2]", b"null", b"{}", b'"x"', b'{"name": null}'])
@pytest.mark.parametrize("place", ["whoami", "/api/repos/create", "/refs", "/validate-yaml", "/preupload/", "/commit/"])
def test_an_answer_that_is_not_a_hubs_is_one_sentence(place, answer, server, folder):
    server.faults = [Fault(place, answer=answer, times=10_000)]
    is_fine = place == "/validate-yaml" and answer in (b"{}", b'{"name": null}')  # neither errors nor warnings
    try:
        push(folder)
    except DataError as error:
        assert re.match(rf"{server.url}: is no Hub, its answer .*Check HF_ENDPOINT\.$", str(error))  # noqa: PT017
    else:
        assert is_fine


def test_a_server_without_a_check_of_cards_is_not_told_as_a_matter_of_tokens(server, folder):
    server.faults = [Fault("/validate-yaml", status=404, times=10_000)]
    with pytest.raises(ConfigError, match=r"the push was refused \(404.*no check of cards") as refused:
        push(folder)
    assert "token" not in str(refused.value)


@pytest.mark.parametrize("place", ["whoami", "/api/repos/create", "/validate-yaml", "/commit/"])
def test_a_token_that_the_server_repeats_is_in_no_message(place, server, folder, caplog, recwarn):
    body = b'{"errors": [{"message": "%s"}], "warnings": [{"message": "%s"}]}' % ((TOKEN.encode(),) * 2)
    said = [Fault(place, status=400, says=f"you are {TOKEN}", times=9), Fault(place, status=400, answer=body, times=9)]
    for fault in said:
        server.faults = [fault]
        with pytest.raises((ConfigError, DataError)) as refused:
            push(folder)
        assert TOKEN not in str(refused.value)
    assert not any(TOKEN in text for text in [*caplog.messages, *(str(warning.message) for warning in recwarn)])


@pytest.mark.parametrize("token", ["hf_caf\u00e9", "hf  xy", "hf_\u200b"])
def test_a_token_that_no_header_takes_is_named_as_such(token, server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError, match="your token has a character that no token has") as refused:
        open_hub(REPO)
    assert token not in str(refused.value)
    assert not server.requests


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "nothing": [],
    "a head by drops": itertools.repeat(b"X"),
    "a body by drops": itertools.chain([HEAD + b"Content-Length: 100000\r\n\r\n"], itertools.repeat(b" ")),
    "a body without end": itertools.chain([HEAD + b"\r\n"], itertools.repeat(b" " * 65536)),
}
WORDS = {"nothing": "timed out", "a body without end": "the answer is larger than 1 MiB"}


@pytest.mark.parametrize("answer", ENDLESS)
def test_an_answer_without_end_is_given_up(answer, server, monkeypatch):
    for name, value in {"SILENCE_S": 1.0, "CALL_S": 2, "MOST_ANSWER_BYTES": 1 << 20}.items():
        monkeypatch.setattr(hub, name, value)
    pause = 0.0 if "without end" in answer else 0.05

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            for part in ENDLESS[answer]:
                connection.sendall(part)
                released.wait(pause)
            released.wait()

    released = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(DataError, match=rf"cannot be reached \({WORDS.get(answer, 'no whole answer within 2 s')}"):
            open_hub(REPO)
        released.set()


def test_all_calls_together_have_a_limit(server, folder, monkeypatch):
    api = open_hub(REPO)
    monkeypatch.setattr(hub, "START_S", 0)
    monkeypatch.setattr(hub, "LEAST_BYTES_PER_S", 10**12)
    with pytest.raises(DataError, match=r"the push broke off \(all calls together took too long"):
        push_folder(folder, api, STEP_6, message="Step 6")
