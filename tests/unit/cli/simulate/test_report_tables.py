"""The tables of a report."""

import re
from typing import Any

from nri_plugin.cli.simulate.report import render
from tests import simulation_samples as samples
from tests.report_pages import part


def rows(page: str) -> list[list[str]]:
    bodies = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    plain = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        for body in bodies
        for row in re.findall(r"<tr.*?</tr>", body)
    ]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in cells] for cells in plain]


def heads(page: str) -> list[str]:
    return [re.sub(r"<[^>]*>", "", head) for head in re.findall(r'<th scope="col".*?</th>', page)]


def placements(simulation: dict[str, Any]) -> str:
    return part("placements-0", simulation)


def test_placements_say_where_everything_runs() -> None:
    page = placements(samples.sample())
    assert heads(page) == ["Mark", "Container", "Own CPUs", "Runs on", "NUMA", "L3", "Memory on", "Aligned"]
    assert rows(page)[:2] == [
        ["A", "net/filter/filter", "8", "1-8", "0-1", "0-2", "0", "not aligned: whole cores"],
        ["·", "shop/web/web", "-", "9-63", "0-3", "any", "any", "-"],
    ]


def test_cells_are_sorted_by_numbers_where_they_are_some() -> None:
    page = placements(samples.sample())
    assert re.findall(r'data-v="([^"]*)" data-label="Own CPUs"', page) == ["8", "0", "6"]
    assert re.findall(r'data-v="([^"]*)" data-label="Runs on"', page) == ["1", "9", "9"]
    assert re.findall(r'data-v="([^"]*)" data-label="Aligned"', page) == ["3", "-1", "3"]


def test_rows_belong_to_their_container_and_shared_ones_to_the_pool_also() -> None:
    found = re.findall(
        r'<tr data-c="(\d)"(?: data-also="(\w+)")? tabindex="-1">', placements(samples.sample())
    )
    assert found == [("0", ""), ("1", "p0"), ("2", "")]


def test_devices_are_a_column_where_the_machine_has_some() -> None:
    simulation = samples.sample()
    simulation["devices"] = ({"resource": "gpu", "id": "3", "numa_nodes": (1,), "container": "db/main/db"},)
    simulation["containers"][0]["devices"] = {"gpu": ("1", "2")}
    page = placements(simulation)
    assert heads(page)[-1] == "Devices"
    assert rows(page)[0][-1] == "gpu: 1, 2"
    assert rows(part("devices-0", simulation)) == [["gpu", "3", "1", "db/main/db"]]


def test_a_device_that_nobody_has_and_that_is_nowhere() -> None:
    simulation = samples.sample()
    simulation["devices"] = ({"resource": "gpu", "id": "3", "numa_nodes": (), "container": ""},)
    assert rows(part("devices-0", simulation)) == [["gpu", "3", "any", "-"]]


def test_refusals_say_step_wish_reason_and_sentence() -> None:
    simulation = samples.sample()
    assert rows(part("refusals-0", simulation)) == [
        [
            "4",
            "ml/train/train",
            "Guaranteed: cpu 1000, memory 1Gi",
            "InsufficientCPU",
            "InsufficientCPU: 1000 wanted, 49 available",
        ]
    ]


def test_a_refused_update_is_a_refusal_of_its_target() -> None:
    simulation = samples.sample(wishes=[("a/a/a", 2)])
    simulation["steps"][0].update(refusal={"reason": "R", "text": "R: no"}, shape="", action="update")
    assert rows(part("refusals-0", simulation)) == [["1", "a/a", "update", "R", "R: no"]]
    assert rows(part("steps-0", simulation))[0][4].startswith("refused: R; ")


def test_who_is_tolerated_is_no_refusal() -> None:
    simulation = samples.sample(wishes=[("a/a/a", 0)])
    simulation["steps"][0]["containers"][0]["refusal"] = {"reason": "R", "text": "R: no"}
    assert "Nothing was refused in B." in render([samples.sample(), simulation])


def test_steps_say_what_came_of_them() -> None:
    simulation = samples.sample()
    simulation["steps"][1]["problems"] = ("it should have 2 CPUs",)
    assert [row[4] for row in rows(part("steps-0", simulation))] == [
        "filter has 1-8",
        "it should have 2 CPUs; web shares",
        "db has 9-14",
        "train refused: InsufficientCPU",
    ]
    simulation["steps"][3]["containers"][0]["status"] = "skipped"
    assert rows(part("steps-0", simulation))[3][4] == "train never created"


def test_steps_without_containers_say_nothing() -> None:
    simulation = samples.sample()
    simulation["steps"][0]["containers"] = ()
    assert rows(part("steps-0", simulation))[0][4] == "-"


def test_figures_have_a_column_each_and_mark_what_differs() -> None:
    page = part("figures", samples.sample(), samples.sample(wishes=[("a/a/a", 3)]))
    assert ["Exclusive CPUs", "14", "3"] in rows(page)
    assert ["on one NUMA node", "2 of 2", "1 of 1"] in rows(page)
    assert re.search(r'<tr class="differ"><th scope="row">Exclusive CPUs', page)
    assert re.search(r'<tr><th scope="row">Reserved CPUs', page)


def test_memory_is_told_as_people_write_it_and_sorted_by_size() -> None:
    page = part("memory-0", samples.sample(), samples.sample())
    assert rows(page) == [["0", "memory", "3Gi", "64Gi"]]
    assert f'data-v="{3 << 30}"' in page
    assert "Memory A" in page


def test_tables_of_nothing_are_left_out() -> None:
    simulation = samples.sample()
    simulation["memory"] = ()
    assert [part(id_, simulation) for id_ in ("memory-0", "devices-0", "orders")] == ["", "", ""]


def test_orders_tell_the_seed_and_the_figures() -> None:
    simulation = samples.sample()
    counts = {
        "pods_placed": 3,
        "containers_exclusive": 2,
        "exclusive_cpus": 14,
        "aligned_numa_node": 1,
        "aligned_uncore_cache": 0,
    }
    simulation["orders"] = tuple({"seed": seed, **counts, "fragmentation_numa": 0.125} for seed in (None, 7))
    assert rows(part("orders", simulation)) == [
        ["as written", "3", "2", "14", "1", "0", "12 %"],
        ["seed 7", "3", "2", "14", "1", "0", "12 %"],
    ]


def test_orders_of_two_simulations_say_whose_they_are() -> None:
    pair = [samples.sample(), samples.sample(config="other.yaml")]
    figures = (
        "pods_placed",
        "containers_exclusive",
        "exclusive_cpus",
        "aligned_numa_node",
        "aligned_uncore_cache",
    )
    for simulation in pair:
        simulation["orders"] = ({"seed": 1, **dict.fromkeys(figures, 1), "fragmentation_numa": 0},)
    page = part("orders", *pair)
    assert heads(page)[:2] == ["Simulation", "Order"]
    assert [row[0] for row in rows(page)] == ["A", "B"]


def test_differences_tell_keys_and_containers_and_how_many_are_alike() -> None:
    pair = [samples.sample(), samples.sample(config="other.yaml", backwards=True)]
    assert ["topologyManagerPolicy", "best-effort", "restricted"] in rows(part("differing-keys", *pair))
    page = part("differing-containers", *pair)
    assert ["net/filter/filter", "cpus", "1-8", "56-63"] in rows(page)
    assert "0 containers the same with both." in page


def test_no_difference_is_said() -> None:
    pair = [samples.sample(), samples.sample()]
    page = render(pair, samples.comparison(*pair))
    assert "No container is treated differently: 3 containers the same with both." in page


def test_long_cpu_lists_may_break_at_commas() -> None:
    assert '<span class="cpulist">0,<wbr>15-63</span>' in placements(
        samples.sample() | {"containers": [{**samples.sample()["containers"][0], "cpus": "0,15-63"}]}
    )


def test_names_are_kept_apart_from_the_direction_of_the_page() -> None:
    page = placements(samples.sample(wishes=[("a/b<c/d", 1)]))
    assert "<bdi>a/<wbr>b&lt;c/<wbr>d</bdi>" in page
