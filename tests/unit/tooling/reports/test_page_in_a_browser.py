"""The report's page in Chromium: it shows what it should, and nothing is fetched, whatever somebody puts into it."""

import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from support.run_folders import eval_row, train_row, write_run
from unit.downstream.finetuning.grid.test_scores_below import write_finetuning
from unit.downstream.inspection.chromium import dump_dom

from megabert.downstream.finetuning.grid.results import render_scores_below
from megabert.tooling.reports.curves import draw_page, render_run_page

TASKS = [f"task{number:02}" for number in range(20)]


@pytest.fixture
def page(tmp_path):
    """Return the page of a run with probes and twenty fine-tunings."""
    rows = [train_row(1, 8.0), *(eval_row(step, 7.0) | {"probe/own": 0.5, "probe/own/<b>": 0.7} for step in (10, 20))]
    run = write_run(tmp_path / "run", rows)
    for task in TASKS:
        write_finetuning(run / "tuned" / task, task)
    tables = [("Fine-tunings", render_scores_below(run)), ("Guesses", "<script>x</script>")]
    return render_run_page(run, draw_page(run, []), tables)


@pytest.fixture
def server():
    """Return a server's address, and the list of the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_page_names_no_address_and_has_light_and_dark_colours(page):
    assert not re.findall(r'(?:src|href)="(?!data:)|https?:|@import|url\(|<script', page)
    assert "color-scheme: light dark" in page
    assert "prefers-color-scheme: dark" in page


def test_page_shows_twenty_fine_tunings_and_probes(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    dom = dump_dom(tmp_path / "page.html", "", tmp_path / "profile")
    assert re.findall(r"tuned/(task\d\d)", dom) == TASKS
    assert dom.count('<img alt="') == 2
    assert "Minimal pairs" in dom
    assert "&lt;script&gt;" in dom


def test_browser_fetches_nothing_even_if_the_page_asks_for_it(page, server, tmp_path):
    address, asked = server
    planted = page.replace(
        "</body>", f'<img src="{address}/picture"><link rel="stylesheet" href="{address}/css"></body>'
    )
    policy = re.search(r'<meta http-equiv="Content-Security-Policy".*>', page)[0]
    for name, content in (("page", planted), ("open", planted.replace(policy, ""))):
        (tmp_path / f"{name}.html").write_text(content)
        dump_dom(tmp_path / f"{name}.html", "", tmp_path / "profile")
        assert sorted(asked) == ([] if name == "page" else ["/css", "/picture"])
