"""The page of a running run: what it shows, to whom, and that nothing can be sent to it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpisim.cli.watch_page import Server
from mpisim.mpi.monitor import Monitor
from mpisim.mpi.phases import phases

LIMIT = 60
"""Seconds until something counts as not happening."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "s.json"
    monitor = Monitor(
        path, "mpisim run '<img src=x onerror=alert(1)>'", phases.status, first=True, processes=1
    )
    server = Server(path, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    monitor.finish(0, "")


def ask(
    server: Server, path: str = "/", method: str = "GET", host: str | None = ""
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_the_page_shows_the_status(page: Server) -> None:
    code, headers, content = ask(page)
    assert code == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert b"innerHTML" not in content
    assert b"http://" not in content
    assert b"https://" not in content
    code, headers, content = ask(page, "/status", host=f"localhost:{page.server_port}")
    assert code == 200
    status = json.loads(content)
    assert status["condition"] == "running"
    assert status["command"] == "mpisim run '<img src=x onerror=alert(1)>'"
    assert ask(page, "/", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "host", [None, "evil.example", "evil.example:{port}", "127.0.0.1:1", "[::1]:{port}"]
)
@pytest.mark.parametrize("path", ["/", "/status", "/other"])
def test_other_names_are_refused(page: Server, host: str | None, path: str) -> None:
    given = None if host is None else host.format(port=page.server_port)
    assert ask(page, path, host=given)[0] == 403


@pytest.mark.parametrize(
    "path", ["/s.json", "/..", "/../s.json", "/status/", "/status?x", "/%2e%2e/", "*"]
)
def test_there_are_two_addresses(page: Server, path: str) -> None:
    code, _, content = ask(page, path)
    assert code == 404
    assert b"s.json" not in content


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_nothing_can_be_sent(page: Server, method: str) -> None:
    assert ask(page, "/", method)[0] == 501


def test_it_listens_on_this_machine_alone(page: Server) -> None:
    assert page.socket.getsockname()[0] == "127.0.0.1"
    with socket.socket() as other:  # a further address of the loopback range
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", page.server_port)) != 0


def test_a_damaged_file_is_shown_as_such(page: Server) -> None:
    page.path = page.path.with_name("none.json")
    status = json.loads(ask(page, "/status")[2])
    assert status["condition"] == "unreadable"
    assert "none.json: cannot be read" in status["error"]


def test_serve_ends_with_ctrl_c(launch_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{}")
    process = subprocess.Popen(
        [sys.executable, "-m", "mpisim", "watch", "s.json", "--serve", "0"],
        env=launch_environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ shows s\.json; Ctrl-C ends it\n", line)
    assert found
    taken = subprocess.run(
        [sys.executable, "-m", "mpisim", "watch", "s.json", "--serve", found[1]],
        env=launch_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert taken.returncode == 2
    assert f"--serve {found[1]}: Address already in use" in taken.stderr
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert out + error.strip() == ""
