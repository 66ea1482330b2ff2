"""The HTML report of a simulation in a real browser, Debian's Chromium: silent, within the screen, complete on paper."""

import os
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
from pypdf import PdfReader

from nri_plugin.cli.main import run_command_line
from nri_plugin.simulator.simulate.plan import shipped_scenarios

CANDIDATES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("NRI_PIN_CHROMIUM") or next(filter(None, map(shutil.which, CANDIDATES)), None)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium; as root: apt-get install --no-install-recommends chromium, "
    "or name one: NRI_PIN_CHROMIUM=FILE hack/test tests/browser",
)


def chromium(*words: str) -> subprocess.CompletedProcess[str]:
    # Without a sandbox of its own: it starts as root, and reads files that these tests have written.
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--enable-logging=stderr", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("scenario", sorted(shipped_scenarios()))
def test_a_report_is_silent_and_complete_on_paper(tmp_path: Path, scenario: str) -> None:
    report, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    run_command_line(["simulate", scenario, "--compare", "topologyManagerPolicy=none", "--html", str(report)])
    done = chromium(f"--user-data-dir={tmp_path}/profile", f"--print-to-pdf={paper}", report.as_uri())
    assert "CONSOLE" not in done.stderr
    pages = "".join(page.extract_text() for page in PdfReader(paper).pages)
    printed = "".join(unicodedata.normalize("NFKC", pages).split())  # ligatures as letters
    for heading in ("Differences", "Themachineattheend", "PlacementsA", "StepsB", "nonewaschanged"):
        assert heading in printed


def test_a_report_is_no_wider_than_a_telephone(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    run_command_line(["simulate", "telco", "--html", str(report)])
    # A page of the report's own may run no script, so a page around it measures.
    text = report.read_text().replace(
        "default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';"
    )
    measure = "<script>document.title = `${document.body.scrollWidth} of ${innerWidth}`</script></body>"
    report.write_text(text.replace("</body>", measure))
    done = chromium(
        f"--user-data-dir={tmp_path}/profile", "--window-size=500,800", "--dump-dom", report.as_uri()
    )
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    widths = [int(word) for word in title.split(" of ")]
    assert widths[0] <= widths[1], title
