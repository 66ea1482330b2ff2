"""What the real kubelet makes of its files and flags, by a recording: the played kubelet, doctor and migrate agree with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.cli.doctor.settings import FLAGS, KubeletSettings, read_kubelet
from nri_plugin.cli.doctor.view import NodeView, Process
from nri_plugin.cli.migrate.kubelet import read_kubelet_files
from tests.played_migration import SETTINGS, STRINGS, decoded

RECORD = Path(__file__).parents[1] / "kubelet_starts.json"
CASES = json.loads(RECORD.read_text())


class NoUnits:
    def show(self, unit: str, name: str) -> str:
        return ""


def as_text(value: Any) -> Any:
    """Values of flags, files and records in one form."""
    if isinstance(value, dict):
        return {name: as_text(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(as_text, value))
    return str(value)


def set_by(found: dict[str, Any]) -> dict[str, Any]:
    """The settings that are not the defaults."""
    return {
        key: as_text(found[key]) for key in SETTINGS if found.get(key) not in (None, STRINGS.get(key), {})
    }


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"].replace(" ", "-")) for case in CASES])
def test_a_kubelets_configuration_is_read_as_the_kubelet_reads_it(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    for name, text in case["files"].items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, target in case.get("links", {}).items():
        (tmp_path / name.lstrip("/")).symlink_to(target)
    assert set(case["answers"]) == {"1.36.0", "1.37.2"}
    for answer in case["answers"].values():
        words = ("kubelet", *case["flags"])
        if "refused" in answer:
            with pytest.raises(ValueError):
                decoded(tmp_path, words)
            continue
        settings = answer["settings"]
        assert set_by(decoded(tmp_path, words)) == set_by(settings)
        view, process = NodeView(str(tmp_path), []), Process(1, "kubelet", words)
        assert set_by(read_kubelet_files(view, process, NoUnits(), "kubelet").effective()) == set_by(settings)  # type: ignore[arg-type]
        found = read_kubelet(view, process)
        assert isinstance(found, KubeletSettings)
        for key in FLAGS.values():
            value = settings.get(key, "")
            if isinstance(value, dict):
                value = ",".join(f"{name}={one}" for name, one in value.items())
            shown = found.by_key[key].value if key in found.by_key else ""
            assert key not in SETTINGS or STRINGS.get(key) == value or shown == value
