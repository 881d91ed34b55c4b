"""Writes docs/page.png, a picture of the server's page with an index of the sample's replies: python runs/page.py

The script starts a server, holds a conversation in a browser (chromium, through playwright), and takes the picture.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, expect, sync_playwright

import polyrank

PICTURE = Path(__file__).parents[1] / "docs/page.png"
BROWSER = "/usr/bin/chromium"
SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
SIZE = {"width": 1280, "height": 900}
TURNS = (
    ("customer", "hi"),
    ("agent", "Hello, what can I do for you?"),
    ("customer", "why is my bill higher than usual?"),
)


def converse(page: Page) -> None:
    """Hold a conversation and open the explanation of the best reply."""
    for speaker, text in TURNS:
        page.locator("#turn").fill(text)
        page.get_by_role("button", name="Send as agent" if speaker == "agent" else "Send", exact=True).click()
        expect(page.locator("#turns p").last).to_have_text(text)
    expect(page.locator(".panel[aria-busy]")).to_have_count(0)
    page.get_by_role("button", name="Why reply 1").click()
    expect(page.locator(".why")).to_be_visible()


def main() -> None:
    sample = Path(polyrank.__file__).parent / "sample"
    with TemporaryDirectory() as name:
        polyrank.build_index(Path(name) / "support", "untuned:embedded", polyrank.read_pool(sample / "replies.jsonl"))
        command = [sys.executable, "-m", "polyrank", "serve", "support", "--port", "0"]
        with subprocess.Popen(command, cwd=name, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None, "stderr is a pipe"
            line = server.stderr.readline()
            try:
                if not (match := re.search(r"listening at (\S+);", line)):
                    raise SystemExit(f"the server did not start: {line}{server.stderr.read()}")
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=BROWSER, args=list(SWITCHES))
                    page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
                    page.goto(match[1])
                    expect(page.locator("#model option").first).to_be_attached(timeout=60_000)
                    converse(page)
                    page.mouse.move(0, 0)
                    page.screenshot(path=PICTURE)
                    browser.close()
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
