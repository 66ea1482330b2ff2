"""The README and the guides agree with the program, with the files around them, and with each other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nri_plugin.config.keys import KEYS
from nri_plugin.config.loading import load_text
from nri_plugin.model.options import REGISTRY
from tests import guides

TEXT = guides.everything()
SHOWN = guides.blocks(TEXT, "yaml")
SCHEDULER = "kind: KubeSchedulerConfiguration"
CONFIGURATIONS = [text for text in SHOWN if set(yaml.safe_load(text)) & set(KEYS)]
NOT_YET = {"repairMems"}
"""Keys that are known and refused; limits.md says so."""

METRIC = r"\b(?:nri_pin|kubelet_(?:topology_manager|cpu_manager|memory_manager|container))_[a-z_]+[a-z]\b"


def test_there_is_a_configuration_to_copy() -> None:
    assert CONFIGURATIONS


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_every_configuration_is_accepted(text: str) -> None:
    load_text(text, "guide")


def test_the_scheduler_is_shown_verbs_that_the_extender_answers() -> None:
    text = next(text for text in SHOWN if SCHEDULER in text)
    shown = yaml.safe_load(text.replace("# bindVerb", "bindVerb"))["extenders"][0]
    assert {shown[verb] for verb in ("filterVerb", "prioritizeVerb", "bindVerb")} == {
        "filter",
        "prioritize",
        "bind",
    }
    assert shown["nodeCacheCapable"] is True


def test_the_table_of_options_has_every_key_and_no_other() -> None:
    table = guides.section(guides.GUIDE / "configure.md", "Options")
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    named = set(re.findall(r"`([A-Za-z]+):?`", first_cells))
    assert set(KEYS) - NOT_YET <= named <= set(KEYS)
    assert all(key in guides.section(guides.LIMITS, "Limits") for key in NOT_YET)


def test_every_script_that_is_named_is_there() -> None:
    named = {
        name for path in guides.documents() for name in re.findall(r"\bhack/([a-z0-9-]+)", path.read_text())
    }
    folders = {"pictures"}
    assert {name for name in named - folders if not (guides.ROOT / "hack" / name).is_file()} <= {
        "requirements"
    }


def test_every_module_of_the_code_map_is_there() -> None:
    text = (guides.ROOT / "nri_plugin" / "README.md").read_text("utf-8")
    named = [name for name in re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text) if name != "tests/unit"]
    assert named
    assert [name for name in named if not (guides.ROOT / "nri_plugin" / name).exists()] == []


def test_every_package_is_on_the_code_map() -> None:
    text = (guides.ROOT / "nri_plugin" / "README.md").read_text("utf-8")
    packages = {path.parent.name for path in (guides.ROOT / "nri_plugin").glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in text} == set()


def test_the_readme_takes_ten_minutes_and_the_code_map_is_one_page() -> None:
    assert len(guides.README.read_text("utf-8").splitlines()) <= 250
    assert len((guides.ROOT / "nri_plugin" / "README.md").read_text("utf-8").splitlines()) <= 80


def test_the_readme_leads_to_every_guide() -> None:
    found = {guides.README}
    todo = [guides.README]
    while todo:
        page = todo.pop()
        linked = {
            (page.parent / link.partition("#")[0]).resolve() for link in guides.links(page.read_text("utf-8"))
        }
        new = {path for path in linked if path.parent == guides.GUIDE} - found
        found |= new
        todo += sorted(new)
    assert set(guides.GUIDE.glob("*.md")) <= found


def _broken(path: Path) -> list[str]:
    broken = []
    for link in guides.links(path.read_text("utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        is_there = target.exists() and guides.ROOT in target.parents
        if not is_there or (anchor and anchor not in guides.anchors(target.read_text("utf-8"))):
            broken.append(link)
    return broken


@pytest.mark.parametrize(
    "path", guides.documents(), ids=lambda path: path.relative_to(guides.ROOT).as_posix()
)
def test_every_link_and_anchor_leads_somewhere(path: Path) -> None:
    assert _broken(path) == []


def test_a_link_without_a_target_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n\n```text\n# no heading [x](none.md)\n```\n[a](#one-two) [b](#no-heading) [c](other.md)\n"
    )
    assert _broken(page) == ["#no-heading", "other.md"]


def test_the_made_parts_are_what_the_code_says() -> None:
    """Run hack/write-guides where this fails. A new process, because click remembers what other tests did to commands."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.guides", "--check"],
        cwd=guides.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_every_departure_of_the_code_is_a_row() -> None:
    lines = sum(
        path.read_text("utf-8").count("Differs:")
        for path in (guides.ROOT / "nri_plugin").rglob("*.py")
        if "_pb" not in path.parts
    )
    table = guides.section(guides.LIMITS, "Departures")
    rows = [line for line in table.splitlines() if line.startswith("| ") and line.endswith("` |")]
    assert lines == len(rows) == len(guides.departures())
    assert {row.replace("\\|", "").count(" | ") for row in rows} == {4}


def test_a_departure_without_an_option_says_none_and_others_name_one_that_exists() -> None:
    known = {*KEYS, *(option.name for option in REGISTRY.values())}
    help_texts = guides.COMMANDS.read_text("utf-8")
    wrong = []
    for one in guides.departures():
        names = [re.split("[: ]", quoted)[0] for quoted in re.findall(r"`([^`]+)`", one.option)]
        is_known = all(name in known or (name.startswith("--") and name in help_texts) for name in names)
        if not (one.option == "none" or (names and is_known)):
            wrong.append(f"{one.where}: {one.option}")
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "the kubelet crashes.",
        "the kubelet crashes; here: it does not. Option: none.",
        "the kubelet crashes; here: it does not. Why: no node may fail.",
        "the kubelet crashes. Why: no node may fail. Option: none.",
        "the kubelet crashes; here: it does not. Option: none. Why: no node may fail.",
        "the kubelet crashes; here: it does not. Why: no node may fail. Option: .",
        "the kubelet crashes; here: it does not. Why: no node may fail. Option: none",
        "the kubelet; here: it; here: that. Why: no node may fail. Option: none.",
    ],
)
def test_a_departure_that_lacks_a_part_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"^core/pods.py:7: "):
        guides.departure_of("core/pods.py:7", text)


def test_a_departure_has_four_parts() -> None:
    told = "the kubelet crashes; here: it does not. Why: no node may fail. Option: `a: b`."
    assert guides.departure_of("core/pods.py:7", told) == guides.Departure(
        "core/pods", "the kubelet crashes", "it does not", "no node may fail", "`a: b`"
    )


def test_the_metrics_of_the_guide_are_those_of_the_code() -> None:
    product = {path: path.read_text("utf-8") for path in (guides.ROOT / "nri_plugin").rglob("*.py")}
    quoted = {name for text in product.values() for name in re.findall(rf'"({METRIC})"', text)}
    told = set(re.findall(METRIC, (guides.GUIDE / "metrics.md").read_text("utf-8")))
    assert told == quoted


def test_every_command_has_a_manual_page_with_its_help(tmp_path: Path) -> None:
    # In a process of its own, as hack/release does: click keeps help options of commands that other tests ran alone.
    subprocess.run([sys.executable, "-m", "tests.guides", "--man", tmp_path], check=True, cwd=guides.ROOT)
    pages = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert {"nri-pin", "nri-pin-run", "nri-pin-state-show"} <= pages.keys()
    reference = guides.COMMANDS.read_text()
    for name, text in pages.items():
        body = text.partition("\n.nf\n")[2].removesuffix("\n.fi\n")
        assert not re.search(r"^[.']", body, re.MULTILINE)  # roff would take the line for a request
        shown = body.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\")
        assert name == "nri-pin" or shown in reference
