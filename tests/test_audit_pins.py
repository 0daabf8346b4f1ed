"""`make audit`: what OSV knows of the pins is reported, and so is that it was not asked."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import audit_pins
import pytest


@contextmanager
def osv(answer):
    """A server on this machine that answers as OSV does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps(answer(asked["queries"])).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_every_pin_is_asked_for_and_vulnerable_ones_are_named(capsys):
    def answer(queries):
        bad = {"vulns": [{"id": "GHSA-1"}, {"id": "PYSEC-2"}]}
        return {"results": [bad if q["package"]["name"] == "numpy" else {} for q in queries]}

    with osv(answer) as server:
        assert audit_pins.main(server) == 1
    said = capsys.readouterr().out
    assert "GHSA-1, PYSEC-2" in said and "1 with known vulnerabilities" in said
    pins = audit_pins.read_pins()
    assert f"{len(pins)} pins checked" in said and "torch" in pins


def test_pins_without_vulnerabilities_pass():
    with osv(lambda queries: {"results": [{} for _ in queries]}) as server:
        assert audit_pins.main(server) == 0


@pytest.mark.parametrize("answer", [lambda queries: [], lambda queries: {"results": []}, None])
def test_unanswered_question_is_said_clearly(answer, capsys):
    if answer is None:
        assert audit_pins.main("http://127.0.0.1:9") == 0
    else:
        with osv(answer) as server:
            assert audit_pins.main(server) == 0
    assert capsys.readouterr().out.startswith("NOT CHECKED")
