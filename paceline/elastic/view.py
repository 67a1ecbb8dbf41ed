"""The state of a job as text for a terminal, and as JSON and a page over HTTP on loopback.

GET /                the page; it asks for the state every second
GET /state?token=T   the state as JSON; without the job's token the answer is 403
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from paceline.elastic.frames import same
from paceline.elastic.progress import PARTS
from paceline.elastic.recoveries import line_of

NOT_SHOWN = ("kind", "folder", "pid")
BARS = " ▁▂▃▄▅▆▇█"
SLOW = 5.0  # seconds that a client of the page may take for its request


def summary_line(state: Mapping[str, Any]) -> str:
    """Return the state on one line."""
    members = f"{len(state['members'])} members"
    waiting = f", {state['waiting']} waiting" if state["waiting"] else ""
    end = ", all steps are made" if state["finished"] else ""
    return f"generation {state['generation']}, {members}{waiting}, {state['steps']} steps committed{end}"


def shown(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the state that leaves this process."""
    return {name: value for name, value in state.items() if name not in NOT_SHOWN}


def detail_lines(state: Mapping[str, Any], width: int = 80) -> list[str]:
    """Return the whole state as lines of a terminal."""
    lines = [summary_line(state)]
    points = [point[1] for point in state.get("rate", ())]
    if points:
        lines += [f"rate {points[-1]:.1f} steps/s", f"  {sparkline(points, width - 2)}"]
    if where := parts_line(state.get("parts", {})):
        lines.append(where)
    lines += [f"  rank {rank}: {member}" for rank, member in enumerate(members_of(state))]
    for incident in state["incidents"]:
        when = time.strftime("%H:%M:%S", time.localtime(incident["at"]))
        lines.append(f"  {when} {line_of(incident)}")
    return lines


def members_of(state: Mapping[str, Any]) -> list[str]:
    """Return the members by rank, each with its number of tasks, one for each virtual shard."""
    members, lengths = state["members"], state.get("lengths") or ()
    if len(lengths) != len(members):
        return list(members)
    return [f"{name}, {count} task{'s' * (count != 1)}" for name, count in zip(members, lengths, strict=True)]


def sparkline(points: Sequence[float], width: int) -> str:
    """Return the last points as bars of a character each; the highest is full."""
    top = max(points) or 1.0
    return "".join(BARS[round((len(BARS) - 1) * point / top)] for point in points[-width:])


def parts_line(parts: Mapping[str, float]) -> str:
    """Return the mean milliseconds of each part of a step."""
    steps = parts.get("steps", 0)
    if not steps:
        return ""
    return "ms per step: " + ", ".join(f"{name} {1e3 * parts.get(name, 0.0) / steps:.1f}" for name in PARTS)


def redrawn(lines: Sequence[str], before: int, width: int) -> str:
    """Return the text that replaces the last `before` lines of a terminal by these."""
    up = f"\x1b[{before}F" if before else ""
    return up + "".join(f"{line[:width]}\x1b[K\n" for line in lines) + "\x1b[J"


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline watch</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; connect-src 'self'; style-src 'unsafe-inline';
 script-src 'unsafe-inline'">
<style>
 body { font: 15px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color-scheme: light
 dark } svg { width: 100%; height: 9rem; border-bottom: 1px solid gray } h1 { font-size: 1.2rem }
 polyline { fill: none; stroke: #2a78d6; stroke-width: 2 } line { stroke: #d64545; stroke-dasharray: 4 3 }
 li { overflow-wrap: anywhere }
</style>
<h1 id="line">paceline watch</h1><p id="rate"></p>
<svg id="chart" role="img" aria-label="steps per second over time; a dashed line is an incident"></svg>
<p id="parts"></p><h2>Members</h2><ol id="members" start="0"></ol><h2>Incidents</h2><ul id="incidents"></ul>
<script>
const token = location.hash.slice(1), put = (id, text) => { document.getElementById(id).textContent = text };
function list(id, texts) {
  document.getElementById(id).replaceChildren(...texts.map(text => {
    const item = document.createElement("li"); item.textContent = text; return item }));
}
function draw(state) {
  const svg = document.getElementById("chart"), points = state.rate, w = 700, h = 140;
  svg.setAttribute("viewBox", `0 0 ${w} ${h}`); svg.setAttribute("preserveAspectRatio", "none");
  if (points.length < 2) return;
  const t0 = points[0][0], t1 = points[points.length - 1][0], top = Math.max(...points.map(p => p[1])) || 1;
  const x = t => (t - t0) / (t1 - t0) * w, make = name => document.createElementNS("http://www.w3.org/2000/svg", name);
  const line = make("polyline");
  line.setAttribute("points", points.map(p => `${x(p[0])},${h - p[1] / top * h * 0.95}`).join(" "));
  const marks = state.incidents.filter(i => i.what !== "generation" && i.at >= t0 && i.at <= t1).map(i => {
    const mark = make("line"), title = make("title"); title.textContent = i.line; mark.append(title);
    for (const [k, v] of Object.entries({x1: x(i.at), x2: x(i.at), y1: 0, y2: h})) mark.setAttribute(k, v);
    return mark });
  svg.replaceChildren(line, ...marks);
}
async function look() {
  try {
    const answer = await fetch("/state?token=" + encodeURIComponent(token));
    if (answer.status === 403) { put("line", "The token after # in the address is not that of the job."); return }
    if (!answer.ok) { put("line", "The job has ended."); return }
    const state = await answer.json();
    put("line", state.line); put("parts", state.parts_line);
    put("rate", state.rate.length ? state.rate[state.rate.length - 1][1].toFixed(1) + " steps/s" : "");
    list("members", state.members_lines);
    list("incidents", state.incidents.map(i => new Date(1000 * i.at).toLocaleTimeString() + " " + i.line));
    draw(state); setTimeout(look, 1000);
  } catch (problem) { put("line", "paceline watch has ended."); }
}
look();
</script></html>
"""


def page_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with its sentences, for the page and for programs."""
    incidents = [{**incident, "line": line_of(incident)} for incident in state["incidents"]]
    words = {"line": summary_line(state), "parts_line": parts_line(state.get("parts", {}))}
    return {**shown(state), "incidents": incidents, **words, "members_lines": members_of(state)}


def server(port: int, token: str, look: Callable[[], Mapping[str, Any] | None]) -> HTTPServer:
    """Return a server on loopback; `look` returns the state of the job, or None when it has ended."""

    class Answer(BaseHTTPRequestHandler):
        timeout = SLOW

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path == "/":
                self._send(200, "text/html; charset=utf-8", PAGE)
            elif address.path != "/state":
                self._send(404, "text/plain", "no such page\n")
            elif not same(parse_qs(address.query).get("token", [""])[0], token):
                self._send(403, "text/plain", "the job's token is needed\n")
            elif (state := look()) is None:
                self._send(410, "text/plain", "the job has ended\n")
            else:
                self._send(200, "application/json", json.dumps(page_state(state)))

        def _send(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: an address may hold the token."""

    return HTTPServer(("127.0.0.1", port), Answer)
