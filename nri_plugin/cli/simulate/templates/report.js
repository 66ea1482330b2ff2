// Pointing, sorting and filtering. The page says everything without this; here is what a mouse and keys add.
"use strict";
(() => {
  const says = JSON.parse(document.getElementById("says").textContent);
  const result = JSON.parse(document.getElementById("result").textContent);
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const detail = document.getElementById("detail");

  // ---- one container everywhere

  const joinedBy = new Map(); // "7": what belongs to container 7; "p0": to the shared pool of the first simulation
  const join = (name, element) => {
    if (!joinedBy.has(name)) joinedBy.set(name, []);
    joinedBy.get(name).push(element);
  };
  for (const element of all("[data-c]")) join(element.dataset.c, element);
  for (const element of all("[data-also]")) join(element.dataset.also, element);
  const poolsOf = (name) => [...new Set((joinedBy.get(name) ?? []).map((element) => element.dataset.also).filter(Boolean))];
  const isOfPool = (element, pool) => element.dataset.c === pool;

  let lit = [];
  let kept = null;

  const light = (name) => {
    for (const element of lit) element.classList.remove("lit");
    lit = name === null ? [] : [...(joinedBy.get(name) ?? [])];
    if (name !== null) for (const pool of poolsOf(name)) lit.push(...joinedBy.get(pool).filter((element) => isOfPool(element, pool)));
    for (const element of lit) element.classList.add("lit");
    document.body.classList.toggle("pointing", lit.length > 0);
  };

  const made = (tag, text, name = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  const headOf = (name) => {
    if (name.startsWith("p")) return [];
    const [key, letter, colour] = says.containers[Number(name)];
    const words = made("bdi", key);
    const head = made("b", "");
    head.append(words);
    return letter ? [made("span", letter, `swatch ${colour}`), " ", head] : [head];
  };

  const sentences = (name) => {
    const texts = name.startsWith("p") ? [says.pools[Number(name.slice(1))]] : says.containers[Number(name)][3];
    return texts.map((text, number) => {
      const label = name.startsWith("p") ? says.names[Number(name.slice(1))] : says.names[number];
      return made("p", label ? `${label}: ${text}` : text);
    });
  };

  const groups = [["core", "cores"], ["L3", "caches"], ["NUMA", "numa_nodes"], ["socket", "sockets"]];
  const placeByCPU = new Map();
  for (const [word, group] of groups)
    for (const row of result.simulations[0].machine[group])
      for (const cpu of row.cpus) placeByCPU.set(cpu, [...(placeByCPU.get(cpu) ?? []), `${word} ${row.id}`]);

  const tell = (name, cpu) => {
    const where = cpu === undefined ? "" : [`CPU ${cpu}`, ...(placeByCPU.get(Number(cpu)) ?? [])].join(", ");
    const parts = name === null ? [] : [...headOf(name), ...sentences(name)];
    if (where) parts.push(made("p", where));
    detail.replaceChildren(...parts);
    detail.hidden = parts.length === 0;
  };

  const point = (element) => {
    light(element.dataset.c ?? null);
    tell(element.dataset.c ?? null, element.dataset.cpu);
  };
  const release = () => {
    if (kept) return point(kept);
    light(null);
    tell(null);
  };
  const target = (event) => event.target.closest?.("[data-c], [data-cpu]") ?? null;

  document.addEventListener("pointerover", (event) => {
    const element = target(event);
    if (element && event.pointerType !== "touch") point(element);
    else if (!event.target.closest?.(".detail")) release();
  });
  document.documentElement.addEventListener("pointerleave", release);
  document.addEventListener("focusin", (event) => {
    const element = target(event);
    if (element) point(element);
  });
  document.addEventListener("focusout", release);
  const keep = (element) => {
    kept = kept === element ? null : element;
    if (kept) point(kept);
    else release();
  };
  document.addEventListener("click", (event) => {
    const element = target(event);
    if (element) keep(element);
    else if (kept && !event.target.closest("button, input, a, .detail")) keep(kept);
  });

  // ---- keys: one stop of the tab key for each picture and table, arrows inside

  const enter = (elements, chosen) => {
    for (const element of elements) element.tabIndex = -1;
    if (chosen) chosen.tabIndex = 0;
  };
  const shown = (body) => all("tr[tabindex]", body).filter((row) => row.offsetParent !== null);
  const rovers = () => [
    ...all(".machine").map((machine) => all(".cpu", machine)),
    ...all("tbody").map((body) => all("tr[tabindex]", body)),
  ];
  for (const elements of rovers()) enter(elements, elements[0]);

  const neighbours = (element) =>
    element.matches(".cpu") ? all(".cpu", element.closest(".machine")) : shown(element.closest("tbody"));
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      kept = null;
      light(null);
      tell(null);
      return;
    }
    const element = event.target;
    if (!element.matches?.(".cpu, tr[tabindex]")) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      keep(element);
    } else if (event.key in steps) {
      event.preventDefault();
      const row = neighbours(element);
      const next = row[Math.max(0, Math.min(row.length - 1, row.indexOf(element) + steps[event.key]))];
      enter(row, next);
      next.focus();
    }
  });

  // ---- sorting

  const collator = new Intl.Collator("en", { numeric: true });
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const compared = (one, other) => {
    if (typeof one === "number" && typeof other === "number") return one - other;
    return collator.compare(String(one), String(other));
  };

  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    const heads = all("th", table);
    const order = new Map(Array.from(body.rows).map((row, number) => [row, number]));
    heads.forEach((head, column) =>
      head.querySelector("button").addEventListener("click", () => {
        const isUp = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
        const keyed = Array.from(body.rows).map((row) => [valueOf(row, column), row]);
        keyed.sort(([one, row], [other, second]) => (isUp ? 1 : -1) * compared(one, other) || order.get(row) - order.get(second));
        body.append(...keyed.map(([, row]) => row));
        enter(all("tr[tabindex]", body), shown(body)[0]);
      }),
    );
  }

  // ---- filtering

  const box = document.getElementById("filter");
  const told = document.getElementById("filtered");
  const rows = all("#tables tbody tr").map((row) => [row, row.textContent.toLowerCase()]);
  const plural = (number, of) => (number === of ? `${of} row${of === 1 ? "" : "s"}` : `${number} of ${of} rows`);

  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const [row, text] of rows) {
      const isWanted = words.every((word) => text.includes(word));
      row.classList.toggle("filtered", !isWanted);
      count += isWanted;
    }
    told.textContent = words.length ? plural(count, rows.length) : "";
    for (const table of all("#tables table")) {
      const body = table.tBodies[0];
      const left = body.rows.length - all(".filtered", body).length;
      table.querySelector(".rows").textContent = plural(left, body.rows.length);
      enter(all("tr[tabindex]", body), shown(body)[0]);
    }
  };
  box.addEventListener("input", filter);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    box.value = "";
    filter();
  });
})();
