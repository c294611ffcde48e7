"""The page of ``mpisim watch --serve``: a status file, for browsers on this machine.

It listens on 127.0.0.1 alone, and has two addresses: ``/``, the page, and ``/status``, what it
shows. Requests with another name in ``Host`` are refused: a page of some other site whose name
leads to 127.0.0.1 could read the status otherwise (DNS rebinding). The page may load nothing and
send nothing elsewhere (Content-Security-Policy), and puts texts in as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UsageError
from ..base.status_file import condition, read_status, this_host
from ..base.version import __version__

__all__ = ["Server", "serve"]

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
"""Names in ``Host`` by which the page may be asked for, each with the port."""

TIMEOUT = 10
"""Seconds a browser has for its request."""


def serve(path: Path, port: int) -> int:
    """Serve the page of a status file until Ctrl-C.

    Parameters
    ----------
    path : Path
    port : int
        0: any that is free.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    UsageError
        If the port is taken.
    """
    try:
        server = Server(path, port)
    except OSError as error:
        raise UsageError(
            f"--serve {port}: {error.strerror or error}; name another port, or 0 for any"
        ) from error
    with server:
        print(f"http://{ADDRESS}:{server.server_port}/ shows {path}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0


class Server(ThreadingHTTPServer):
    """Serves one status file on 127.0.0.1.

    Parameters
    ----------
    path : Path
    port : int
        0: any that is free.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: Path, port: int) -> None:
        self.path = path
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that leave before they have read all."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = TIMEOUT
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "mpisim", ""

    def do_GET(self) -> None:
        """Answer with the page or the status, to who asked by an own name."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer as GET does, without the content."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        port = self.server.server_port
        allowed = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        if self.headers.get_all("Host", []) not in [[name] for name in allowed]:
            self._send(403, "text/plain", b"only for pages of this machine\n", body)
        elif self.path == "/":
            self._send(200, "text/html", _page().encode(), body)
        elif self.path == "/status":
            text = json.dumps(_status(self.server.path)).encode()
            self._send(200, "application/json", text, body)
        else:
            self._send(404, "text/plain", b"there are / and /status\n", body)

    def _send(self, code: int, kind: str, content: bytes, body: bool) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _policy())
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the page asks every second."""


def _status(path: Path) -> dict[str, Any]:
    """Status file → what the page shows; an error is shown in its place."""
    try:
        status = read_status(path)
    except InputError as error:
        return {"condition": "unreadable", "error": str(error)}
    return {**status, "condition": condition(status, time.time(), this_host())}


@cache
def _policy() -> str:
    """Allow the page's own style and script, by their hashes, and asking for the status."""
    style, script = (
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (STYLE, SCRIPT)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _page() -> str:
    return PAGE.replace("@STYLE", STYLE).replace("@SCRIPT", SCRIPT).replace("@VERSION", __version__)


PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>mpisim watch</title>
<style>@STYLE</style>
</head>
<body>
<main>
<header><h1>mpisim</h1><span id="state" role="status"></span></header>
<p id="command"></p>
<section id="work">
<div class="line"><span id="phase"></span><span id="left"></span></div>
<progress id="bar" max="1" aria-labelledby="phase"></progress>
</section>
<p id="error" role="alert" hidden></p>
<dl id="figures"></dl>
<figure id="ranks" hidden>
<figcaption>simulated time over the last minutes: slowest and fastest rank</figcaption>
<svg viewBox="0 0 600 120" preserveAspectRatio="none" aria-hidden="true">
<polygon id="band"></polygon><polyline id="fast"></polyline><polyline id="slow"></polyline>
</svg>
<div class="line"><span id="from"></span><span id="to"></span></div>
</figure>
<footer><span id="updated"></span><span>mpisim @VERSION</span></footer>
</main>
<noscript>This page needs JavaScript; mpisim watch FILE shows the same on a terminal.</noscript>
<script>@SCRIPT</script>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --dim: #5b6577; --paper: #f4f5f7; --card: #fff;
  --rule: #dde1e8; --blue: #2563c9; --green: #1a7f4b; --red: #b3261e; --amber: #9a5b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #9aa4b5; --paper: #12151b;
  --card: #1b2029; --rule: #2f3643; --blue: #6ea2f5; --green: #5cc48f; --red: #f2857c;
  --amber: #e0a44c; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 2rem 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1.5rem 1.75rem; background: var(--card);
  border: 1px solid var(--rule); border-radius: 12px; }
header, footer, .line { display: flex; justify-content: space-between; gap: 1rem;
  align-items: baseline; flex-wrap: wrap; }
h1 { margin: 0; font-size: 1.15rem; }
#state { font-weight: 600; padding: .1rem .7rem; border-radius: 99px;
  border: 1px solid currentColor; }
.running { color: var(--blue); } .ended { color: var(--green); }
.failed, .killed, .unreadable { color: var(--red); } .silent { color: var(--amber); }
#command { margin: .75rem 0 1.25rem; font-family: ui-monospace, monospace; font-size: .875rem;
  color: var(--dim); overflow-wrap: anywhere; }
#phase { font-weight: 600; } #left, figcaption, footer, #from, #to { color: var(--dim);
  font-size: .875rem; }
progress { width: 100%; height: .6rem; margin: .4rem 0 0; accent-color: var(--blue); }
#error { padding: .6rem .9rem; border-left: 4px solid var(--red); overflow-wrap: anywhere;
  background: color-mix(in srgb, var(--red) 10%, transparent); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: .9rem 1.5rem;
  margin: 1.5rem 0; }
dt { color: var(--dim); font-size: .8125rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
figure { margin: 1.5rem 0; } svg { width: 100%; height: 7.5rem; display: block; margin-top: .4rem;
  border: 1px solid var(--rule); border-radius: 6px; }
polyline { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
#slow { stroke: var(--blue); } #fast { stroke: var(--green); }
#band { fill: var(--blue); opacity: .12; }
footer { border-top: 1px solid var(--rule); padding-top: .75rem; font-size: .8125rem; }
"""

SCRIPT = """
"use strict";
const at = (id) => document.getElementById(id);
const say = (id, text) => { const node = at(id); if (node.textContent !== text) {
  node.textContent = text; } };
const seen = [];
let before = null;
function seconds(s) {
  if (s < 99.5) return s.toFixed(0) + " s";
  const m = Math.round(s / 60);
  return m < 100 ? m + " min" : Math.floor(m / 60) + " h " + (m % 60) + " min";
}
function simulated(ps) {
  for (const [unit, size] of [["s", 1e12], ["ms", 1e9], ["\\u00b5s", 1e6], ["ns", 1e3]]) {
    if (ps >= size) return (ps / size).toPrecision(4) + " " + unit;
  }
  return ps ? ps + " ps" : "0 s";
}
const bytes = (n) => (n / 1e9).toFixed(2) + " GB";
const count = (n) => n.toLocaleString("en");
function leftText(left) {
  if (!left) return "";
  const low = seconds(left[0]), high = seconds(left[1]);
  return low === high ? "about " + low + " left" : low + " to " + high + " left";
}
function figures(status) {
  const found = [["running for", seconds(status.seconds)],
    ["where", status.host + ", process " + status.pid], ["processes", count(status.processes)]];
  if (status.state !== "running") found[0][0] = "took";
  if (status.ranks) found.push(["ranks", count(status.ranks) + (status.simulated_ranks
    !== status.ranks ? ", " + count(status.simulated_ranks) + " simulated" : "")]);
  if (status.time) found.push(["slowest rank at", simulated(status.time.slowest)],
    ["fastest rank at", simulated(status.time.fastest)]);
  if (status.rounds) found.push(["exchanges between processes", count(status.rounds)]);
  if (status.passes) found.push(["passes over all ranks", count(status.passes)]);
  if (status.links) {
    found.push(["links that can be shared", count(status.links.total)]);
    if (status.links.in_use !== null) found.push(["links in use", count(status.links.in_use)]);
    if (status.links.full !== null) found.push(["links full at some time",
      count(status.links.full)]);
  }
  const memory = status.memory;
  found.push(["memory held", bytes(memory.resident)], ["memory at most", bytes(memory.peak)
    + (memory.limit ? " of " + bytes(memory.limit) : "")]);
  return found;
}
function list(pairs) {
  at("figures").replaceChildren(...pairs.map(([name, value]) => {
    const box = document.createElement("div"), dt = document.createElement("dt"),
      dd = document.createElement("dd");
    dt.textContent = name; dd.textContent = value; box.append(dt, dd);
    return box;
  }));
}
function curve(status) {
  if (status.time && (!seen.length || status.seconds > seen[seen.length - 1][0])) {
    seen.push([status.seconds, status.time.slowest, status.time.fastest]);
    if (seen.length > 900) seen.shift();
  }
  at("ranks").hidden = seen.length < 3;
  if (seen.length < 3) return;
  const first = seen[0][0], last = seen[seen.length - 1][0];
  const most = Math.max(...seen.map((each) => each[2])) || 1;
  const point = (time, value) => (600 * (time - first) / (last - first)).toFixed(1) + ","
    + (118 - 114 * value / most).toFixed(1);
  const slow = seen.map((each) => point(each[0], each[1]));
  const fast = seen.map((each) => point(each[0], each[2]));
  at("slow").setAttribute("points", slow.join(" "));
  at("fast").setAttribute("points", fast.join(" "));
  at("band").setAttribute("points", [...slow, ...fast.slice().reverse()].join(" "));
  say("from", seconds(first)); say("to", seconds(last) + ", up to " + simulated(most));
}
function show(status) {
  say("state", status.condition); at("state").className = status.condition;
  say("error", status.error || ""); at("error").hidden = !status.error;
  if (status.condition === "unreadable") return;
  say("command", status.command);
  const phase = status.phase, running = status.condition === "running";
  at("work").hidden = !running || !phase.name;
  say("phase", phase.name + (phase.inner ? " (" + phase.inner + ")" : ""));
  say("left", (phase.share !== null ? Math.floor(100 * phase.share) + " %" : "")
    + (phase.left ? ", " + leftText(phase.left) : ""));
  if (phase.share === null) at("bar").removeAttribute("value");
  else at("bar").value = phase.share;
  list(figures(status)); curve(status);
  say("updated", "as of " + status.updated.replace("T", " ").replace("Z", " UTC"));
  document.title = (running && phase.share !== null ? Math.floor(100 * phase.share) + " % "
    : status.condition + " ") + "\\u2013 mpisim";
  before = status;
}
async function look() {
  try {
    const answer = await fetch("/status", { cache: "no-store" });
    show(await answer.json());
  } catch (error) {
    say("updated", "mpisim watch has ended" + (before ? "; as of " + before.updated : ""));
  }
  setTimeout(look, 1000);
}
look();
"""
