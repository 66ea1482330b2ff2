"""The page of a report as a whole."""

import base64
import hashlib
import json
import re
from importlib import resources

import pytest

from nri_plugin.cli.simulate.report import render
from tests import simulation_samples as samples


def test_page_names_no_address_to_load_from() -> None:
    page = render([samples.sample()])
    assert re.findall(r"""(?:src|href|action|srcset)\s*=\s*["']?([^"'\s>]*)""", page) == [
        "#machine",
        "#plots",
        "#tables",
    ]
    assert "@import" not in page
    assert re.findall(r"url\(([^)]*)\)", page) == ["#hatch"]
    assert "://" not in page


def test_policy_allows_the_style_and_the_script_of_the_page_and_nothing_else() -> None:
    page = render([samples.sample()])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    hashes = {
        kind: base64.b64encode(
            hashlib.sha256(re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)[0].encode()).digest()
        ).decode()
        for kind in ("style", "script")
    }
    assert policy[1].replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_policy_stands_before_everything_that_it_is_about() -> None:
    page = render([samples.sample()])
    assert page.index("Content-Security-Policy") < min(
        page.index("<title"), page.index("<style"), page.index("<script")
    )


def test_page_has_no_style_or_handler_in_attributes() -> None:
    assert not re.search(r"<[^>]*\s(?:style|on\w+)=", render([samples.sample()]))


def test_same_simulation_makes_the_same_page() -> None:
    assert render([samples.sample()]) == render([samples.sample()])


def test_saved_json_makes_the_same_page() -> None:
    pair = [samples.sample(), samples.sample(backwards=True)]
    differences = samples.comparison(*pair)
    saved = json.loads(json.dumps({"simulations": pair, "comparison": differences}))
    assert render(saved["simulations"], saved["comparison"]) == render(pair, differences)


@pytest.mark.parametrize("count", [0, 3])
def test_neither_none_nor_three_simulations_make_a_report(count: int) -> None:
    with pytest.raises(ValueError, match=f"one simulation or two, not {count}"):
        render([samples.sample()] * count)


def test_ids_are_there_once() -> None:
    pair = [samples.sample(), samples.sample(backwards=True)]
    ids = re.findall(r'\sid="([^"]*)"', render(pair, samples.comparison(*pair)))
    assert len(ids) == len(set(ids)) > 15


def test_links_lead_somewhere() -> None:
    pair = [samples.sample(), samples.sample(backwards=True)]
    page = render(pair, samples.comparison(*pair))
    assert all(f'id="{target}"' in page for target in re.findall(r'href="#([^"]*)"', page))


def test_summary_tells_placed_in_part_and_refused() -> None:
    simulation = samples.sample()
    simulation["totals"]["pods_partly"] = 2
    assert "3 of 4 pods placed, 2 in part, 1 refused; 14 CPUs exclusive, 49 available." in render(
        [simulation]
    )


def test_refusals_are_summed_up_by_pods_of_a_shape() -> None:
    simulation = samples.sample()
    keys = ("ml/train/train", "ml/train/log", "ml/tune/tune")
    simulation["refused"] = (
        {"reason": "R", "stage": "placement", "shape": "1000", "containers": keys, "text": "no"},
    )
    assert "<li>2 x R: Guaranteed: cpu 1000, memory 1Gi</li>" in render([simulation])
    simulation["refused"] = ()
    assert "<dt>Refused</dt>" not in render([simulation])


def test_title_leaves_out_a_machine_without_a_name_of_its_own() -> None:
    simulation = samples.sample()
    assert "<title>a day on demo</title>" in render([simulation])
    simulation["machine"]["name"] = "machine"
    assert "<title>a day</title>" in render([simulation])


def test_notes_of_two_simulations_are_told_once() -> None:
    pair = [samples.sample(), samples.sample(backwards=True)]
    assert render(pair).count("<li>memory pressure is not simulated</li>") == 1


def test_configuration_is_told_key_by_key_with_what_is_reserved() -> None:
    page = render([samples.sample()])
    assert "<code>topologyManagerPolicy: restricted</code>" in page
    assert "Reserved: 0; said by reservedSystemCPUs" in page


def test_style_and_script_are_files_of_the_package() -> None:
    folder = resources.files("nri_plugin.cli.simulate") / "templates"
    page = render([samples.sample()])
    assert folder.joinpath("report.css").read_text() in page
    assert folder.joinpath("report.js").read_text() in page
