"use strict";
(() => {
  const root = document.documentElement, tip = document.getElementById("tip");
  const PAGE = 100;

  // light or dark: the system's choice until the reader makes one
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paint = () => { root.dataset.theme = chosen || (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", paint);
  paint();
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    paint();
  });

  // what a mark stands for, at the pointer
  document.addEventListener("pointermove", (e) => {
    const mark = e.target instanceof Element && e.target.closest("[data-t]");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.t;
    const x = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = e.clientY + 18 + tip.offsetHeight > innerHeight ? e.clientY - tip.offsetHeight - 12 : e.clientY + 18;
    tip.style.left = Math.max(8, x) + "px";
    tip.style.top = Math.max(8, y) + "px";
  });

  const units = ["B", "kB", "MB", "GB", "TB"];
  const bytes = (v) => {
    let at = 0;
    while (v >= 1000 && at + 1 < units.length) { v /= 1000; at += 1; }
    return (at === 0 || v >= 100 ? v.toFixed(0) : v.toPrecision(3)) + " " + units[at];
  };
  const shown = {
    text: (v) => String(v),
    share: (v) => (100 * v).toFixed(1) + " %",
    number: (v) => (v === 0 ? "0" : Math.abs(v) < 1000 ? String(Number(v.toPrecision(3))) : Math.round(v).toLocaleString("en")),
    index: (v) => v.toFixed(2),
    count: (v) => v.toLocaleString("en"),
    bytes,
    seconds: (v) => (v < 1 ? (1000 * v).toFixed(0) + " ms" : v < 120 ? v.toFixed(1) + " s" : (v / 60).toFixed(1) + " min"),
    cluster: (v) => String(v),
  };
  const value = (cell) => (cell !== null && typeof cell === "object" ? cell.v : cell);
  const words = (cell, kind) => (cell !== null && typeof cell === "object" && cell.s !== undefined ? cell.s
    : value(cell) === null ? "–" : shown[kind](value(cell)));
  const natural = new Intl.Collator("en", { numeric: true });

  const off = { method: new Set(), seed: new Set(), scenario: new Set() };
  const hiddenBy = (tags) => Object.entries(tags || {}).some(([kind, of]) => off[kind] && off[kind].has(of));
  let redraws = [];

  function setUpTable(card) {
    const spec = JSON.parse(card.querySelector("script").textContent);
    const head = card.querySelector("thead"), body = card.querySelector("tbody"), more = card.querySelector(".more");
    const search = card.querySelector("input"), count = card.querySelector(".count"), csv = card.querySelector("[data-csv]");
    let by = spec.sort, falling = spec.falling, room = PAGE;
    const all = spec.rows.map((row, i) => ({ row, tags: spec.tags[i], text: row.map((c, j) => words(c, spec.columns[j].kind)).join(" ").toLowerCase() }));
    const order = (a, b) => {
      const x = value(a.row[by]), y = value(b.row[by]);
      if (x === null || y === null) return (x === null) - (y === null);
      const d = typeof x === "number" && typeof y === "number" ? x - y : natural.compare(x, y);
      return falling ? -d : d;
    };
    const found = () => {
      const asked = search ? search.value.trim().toLowerCase().split(/\s+/) : [];
      return all.filter((r) => !hiddenBy(r.tags) && asked.every((w) => r.text.includes(w))).sort(order);
    };
    function draw() {
      const rows = found();
      const line = document.createElement("tr");
      spec.columns.forEach((c, j) => {
        const th = document.createElement("th");
        th.textContent = c.label;
        th.tabIndex = 0;
        if (c.hint) th.dataset.t = c.hint;
        if (c.kind === "text") th.className = "text";
        if (j === by) th.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const sort = () => { falling = j === by ? !falling : c.kind !== "text" && c.kind !== "cluster"; by = j; draw(); };
        th.addEventListener("click", sort);
        th.addEventListener("keydown", (e) => { if (e.key === "Enter") sort(); });
        line.append(th);
      });
      head.replaceChildren(line);
      body.replaceChildren(...rows.slice(0, room).map(({ row }) => {
        const tr = document.createElement("tr");
        row.forEach((cell, j) => {
          const td = document.createElement("td"), kind = spec.columns[j].kind;
          if (kind === "text") td.className = String(value(cell)).length > 40 ? "text" : "text short";
          if (cell !== null && typeof cell === "object" && cell.c) td.className += " " + cell.c;
          if (kind === "cluster" && value(cell) !== null) {
            const pill = document.createElement("span");
            pill.className = "pill c" + (value(cell) % 10);
            pill.textContent = words(cell, kind);
            td.append(pill);
          } else td.textContent = words(cell, kind);
          tr.append(td);
        });
        return tr;
      }));
      more.hidden = rows.length <= room;
      more.textContent = "Show " + Math.min(PAGE * 5, rows.length - room) + " more of " + (rows.length - room).toLocaleString("en");
      if (count) count.textContent = rows.length === all.length ? "" : rows.length.toLocaleString("en") + " of " + all.length.toLocaleString("en");
    }
    more.addEventListener("click", () => { room += PAGE * 5; draw(); });
    if (search) search.addEventListener("input", () => { room = PAGE; draw(); });
    if (csv) csv.addEventListener("click", () => {
      const quoted = (v) => '"' + String(v === null ? "" : v).replaceAll('"', '""') + '"';
      const lines = [spec.columns.map((c) => quoted(c.label)), ...found().map((r) => r.row.map((c) => quoted(value(c))))];
      hand(new Blob([lines.map((l) => l.join(",")).join("\n") + "\n"], { type: "text/csv" }), csv.dataset.csv);
    });
    redraws.push(draw);
    draw();
  }

  function hand(blob, name) {
    const a = document.createElement("a");
    a.href = URL.createObjectURL(blob);
    a.download = name;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  }

  // a figure on its own, with the colours that it has now
  function alone(svg) {
    const copy = svg.cloneNode(true);
    const mine = svg.querySelectorAll("*"), theirs = copy.querySelectorAll("*");
    const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "image-rendering"];
    mine.forEach((el, i) => {
      const style = getComputedStyle(el);
      theirs[i].setAttribute("style", kept.map((k) => k + ":" + style.getPropertyValue(k)).join(";"));
      theirs[i].removeAttribute("class");
      theirs[i].removeAttribute("data-t");
    });
    const box = svg.viewBox.baseVal;
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    return { text: new XMLSerializer().serializeToString(copy), width: box.width, height: box.height };
  }
  function save(button) {
    const figure = button.closest("figure");
    const name = figure.querySelector("h3").textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-") || "figure";
    const { text, width, height } = alone(figure.querySelector("svg"));
    const svg = new Blob([text], { type: "image/svg+xml" });
    if (button.dataset.save === "svg") return hand(svg, name + ".svg");
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = 2 * width;
      canvas.height = 2 * height;
      const on = canvas.getContext("2d");
      on.fillStyle = getComputedStyle(figure).backgroundColor;
      on.fillRect(0, 0, canvas.width, canvas.height);
      on.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((png) => hand(png, name + ".png"));
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  }

  function applyFilters() {
    document.querySelectorAll("[data-method],[data-seed],[data-scenario]").forEach((el) => {
      if (!el.dataset.table) el.classList.toggle("off", hiddenBy({ method: el.dataset.method, seed: el.dataset.seed, scenario: el.dataset.scenario }));
    });
    redraws.forEach((draw) => draw());
  }

  function setUp() {
    redraws = [];
    document.querySelectorAll("[data-table]").forEach(setUpTable);
    document.querySelectorAll("[data-save]").forEach((b) => b.addEventListener("click", () => save(b)));
    document.querySelectorAll(".chip").forEach((chip) => chip.addEventListener("click", () => {
      const set = off[chip.dataset.filter], of = chip.dataset.of;
      if (!set.delete(of)) set.add(of);
      chip.classList.toggle("on", !set.has(of));
      applyFilters();
    }));
  }
  setUp();

  // served while a run goes on: the page looks whether there is a new round
  async function follow() {
    const page = document.getElementById("page");
    if (page.dataset.live === "") return;
    try {
      const at = await (await fetch("round", { cache: "no-store" })).text();
      if (at !== page.dataset.live) {
        const fresh = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
        page.replaceWith(document.adoptNode(fresh.getElementById("page")));
        document.querySelector("nav").replaceWith(document.adoptNode(fresh.querySelector("nav")));
        tip.hidden = true;
        setUp();
      }
    } catch { return; } // the run is over and its server gone: what is on the page stays
    setTimeout(follow, 1000);
  }
  follow();
})();
