// What a training run has logged: one small chart per table row, any of them enlarged, sample answers at the step under the cursor. Same rules as viz.py.
export function gridOf(n, narrow) {                        // columns, rows
  const cols = n <= 1 ? 1 : narrow ? (n <= 8 ? 2 : 3) : n <= 4 ? 2 : n <= 9 ? 3 : 5;
  return [cols, Math.max(1, Math.ceil(n / cols))];
}
// The limits of an upright axis: zero where that costs less than half of the height.
export function limits(values) {
  const v = values.filter((x) => x !== null); if (!v.length) return [0, 1];
  let lo = Math.min(...v), hi = Math.max(...v);
  if (lo === hi) { if (lo === 0) return [0, 1]; const d = Math.abs(lo) / 2; return [lo - d, hi + d]; }
  if (lo > 0 && lo < hi / 2) lo = 0;
  return [lo, hi];
}
// Mean of what came before, an observation d steps back weighing exp(-d/scale); gaps stay gaps.
export function smoothed(steps, values, scale) {
  if (!(scale > 0)) return values;
  let num = 0, den = 0, last = null;
  return values.map((v, i) => {
    if (v === null) return null;
    const w = last === null ? 0 : Math.exp(-(steps[i] - last) / scale);
    num = w * num + v; den = w * den + 1; last = steps[i];
    return num / den;
  });
}
// The last value at or before a step, null when there is none.
export function valueAt(steps, values, at) {
  let a = 0, b = steps.length;
  while (a < b) { const m = (a + b) >> 1; if (steps[m] <= at) a = m + 1; else b = m; }
  for (let i = a - 1; i >= 0; i--) if (values[i] !== null) return values[i];
  return null;
}
// A number in at most six characters, three digits.
export function short(v) {
  if (v === null || v === undefined) return "–";
  const a = Math.abs(v), sign = v < 0 ? "−" : "", bare = (s) => s.replace(/^0\./, "."), power = (x) => x.toExponential(1).replace("e+", "e").replace(".0e", "e");
  const cut = (x) => { const s = x.toPrecision(3); return bare(s.includes(".") ? s.replace(/\.?0+$/, "") : s); };
  if (a === 0) return "0";
  return sign + (a >= 999.5e6 || a < .001 ? power(a) : a >= 999500 ? cut(a / 1e6) + "M" : a >= 9995 ? cut(a / 1e3) + "k" : a >= 999.5 ? String(Math.round(a)) : cut(a));
}
// Path of a line with gaps, and the points that stand alone. `stairs`: a count, which changes at a step and not between two.
export function trace(steps, values, X, Y, stairs = false) {
  let d = "", open = false; const alone = [];
  steps.forEach((s, i) => {
    const v = values[i]; if (v === null) { open = false; return; }
    const x = X(s).toFixed(1), y = Y(v).toFixed(1);
    d += open ? (stairs ? `H${x}V${y}` : `L${x} ${y}`) : `M${x} ${y}`;
    if (!open && (i + 1 >= steps.length || values[i + 1] === null)) alone.push([+x, +y]);
    open = true;
  });
  return [d, alone];
}
const DASHES = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 4", "5 2 1 2"];
const small = (size, more = "") => `font-size:${size}px;${more}`;

export function render({ model, el }) {
  const f = frame(el, model);
  let hover = null, cells = [], size = [760, 560, false], back = "all", shape = "", held = null;
  const runs = () => model.get("runs"), panels = () => model.get("panels"), many = () => runs().length > 1;
  const line = (r, key) => runs()[r].series[key] || [[], []];
  const known = () => { const s = new Set(); for (const r of runs()) for (const k in r.series) for (const x of r.series[k][0]) s.add(x); return [...s].sort((a, b) => a - b); };
  let all = known();
  const span = () => all.length ? [all[0], all[all.length - 1]] : [0, 1];
  const at = () => hover ?? (model.get("step") < 0 ? span()[1] : model.get("step"));
  const groups = () => [...new Set(panels().map((p) => p.group))];
  const shown = () => {
    const v = model.get("view"), one = panels().filter((p) => p.id === v), some = panels().filter((p) => p.group === v);
    return one.length ? one : some.length ? some : panels();
  };
  const colour = (r, j) => COLORS[(many() ? r : j) % 6], dash = (j) => many() ? DASHES[j % 8] : j < 6 ? "none" : "6 3";
  const visit = (p, see) => p.lines.forEach((l, j) => runs().forEach((_, r) => { const [s, v] = line(r, l.key); if (s.length) see(s, v, r, j, l); }));
  const zoom = (id) => { const v = model.get("view"); if (v === id) model.set("view", back === id ? "all" : back); else { back = v; model.set("view", id); } model.save_changes(); };
  function setStep(s) { const [a, b] = span(); model.set("step", s >= b ? -1 : Math.max(a, s)); model.save_changes(); }
  function walk(d) {                                       // to the next step that was logged
    const now = at(), i = d > 0 ? all.findIndex((s) => s > now) : all.findLastIndex((s) => s < now);
    if (i >= 0) setStep(all[i]);
  }
  const words = (p) => `${p.title}${p.unit ? ` [${p.unit}]` : ""} at step ${at()}: ` + (() => { const w = []; visit(p, (s, v, r, j, l) => w.push(`${many() ? runs()[r].name + " " : ""}${l.label} ${short(valueAt(s, v, at()))}`)); return w.join(", "); })();

  function cell(p, x0, y0, w, h, alone) {
    const g = node("g", { class: "dr-cell", tabindex: -1, role: "button", "data-panel": p.id, style: "cursor:pointer" }, f.svg);
    const big = w >= 180 && h >= 128, tiny = w < 140, table = alone && h >= 420, soft = "fill:var(--soft);", names = []; let lines = 0; visit(p, () => { lines++; });
    const top = table ? Math.round(Math.max(h * .5, Math.min(h - 34 - 18 * lines, h * .82))) : h;
    node("rect", { x: x0 + 2, y: y0 + 2, width: w - 4, height: h - 4, rx: 7, fill: "var(--wash)" }, g);
    node("rect", { class: "dr-ring", x: x0 + 3, y: y0 + 3, width: w - 6, height: h - 6, rx: 6 }, g);
    const title = node("text", { x: x0 + 9, y: y0 + (big ? 20 : 16), style: small(big ? 13 : tiny ? 10 : 11, "font-weight:600") }, g, p.title);
    const unit = big && p.unit ? node("text", { x: x0 + 16 + title.getComputedTextLength(), y: y0 + 20, style: small(11) + soft }, g, p.unit) : null;
    if (unit && title.getComputedTextLength() + unit.getComputedTextLength() + 24 > w) unit.textContent = "";
    const mark = node("text", { x: x0 + w - 9, y: y0 + (big ? 20 : 16), "text-anchor": "end", style: small(11) + soft }, g);
    // Names of the lines, in rows under the title
    let y = y0 + 36;
    if (big && !table) {
      let x = x0 + 10;
      p.lines.forEach((l, j) => {
        const t = node("text", { style: small(11) }, g, l.label), wide = 19 + t.getComputedTextLength() + (many() ? 8 : 46);
        if (x + wide > x0 + w - 4 && x > x0 + 10) { x = x0 + 10; y += 14; }
        if (many() ? p.lines.length > 1 : true) { node("line", { x1: x, x2: x + 14, y1: y - 4, y2: y - 4, stroke: many() ? "var(--ink)" : colour(0, j), "stroke-width": 2.4, "stroke-dasharray": dash(j) }, g); put(t, { x: x + 18, y }); names.push([t, l, j]); x += wide; }
        else { t.remove(); y -= 14; }
      });
      y += 8;
    }
    const box = { l: x0 + (big ? 50 : 40), r: x0 + w - 10, t: big ? (table ? y0 + 34 : y) : y0 + 25, b: y0 + top - (big ? 24 : 9) };
    const values = []; visit(p, (s, v) => values.push(...v));
    const [lo, hi] = limits(values), [a, b] = span();
    const X = (s) => b === a ? (box.l + box.r) / 2 : box.l + (s - a) / (b - a) * (box.r - box.l), Y = (v) => box.b - (v - lo) / (hi - lo) * (box.b - box.t);
    for (const [v, k] of [[hi, 0], ...(big ? [[(lo + hi) / 2, 1]] : []), [lo, 2]]) {
      node("line", { x1: box.l, x2: box.r, y1: Y(v), y2: Y(v), stroke: "var(--edge)", "stroke-width": .6, opacity: k === 2 ? 1 : .55 }, g);
      node("text", { x: box.l - 4, y: Y(v) + (k === 0 ? 7 : k === 1 ? 4 : 1), "text-anchor": "end", style: small(big ? 11 : 9.5) + soft }, g, short(v));
    }
    if (big) [[a, "start", box.l], [b, "end", box.r]].forEach(([s, anchor, x], i) => { if (i === 0 || b !== a) node("text", { x, y: box.b + 15, "text-anchor": anchor, style: small(11) + soft }, g, i || b === a ? `step ${s}` : s); });
    const draw = (s, v, r, j, faint) => {
      const [d, dots] = trace(s, v, X, Y, p.stairs), look = { stroke: colour(r, j), opacity: faint ? .28 : 1 };
      node("path", { class: faint ? "dr-raw" : "dr-trace", "data-key": p.lines[j].key, "data-run": r, d, fill: "none", "stroke-width": faint ? 1 : big ? 2 : 1.5, "stroke-linejoin": "round", "stroke-dasharray": dash(j), ...look }, g);
      for (const [cx, cy] of dots) node("circle", { cx, cy, r: big ? 3 : 2, fill: colour(r, j), opacity: look.opacity }, g);
    };
    const scale = model.get("smooth");
    if (scale > 0 && !p.stairs) visit(p, (s, v, r, j) => draw(s, v, r, j, true));
    visit(p, (s, v, r, j) => draw(s, p.stairs ? v : smoothed(s, v, scale), r, j, false));
    if (!values.some((v) => v !== null)) node("text", { x: (box.l + box.r) / 2, y: (box.t + box.b) / 2 + 4, "text-anchor": "middle", style: small(11) + soft }, g, "no finite value");
    const cursor = node("line", { class: "dr-cursor", y1: box.t, y2: box.b, stroke: "var(--ink)", "stroke-width": 1, opacity: .55, "pointer-events": "none" }, g);
    const rows = table ? valueTable(p, g, x0 + 12, y0 + top + 16, w - 24, y0 + h - 8) : [];
    function read() {
      const s = at(); put(cursor, { x1: X(s), x2: X(s), visibility: all.length > 1 ? "visible" : "hidden" });
      for (const [t, l, j] of names) t.textContent = many() ? l.label : `${l.label} ${short(valueAt(...line(0, l.key), s))}`;
      mark.textContent = big ? `step ${s}` : many() ? "" : short(valueAt(...line(0, p.lines[0].key), s));
      if (title.getComputedTextLength() + (unit ? unit.getComputedTextLength() + 7 : 0) + mark.getComputedTextLength() + 26 > w) mark.textContent = "";
      rows.forEach((o) => o(s)); put(g, { "aria-label": `${words(p)}; Enter ${alone ? "goes back" : "enlarges"}, arrow keys change step and chart` });
    }
    g.addEventListener("click", () => zoom(p.id)); g.addEventListener("focus", () => { held = p.id; stop(); });
    g.addEventListener("keydown", (ev) => {
      if (ev.ctrlKey || ev.metaKey || ev.altKey) return;
      if (ev.key === "Enter" || ev.key === " ") zoom(p.id);
      else if (ev.key === "ArrowLeft" || ev.key === "ArrowRight") { walk(ev.key === "ArrowLeft" ? -1 : 1); f.say(words(p)); }
      else if (ev.key === "ArrowUp" || ev.key === "ArrowDown") { const i = cells.findIndex((c) => c.id === p.id) + (ev.key === "ArrowUp" ? -1 : 1); if (cells[i]) cells[i].g.focus(); }
      else if (ev.key === "Escape" && alone) zoom(p.id);
      else return;
      ev.preventDefault();
    });
    g.addEventListener("pointermove", (ev) => {
      if (ev.pointerType !== "mouse" || b === a) return;
      const q = new DOMPoint(ev.clientX, ev.clientY).matrixTransform(f.svg.getScreenCTM().inverse());
      const s = a + (q.x - box.l) / (box.r - box.l) * (b - a); hover = all.reduce((m, o) => Math.abs(o - s) < Math.abs(m - s) ? o : m, all[0]); reading();
    });
    return { g, read, id: p.id };
  }
  // Under an enlarged chart: each line's value at the cursor, first, last, lowest and highest
  function valueTable(p, g, x, y, w, bottom) {
    const narrow = size[2], heads = narrow ? ["now", "lowest", "highest"] : ["at the cursor", "first", "last", "lowest", "highest"], first = narrow ? w * .46 : w * .36, each = (w - first) / heads.length, out = [];
    heads.forEach((t, i) => node("text", { x: x + first + each * (i + 1), y, "text-anchor": "end", style: small(11) + "fill:var(--soft)" }, g, t));
    let left = 0;
    visit(p, (s, v, r, j, l) => {
      y += 18; if (y > bottom) { left++; return; }
      node("line", { x1: x, x2: x + 18, y1: y - 4, y2: y - 4, stroke: colour(r, j), "stroke-width": 2.6, "stroke-dasharray": dash(j) }, g);
      const t = node("text", { x: x + 24, y, style: small(12) }, g, many() ? `${runs()[r].name}: ${l.label}` : l.label);
      while (t.getComputedTextLength() > first - 20 && t.textContent.length > 4) t.textContent = t.textContent.slice(0, -2) + "…";
      const real = v.filter((o) => o !== null), put4 = heads.map((_, i) => node("text", { x: x + first + each * (i + 1), y, "text-anchor": "end", style: small(12, "font-variant-numeric:tabular-nums") }, g));
      const set = real.length ? [real[0], real[real.length - 1], Math.min(...real), Math.max(...real)] : [null, null, null, null];
      (narrow ? set.slice(2) : set).forEach((o, i) => { put4[i + 1].textContent = short(o); });
      out.push((at) => { put4[0].textContent = short(valueAt(s, v, at)); });
    });
    if (left) node("text", { x, y: bottom + 2, style: small(11) + "fill:var(--soft)" }, g, `and ${left} more`);
    return out;
  }
  const stop = () => { const one = cells.find((c) => c.id === held) || cells[0]; cells.forEach((c) => put(c.g, { tabindex: c === one ? 0 : -1 })); };   // the charts are one stop of the Tab key
  function reading() { cells.forEach((c) => c.read()); told(); answers(); }
  function draw() {
    const [w, h, narrow] = size, list = shown(), [cols, rows] = gridOf(list.length, narrow), had = document.activeElement?.closest?.(".dr-cell"), focus = had && f.svg.contains(had) ? had.dataset.panel : null;
    f.svg.replaceChildren();
    if (!list.length) { node("text", { x: w / 2, y: h / 2, "text-anchor": "middle", style: small(14) + "fill:var(--soft)" }, f.svg, "Nothing logged yet"); cells = []; told(); answers(); return; }
    cells = list.map((p, i) => cell(p, (i % cols) * w / cols, Math.floor(i / cols) * h / rows, w / cols, h / rows, list.length === 1));
    stop();
    reading();
    if (focus) (cells.find((c) => c.id === focus) || cells[0]).g.focus({ preventScroll: true });
  }
  f.svg.addEventListener("pointerleave", () => { if (hover !== null) { hover = null; reading(); } });

  // ---- controls
  const pick = select(f, model, "view", "show", {}); pick.style.width = "clamp(128px, 24cqw, 180px)";
  function options() {
    const o = [["all", "everything"], ...groups().map((g) => [g, g]), ...panels().map((p) => [p.id, "· " + p.title])], now = JSON.stringify(o);
    if (now === shape) return;
    shape = now; pick.replaceChildren(); for (const [v, t] of o) node("option", { value: v }, pick, t);
    pick.value = model.get("view"); if (!pick.value) pick.value = "all";
  }
  const calm = slider(f, model, "smooth", "smoothing", { min: 0, max: 50, step: 1, show: (v) => v > 0 ? `${v} steps` : "off" }); calm.style.width = "70px";
  const l = node("label", { class: "dr-grow", style: "flex-basis:130px" }, f.panel, "step"), time = node("input", { type: "range", step: 1, "aria-label": "training step" }, l), out = node("output", {}, l);
  const timing = () => { const [a, b] = span(); put(time, { min: a, max: b }); const s = at(); if (hover === null) time.value = s; out.value = s; time.setAttribute("aria-valuetext", String(s)); };
  time.addEventListener("input", () => setStep(+time.value)); time.addEventListener("change", () => { const p = shown(); f.say(p.length === 1 ? words(p[0]) : `Step ${at()}`); });
  const legend = node("div", { class: "dr-line dr-runs" }, f.panel), box = node("div", { class: "dr-samples", tabindex: 0, role: "region", "aria-label": "sample answers" }, f.panel);
  legend.style.overflow = "hidden";
  box.style.cssText = "flex:1 0 100%;overflow:auto;border:1px solid var(--edge);border-radius:7px;padding:6px 10px;font-size:13px;overflow-wrap:anywhere";
  function told() {
    timing(); legend.replaceChildren();
    runs().forEach((r, i) => {
      const s = node("span", { style: `display:inline-flex;align-items:center;gap:6px;padding-right:12px;height:22px;vertical-align:top;max-width:${100 / Math.min(size[2] ? 2 : 4, runs().length + (model.get("hidden").length ? 1 : 0))}%` }, legend);
      if (many()) node("span", { style: `flex:none;width:16px;height:4px;border-radius:2px;background:${COLORS[i % 6]}` }, s);
      node("span", { style: "overflow:hidden;text-overflow:ellipsis;white-space:nowrap" }, s, `${r.name ? r.name + " · " : "step "}${r.last === null ? "nothing logged yet" : `${r.last}${r.total ? ` of ${r.total}` : ""}`}`.replace("step nothing", "nothing"));
    });
    const n = model.get("hidden").length; if (n) node("span", { title: model.get("hidden").join(", ") , style: "line-height:22px" }, legend, `${n} key${n > 1 ? "s" : ""} without a panel`);
  }
  function answers() {
    const s = at(), list = model.get("samples"), now = runs().map((_, r) => { const t = list.filter((o) => o.run === r && o.step <= s).map((o) => o.step); return t.length ? Math.max(...t) : null; });
    const see = list.filter((o) => o.step === now[o.run]), key = JSON.stringify(see.map((o) => [o.run, o.step, o.text.length])) + list.length;
    if (box.dataset.key === key) return;
    box.dataset.key = key; box.replaceChildren(); box.scrollTop = 0;
    if (!see.length) node("div", { style: "color:var(--soft)" }, box, list.length ? `No sample answers up to step ${s}` : "No sample answers were kept");
    let asked = null;
    for (const o of see) {
      const head = `${many() ? runs()[o.run].name + " · " : ""}${o.about || `step ${o.step}`}`;
      if (asked !== head + o.prompt) { node("div", { class: "dr-prompt", style: "color:var(--soft);margin-top:2px" }, box, `${head} · ${o.prompt}`); asked = head + o.prompt; }
      const row = node("div", { class: "dr-sample", style: "display:flex;gap:10px;margin:3px 0" }, box);
      if (o.reward !== null) node("span", { style: "flex:none;min-width:3.2em;text-align:right;font-variant-numeric:tabular-nums;font-weight:600", title: "reward" }, row, short(o.reward));
      node("span", { style: "white-space:pre-wrap;font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:12px" }, row, o.text);
    }
  }
  function rooms() { const room = model.get("room"), k = size[2] ? 2 : 0; legend.style.height = room[k] + "px"; box.style.height = room[k + 1] + "px"; box.style.display = room[k + 1] ? "" : "none"; }
  const fresh = () => { all = known(); hover = null; options(); draw(); };
  options();
  for (const k of ["runs", "panels"]) model.on("change:" + k, fresh);
  for (const k of ["view", "smooth"]) model.on("change:" + k, draw);
  for (const k of ["step", "samples", "hidden"]) model.on("change:" + k, reading);
  model.on("change:room", rooms);
  const ends = [fit(f, (w, h, narrow) => { size = [w, h, narrow]; const room = model.get("room"); rooms(); draw(); }), follow(f, () => {})];
  return () => ends.forEach((e) => e());
}
