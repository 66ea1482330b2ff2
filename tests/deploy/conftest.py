"""These tests render the chart with helm, which `hack/helm` fetches."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> str:
    found = os.environ.get("NRI_PIN_HELM") or shutil.which("helm")
    if not found:
        pytest.skip("no helm; run: NRI_PIN_HELM=$(hack/helm --path) hack/test tests/deploy")
    return found


@pytest.fixture
def render(helm: str, tmp_path: Path) -> Callable[..., Objects]:
    """Renders the chart with values; the errors of values it refuses are raised as ValueError."""

    def rendered(release: str = "pin", namespace: str = "place", **values: object) -> Objects:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        words = ["template", release, str(DEPLOY / "chart"), "-n", namespace, "-f", str(file)]
        done = subprocess.run(
            [helm, *words, "--kube-version", "v1.34.0"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ValueError(done.stderr)
        return [item for item in yaml.safe_load_all(done.stdout) if item]

    return rendered
