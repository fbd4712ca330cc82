// SPDX-License-Identifier: BSD-3-Clause
// Draws the figures of the workload that is chosen, from the data in the page.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = new Map(data.rows.map((row) => [row.name, row]));
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 440, HEIGHT = 230, LEFT = 58, RIGHT = 20, TOP = 8, BOTTOM = 34, LINE = 13;

  function make(parent, name, attributes = {}, text = "") {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== "") element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  function add(parent, name, text = "", className = "") {
    const element = document.createElement(name);
    if (text !== "") element.textContent = text;
    if (className) element.className = className;
    parent.appendChild(element);
    return element;
  }

  const short = (value) => value === null ? "–" : String(Number(value.toPrecision(4)));
  const known = (values) => values.filter((value) => value !== null && value !== undefined);

  // Round numbers from low to high, about count of them.
  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at++) found.push(at * step);
    return found;
  }

  function figure(parent, caption) {
    const box = add(parent, "figure");
    add(box, "figcaption", caption);
    return make(box, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", "aria-label": caption });
  }

  // Axes with a grid; returns the scales. marks: of each axis, value and text, by turns on so many lines.
  function frame(svg, x, y, xLabel) {
    const sx = (value) => LEFT + (x.scale(value) - x.scale(x.low)) / (x.scale(x.high) - x.scale(x.low) || 1) * (WIDTH - LEFT - RIGHT);
    const sy = (value) => HEIGHT - BOTTOM - (y.scale(value) - y.scale(y.low)) / (y.scale(y.high) - y.scale(y.low) || 1) * (HEIGHT - TOP - BOTTOM);
    for (const value of y.marks) {
      make(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: sy(value), y2: sy(value), stroke: "#e6e6e6" });
      make(svg, "text", { x: LEFT - 6, y: sy(value) + 4, "text-anchor": "end" }, short(value));
    }
    make(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, stroke: "#333" });
    x.marks.forEach(([value, text], at) => {
      make(svg, "line", { x1: sx(value), x2: sx(value), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, stroke: "#333" });
      make(svg, "text", { x: sx(value), y: HEIGHT - BOTTOM + 16 + at % (x.lines || 1) * LINE, "text-anchor": "middle" }, text);
    });
    if (xLabel) make(svg, "text", { x: WIDTH - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, xLabel);
    return [sx, sy];
  }

  const linear = (low, high) => ({ low, high, scale: (value) => value, marks: ticks(low, high, 5) });

  function style(system) {
    const { colour, dash } = data.systems[system.id];
    return { stroke: colour, "stroke-dasharray": dash.map((length) => length * 1.6).join(" ") };
  }

  function hint(element, text) {
    make(element, "title", {}, text);
  }

  function bars(parent, row, index) {
    const metric = data.metrics[row.metrics[index]];
    const systems = row.systems.filter((system) => system.means[index]);
    const several = systems.some((system) => system.means[index][1] !== null);
    const svg = figure(parent, `${metric.title} (${metric.unit})` + (several ? ", mean and 95 % interval" : systems.some((system) => system.n > 1) ? ", mean" : ", a single run"));
    if (!systems.length) return;
    const top = Math.max(1e-9, ...systems.flatMap((system) => known([system.means[index][0], system.means[index][2]])));
    const names = systems.map((system) => data.systems[system.id].title);
    const lines = Math.ceil(7 * Math.max(...names.map((name) => name.length)) * systems.length / (WIDTH - LEFT - RIGHT));
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT + LINE * Math.max(0, lines - 2)}`);
    const x = { low: 0, high: systems.length, scale: (value) => value, marks: names.map((name, at) => [at + 0.5, name]), lines };
    const [sx, sy] = frame(svg, x, linear(0, top * 1.05), "");
    const half = Math.min(34, 0.3 * (sx(1) - sx(0))), said = [];
    systems.forEach((system, at) => {
      const [value, low, high] = system.means[index];
      const middle = sx(at + 0.5);
      const bar = make(svg, "rect", { x: middle - half, width: 2 * half, y: sy(value), height: Math.max(0, sy(0) - sy(value)), fill: data.systems[system.id].colour, opacity: 0.85 });
      const difference = system.differences[index];
      let text = `${data.systems[system.id].title}: ${short(value)} ${metric.unit}`;
      if (low !== null) text += ` [${short(low)}, ${short(high)}]`;
      if (difference) text += `, ${difference[0] > 0 ? "+" : ""}${short(difference[0])} ${metric.points ? "points" : "%"} to native`;
      hint(bar, `${text}, n = ${system.n}`);
      said.push(text);
      if (low === null) return;
      const ends = [Math.max(0, low), high];
      make(svg, "line", { x1: middle, x2: middle, y1: sy(ends[0]), y2: sy(ends[1]), stroke: "#000" });
      for (const end of ends) make(svg, "line", { x1: middle - 6, x2: middle + 6, y1: sy(end), y2: sy(end), stroke: "#000" });
    });
    svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: ${said.join("; ")}`);
  }

  // A path through points, begun again after each gap.
  function path(points) {
    let out = "", pen = "M";
    for (const point of points) {
      if (point === null) pen = "M";
      else { out += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`; pen = "L"; }
    }
    return out;
  }

  function overTime(parent, row, name, caption) {
    const systems = row.systems.filter((system) => system[name] && known(system[name]).length);
    const svg = figure(parent, caption + (systems.some((system) => system[`${name}_low`]) ? ": mean and range of the runs" : ""));
    if (!systems.length) { make(svg, "text", { x: LEFT, y: 40 }, "no series"); return; }
    const last = Math.max(...systems.map((system) => system.step * system[name].length));
    const top = Math.max(1e-9, ...systems.flatMap((system) => known([...system[name], ...(system[`${name}_high`] || [])])));
    const x = { low: 0, high: last, scale: (value) => value, marks: ticks(0, last, 6).map((value) => [value, short(value)]) };
    const [sx, sy] = frame(svg, x, linear(0, top * 1.05), "s");
    const said = [];
    for (const system of systems) {
      const at = (value, step) => value === null ? null : [sx(system.step * (step + 1)), sy(value)];
      const low = system[`${name}_low`], high = system[`${name}_high`];
      if (low) {
        const up = high.map(at), down = low.map(at);
        const kept = up.map((_, step) => step).filter((step) => up[step] && down[step]);
        const outline = [...kept.map((step) => up[step]), ...kept.reverse().map((step) => down[step])];
        make(svg, "path", { d: path(outline) + "Z", fill: data.systems[system.id].colour, opacity: 0.12 });
      }
      const line = make(svg, "path", { d: path(system[name].map(at)), fill: "none", "stroke-width": 1.8, ...style(system) });
      hint(line, data.systems[system.id].title);
      const values = known(system[name]);
      said.push(`${data.systems[system.id].title}: ${short(Math.min(...values))} to ${short(Math.max(...values))}`);
      if (system[name].length < 12) {
        for (const point of system[name].map(at)) if (point) make(svg, "circle", { cx: point[0], cy: point[1], r: 2.5, fill: data.systems[system.id].colour });
      }
    }
    svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: ${said.join("; ")}`);
  }

  function spread(parent, row) {
    const systems = row.systems.filter((system) => system.spread && known(system.spread).length);
    const svg = figure(parent, "Latency (µs) by percentile, all operations of all runs");
    if (!systems.length) { make(svg, "text", { x: LEFT, y: 40 }, "no histogram"); return; }
    const values = systems.flatMap((system) => known(system.spread)).map((value) => Math.max(value, 1e-3));
    const low = 10 ** Math.floor(Math.log10(Math.min(...values))), high = 10 ** Math.ceil(Math.log10(Math.max(...values)));
    const marks = [];
    for (let value = low; value <= high * 1.001; value *= 10) marks.push(value);
    const far = (percent) => 100 / (100 - percent);
    const x = { low: 1, high: 1e4, scale: Math.log10, marks: [0, 90, 99, 99.9, 99.99].map((percent) => [far(percent), String(percent)]) };
    const [sx, sy] = frame(svg, x, { low, high: high > low ? high : low * 10, scale: Math.log10, marks }, "percentile");
    for (const system of systems) {
      const points = system.spread.map((value, at) => value === null ? null : [sx(far(data.percents[at])), sy(Math.max(value, 1e-3))]);
      hint(make(svg, "path", { d: path(points), fill: "none", "stroke-width": 1.8, ...style(system) }), data.systems[system.id].title);
    }
  }

  function percentiles(parent, row) {
    const systems = row.systems.filter((system) => system.percentiles);
    if (!systems.length) return;
    const table = add(parent, "table", "", "list");
    const head = add(add(table, "thead"), "tr");
    for (const text of ["Latency (µs)", ...data.shown.map((percent) => `p${percent}`)]) add(head, "th", text).scope = "col";
    const body = add(table, "tbody");
    for (const system of systems) {
      const line = add(body, "tr");
      add(line, "th", data.systems[system.id].title).scope = "row";
      for (const value of system.percentiles) add(line, "td", short(value), "number");
    }
    add(parent, "p", "Percentiles of the merged histograms of all valid runs; – where fewer than ten operations lie beyond.", "soft");
  }

  const select = document.getElementById("row"), cell = document.getElementById("cell");

  function show(name) {
    const row = rows.get(name);
    if (!row) return;
    select.value = name;
    cell.replaceChildren();
    add(cell, "h3", row.title);
    const key = add(cell, "div", "", "key");
    for (const system of row.systems) {
      const one = add(key, "span");
      const line = make(one, "svg", { width: 34, height: 10, "aria-hidden": "true" });
      make(line, "line", { x1: 0, x2: 34, y1: 5, y2: 5, "stroke-width": 2.5, ...style(system) });
      one.append(data.systems[system.id].title);
    }
    const charts = add(cell, "div", "", "charts");
    row.metrics.forEach((_, index) => bars(charts, row, index));
    overTime(charts, row, "kops", "Throughput (kop/s) over time");
    overTime(charts, row, "us", "Latency (µs) over time");
    spread(charts, row);
    percentiles(cell, row);
    for (const kind of ["svg", "png"]) {
      const link = document.getElementById(kind);
      link.href = link.href.replace(/[^/]*$/, `${name}.${kind}`);
    }
  }

  function go(step) {
    const at = select.selectedIndex + step;
    if (at >= 0 && at < data.rows.length) location.hash = `cell=${data.rows[at].name}`;
  }

  function follow() {
    const wanted = location.hash.match(/^#cell=(.+)$/);
    if (!wanted) return;
    show(decodeURIComponent(wanted[1]));
    document.getElementById("cells").scrollIntoView();
  }

  for (const row of data.rows) {
    const option = add(select, "option", row.title);
    option.value = row.name;
  }
  select.addEventListener("change", () => { location.hash = `cell=${select.value}`; });
  document.getElementById("previous").addEventListener("click", () => go(-1));
  document.getElementById("next").addEventListener("click", () => go(1));
  document.getElementById("ci").addEventListener("change", (event) => document.body.classList.toggle("plain", !event.target.checked));
  document.querySelectorAll("rect.cell").forEach((rect) => rect.addEventListener("click", () => { location.hash = `cell=${rect.dataset.name}`; }));
  window.addEventListener("hashchange", follow);
  if (data.rows.length) show(data.rows[0].name);
  follow();
  document.body.dataset.ready = "true";
})();
