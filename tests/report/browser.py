"""Debian's chromium, driven through chromedriver with nothing but the standard library."""

import base64
import json
import re
import shutil
import subprocess
import urllib.request

DRIVER = "chromedriver"
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]


def is_there():
    return shutil.which("chromium") is not None and shutil.which(DRIVER) is not None


class Browser:
    """One window; `console` and `requests` tell what the page did since it was opened."""

    def __enter__(self):
        self._process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        port = next(found[1] for line in self._process.stdout if (found := re.search(r"on port (\d+)\.", line)))
        self._url = f"http://127.0.0.1:{port}/session"
        options = {"binary": shutil.which("chromium"), "args": FLAGS}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        made = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/{made['sessionId']}"
        return self

    def __exit__(self, *_):
        try:
            self._ask("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait(10)
            self._process.stdout.close()

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def _cdp(self, command, **parameters):
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, width, height, scheme):
        self._cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path):
        self._log("browser"), self._log("performance")
        self._ask("POST", "/url", {"url": path.as_uri()})

    def run(self, script):
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def _log(self, kind):
        return self._ask("POST", "/se/log", {"type": kind})

    def console(self):
        return [entry["message"] for entry in self._log("browser")]

    def requests(self):
        """Addresses that the page asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
