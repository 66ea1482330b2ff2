"""systemd itself judges the units that `nri-pin install --systemd` writes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nri_plugin.cli import systemd
from nri_plugin.config.loading import load_text

pytestmark = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="needs systemd-analyze: apt-get install systemd"
)
CONFIG = load_text('reservedSystemCPUs: "0"\n', "here")
UNITS = {
    systemd.AGENT: systemd.agent_unit(CONFIG, "/bin/sh"),
    systemd.EXPORTER: systemd.exporter_unit(CONFIG, "/bin/sh", Path("/etc/kubeconfig")),
}


@pytest.mark.parametrize(("name", "most"), [(systemd.AGENT, 1.1), (systemd.EXPORTER, 1.6)])
def test_systemd_takes_each_unit_and_rates_its_exposure_as_the_guide_says(
    tmp_path: Path, name: str, most: float
) -> None:
    path = tmp_path / name
    path.write_text(UNITS[name])
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert name not in checked.stderr
    words = ["systemd-analyze", "security", "--offline=true", f"--threshold={most * 10:.0f}", str(path)]
    rated = subprocess.run(words, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout + rated.stderr
