"""Who may do what: tokens, scopes, hosts, and the pages of other sites."""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.errors import ConfigError
from dispatcher.web.auth import MOST_FILE, read_tokens
from tests.support.commands import run
from tests.support.processes import until
from tests.support.scrapes import Scrape
from tests.support.servers import RedisServer
from tests.support.serving import TOKENS, Serving

EVENT = {"category": "errors", "text": "disk full"}
OPEN = ("/openapi.json", "/page/page.js", "/favicon.ico")
"""What needs no token."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(TOKENS + "pier ingest secret-of-pier\nvoila ingest secret-of-voilà\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def guarded(shared_server: RedisServer, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(shared_server.url, tmp_path_factory.mktemp("guarded"), "--tokens", str(tokens)) as serving:
        yield serving


def status(serving: Serving, **headers: str) -> int:
    return serving.post("/v1/events", EVENT, **headers).status_code


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("Bearer secret-of-shop", 202),
        ("bearer  secret-of-shop", 202),
        (basic("anybody:secret-of-shop"), 202),
        (basic(":secret-of-shop"), 202),
        ("Bearer secret-of-eve", 403),
        ("Bearer secret-of-sho", 401),
        ("Bearer shop", 401),
        ("Bearer", 401),
        ("Basic %%%", 401),
        ("Bearer secret-of-voilà", 202),
        ("Bearer secret-of-voil", 401),
        (basic("any:secret-of-voilà"), 202),
        (basic("secret-of-shop"), 401),
        ("Digest secret-of-shop", 401),
    ],
)
def test_a_token_opens_what_its_scopes_name(guarded: Serving, authorization: str, expected: int) -> None:
    with guarded.client() as client:
        answer = client.post("/v1/events", json=EVENT, headers={b"Authorization": authorization.encode()})
    assert answer.status_code == expected
    assert ("www-authenticate" in answer.headers) == (expected == 401)
    assert "secret-of" not in answer.text


@pytest.mark.parametrize("other", ["eve", "shop", "nobody"])
def test_a_request_that_gives_two_secrets_gives_none(guarded: Serving, other: str) -> None:
    headers = [("Authorization", f"Bearer secret-of-{name}") for name in ("shop", other)]
    with guarded.client() as client:
        assert client.post("/v1/events", json=EVENT, headers=headers).status_code == 401


def test_events_are_counted_under_the_name_of_the_token(guarded: Serving) -> None:
    with guarded.client("secret-of-shop") as shop, guarded.client("secret-of-prom") as prom:
        before = Scrape.of(prom.get("/metrics").text).by("http_events_total", "source").get("shop", 0)
        assert shop.post("/v1/events", json=[EVENT, EVENT]).status_code == 202
        assert Scrape.of(prom.get("/metrics").text).by("http_events_total", "source")["shop"] == before + 2


def test_without_a_token_only_health_and_what_is_the_same_everywhere_are_told(guarded: Serving) -> None:
    assert status(guarded) == 401
    with guarded.client() as client:
        assert client.get("/-/healthy").json() == {"status": "alive"}
        assert [client.get(path, headers={"Host": "evil.example"}).status_code for path in OPEN] == [200] * len(OPEN)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("GET /-/healthy", 413), ("GET /-/ready", 413), ("GET /openapi.json", 413), ("POST /v1/hooks/nobody", 404)],
)
def test_who_has_no_token_is_answered_before_a_body_is_read(guarded: Serving, path: str, expected: int) -> None:
    with guarded.raw() as peer:
        peer.send(f"{path} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Length: 1000", body=b"1")
        code, text = peer.answer()
    assert (code, "content-type: application/problem+json" in text) == (expected, True)


def test_two_tokens_have_idempotency_keys_of_their_own(guarded: Serving) -> None:
    ids = [
        guarded.post("/v1/events", EVENT, Idempotency_Key="k", Authorization=f"Bearer secret-of-{name}").json()["ids"]
        for name in ("shop", "pier", "shop")
    ]
    assert ids[0] == ids[2] != ids[1]


def test_at_a_signal_the_tokens_are_read_again_and_a_file_with_a_fault_changes_nothing(
    guarded: Serving, tokens: Path
) -> None:
    guarded.await_line("serve.started")  # before that the signal ends it
    tokens.write_text(tokens.read_text(encoding="utf-8") + "shed ingest secret-of-shed\n", encoding="utf-8")
    guarded.signal(signal.SIGHUP)
    until(lambda: status(guarded, Authorization="Bearer secret-of-shed") == 202, "the tokens to be read again")
    tokens.write_text("shop nothing secret-of-shop\n", encoding="utf-8")
    guarded.signal(signal.SIGHUP)
    refused = guarded.await_line("tokens.refused")
    assert "line 1: a scope that is not known" in refused["faults"][0]
    assert status(guarded, Authorization="Bearer secret-of-shed") == 202, "the tokens that were read last stay"
    assert "secret-of" not in guarded.stderr()


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost:8910", 202), ("127.9.9.9", 202), ("[::1]:1", 202), ("evil.example", 403), ("localhost.evil", 403)],
)
def test_without_tokens_only_loopbacks_own_names_are_answered(serving: Serving, host: str, expected: int) -> None:
    assert status(serving, Host=host) == expected
    with serving.client() as client:
        assert client.get("/-/healthy", headers={"Host": host}).status_code == 200
        found = [client.get(path, headers={"Host": host}).status_code for path in OPEN]
    assert found == [200 if expected == 202 else 403] * len(OPEN)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, 202),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://localhost"}, 202),
        ({"Origin": "http://localhost:81"}, 403),
        ({"Origin": "null"}, 403),
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(serving: Serving, headers: dict[str, str], expected: int) -> None:
    assert status(serving, Host="localhost", **headers) == expected


def test_a_request_that_comes_from_two_sites_comes_from_another_one(serving: Serving) -> None:
    headers = [("Sec-Fetch-Site", site) for site in ("same-origin", "cross-site")]
    with serving.client() as client:
        assert client.post("/v1/events", json=EVENT, headers=headers).status_code == 403


def test_a_path_that_there_is_not_is_as_closed_as_others_to_a_foreign_host(serving: Serving) -> None:
    with serving.client() as client:
        assert client.get("/nowhere", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("target", "headers", "expected"),
    [
        ("GET http://localhost/v1/status", [], 200),
        ("GET HTTP://127.0.0.1:8910/v1/events?limit=1", ["Host: evil.example"], 200),
        ("GET http://localhost:8910", ["Host: localhost:8910"], 200),
        ("GET http://localhost/v1/events/n%2Fo", ["Host: localhost"], 404),
        ("GET http://evil.example/v1/events", ["Host: localhost"], 403),
        ("GET http:///v1/events", ["Host: localhost"], 403),
        ("POST http://localhost/v1/events/errors", ["Host: other", "Origin: http://localhost"], 202),
        ("POST http://localhost/v1/events/errors", ["Host: other", "Origin: http://other"], 403),
    ],
)
def test_of_a_target_that_is_a_whole_address_its_host_counts_and_not_the_header(
    serving: Serving, target: str, headers: list[str], expected: int
) -> None:
    with serving.raw() as raw:
        raw.send(f"{target} HTTP/1.1", *(headers or ["Host: x"]), "Content-Length: 1", "Connection: close", body=b"x")
        assert raw.answer()[0] == expected


def test_a_trusted_host_is_answered_without_tokens(redis_url: str, tmp_path: Path) -> None:
    with Serving(redis_url, tmp_path, DISPATCHER_SERVE_TRUSTED_HOSTS="Events.internal, other") as serving:
        assert status(serving, Host="events.internal:8910") == 202
        answer = serving.post("/v1/events", EVENT, Host="evil.example\\" + "x" * 200)
        assert answer.status_code == 403
        assert answer.json()["detail"].startswith("this host is not known: 'evil.example\\xx")
        assert len(answer.json()["detail"]) < 250
        with serving.raw() as raw:
            raw.send("GET /v1/events HTTP/1.1", "Host: evil\x9b31m", "Connection: close")
            code, text = raw.answer()
        assert (code, "\x9b" in text, r"\x9b31m" in text) == (403, False, True)


def test_beyond_loopback_it_does_not_start_without_tokens(redis_url: str) -> None:
    result = run("serve", "--host", "0.0.0.0", DISPATCHER_REDIS_URL=redis_url)  # noqa: S104 - it is refused
    assert result.code == 78
    assert "DISPATCHER_SERVE_TOKENS_FILE or --tokens" in result.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shop ingest", "line 1: 2 words, expected three: NAME SCOPES SECRET"),
        ("\nshop ingest,all hidden", "line 2: a scope that is not known, expected some of ingest, read, operate"),
        ("s/p ingest hidden", "line 1: a name of other characters"),
        ("hook ingest hidden", "line 1: the name hook, which stands for the hooks, expected a different one"),
        ("a ingest hidden\n" + "#" * MOST_FILE, f"is larger than {MOST_FILE} bytes"),
        ("a ingest hidden\na read hidden2", "line 2: the name or the secret of an earlier line"),
        ("a ingest hidden\nb read hidden", "line 2: the name or the secret of an earlier line"),
        ("# nobody\n", "names no token"),
    ],
)
def test_a_tokens_file_is_refused_with_the_line_and_without_its_secrets(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_tokens(path)
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)
