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
PORTS = load_text('reservedSystemCPUs: "0"\nmetricsBindAddress: ":9465"\nisolation: partition\n', "here")
SHIPPED = Path(__file__).parents[2] / "deploy/systemd"


@pytest.mark.parametrize(
    ("name", "text", "most"),
    [
        (systemd.AGENT, (SHIPPED / systemd.AGENT).read_text(), 1.1),
        (systemd.AGENT, systemd.agent_unit(load_text('reservedSystemCPUs: "0"\n', "here"), "/bin/sh"), 1.1),
        (systemd.AGENT, systemd.agent_unit(PORTS, "/bin/sh"), 2.2),
        (systemd.EXPORTER, systemd.exporter_unit(PORTS, "/bin/sh", Path("/etc/kubeconfig")), 1.6),
    ],
)
def test_systemd_takes_each_unit_and_rates_its_exposure_as_the_guide_says(
    tmp_path: Path, name: str, text: str, most: float
) -> None:
    path = tmp_path / name
    path.write_text(text.replace("/opt/nri-pin/bin/python3", "/bin/sh"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert name not in checked.stderr
    words = ["systemd-analyze", "security", "--offline=true", f"--threshold={most * 10:.0f}", str(path)]
    rated = subprocess.run(words, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout + rated.stderr
