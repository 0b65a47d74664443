// uses: simplex
// Answers as points, weights on the simplex, and for each weight vector the best answer. Same formulas and letters as sets.py and pareto.py.
const TIE = 1e-12, dot = (a, b) => a.reduce((s, v, d) => s + v * b[d], 0);
export const UTILITIES = {
  linear: dot,
  chebyshev: (r, w) => Math.max(...w) - Math.max(...r.map((v, d) => w[d] * (1 - v))),
};
// The first best of the members for weights w, and its worth; of no members -1 and 0.
export function bestOf(vectors, members, w, utility) {
  const u = members.map((i) => UTILITIES[utility](vectors[i], w)), top = Math.max(...u);
  return members.length ? [members[u.findIndex((v) => v >= top - TIE)], top] : [-1, 0];
}
// Node by node: which member is best, what it is worth, and the mean so far, which is the set reward of the nodes so far.
export function fill(vectors, members, nodes, utility) {
  const best = [], value = [], mean = []; let sum = 0;
  nodes.forEach((w, k) => { const [i, v] = bestOf(vectors, members, w, utility); best.push(i); value.push(v); mean.push((sum += v) / (k + 1)); });
  return { best, value, mean };
}
// Mean over the nodes of the expected best of m draws without replacement from a pool, counts[j] times members[j].
export function drawsReward(vectors, members, counts, nodes, utility, m) {
  const n = counts.reduce((a, b) => a + b, 0), draws = Math.min(m, n);
  const below = (c) => { let p = 1; for (let j = 0; j < draws; j++) p *= Math.max(0, c - j) / (n - j); return p; };
  let sum = 0;
  for (const w of nodes) {
    const u = members.map((i, j) => [UTILITIES[utility](vectors[i], w), counts[j]]).sort((a, b) => a[0] - b[0]); let c = 0, was = 0;
    for (const [v, many] of u) { c += many; const p = below(c); sum += v * (p - was); was = p; }
  }
  return n ? sum / nodes.length : 0;
}
// One weight set by hand, the others in their old proportions (equal ones where there was nothing left).
export function moved(w, d, value) {
  const v = Math.min(1, Math.max(0, value)), rest = w.reduce((s, o, i) => s + (i === d ? 0 : o), 0);
  return w.map((o, i) => i === d ? v : rest > 1e-9 ? o * (1 - v) / rest : (1 - v) / (w.length - 1));
}
// Where along a line of weights at(t) changes between two places: by bisection.
function change(at, from, to, steps = 40) {
  const was = at(from);
  for (let i = 0; i < steps; i++) { const mid = (from + to) / 2; if (at(mid) === was) from = mid; else to = mid; }
  return (from + to) / 2;
}
function pieces(at, ts, steps) {                          // [[answer, from, to], ...] along sorted places
  const mids = ts.slice(1).map((t, i) => (t + ts[i]) / 2), out = []; let start = ts[0];
  mids.forEach((t, i) => { if (i && at(t) !== at(mids[i - 1])) { const c = change(at, mids[i - 1], t, steps); out.push([at(mids[i - 1]), start, c]); start = c; } });
  out.push([at(mids[mids.length - 1]), start, ts[ts.length - 1]]);
  return out;
}
// Cells on a segment, as intervals of the second weight.
export function intervals(vectors, members, utility) {
  const at = (t) => bestOf(vectors, members, [1 - t, t], utility)[0], ts = Array.from({ length: 129 }, (_, i) => i / 128);
  for (const i of members) for (const j of members) {
    const a = vectors[i][0] - vectors[j][0], t = a / (a - vectors[i][1] + vectors[j][1]); if (t > 0 && t < 1) ts.push(t);
  }
  return pieces(at, [...new Set(ts)].sort((a, b) => a - b));
}
// Cells on a triangle, as rows of [y, left, right] per answer; `low` is the middle of a cell.
export function regions(vectors, members, utility, map, step = 1.5) {
  const [[x0, y0], [x1], [, y2]] = map.corners, cells = {};
  for (let y = y2 + step / 2; y < y0; y += step) {
    const half = (x1 - x0) / 2 * (y - y2) / (y0 - y2), mid = (x0 + x1) / 2, n = Math.max(3, Math.ceil(half / 2)), seen = {};
    const at = (x) => seen[x] ??= bestOf(vectors, members, map.weights(x, y), utility)[0];
    for (const [i, a, b] of pieces(at, Array.from({ length: n + 1 }, (_, j) => mid - half + 2 * half * j / n), 7)) (cells[i] ||= []).push([y - step / 2, a, b]);
  }
  return cells;
}
// Points that no other beats, along the first component; and those that some linear utility finds best.
export function staircase(points) {
  const out = []; let top = -Infinity;
  for (const p of [...points].sort((a, b) => b[0] - a[0] || b[1] - a[1])) if (p[1] > top) { out.unshift(p); top = p[1]; }
  return out;
}
export function hull(points) {
  const out = [], turn = (a, b, c) => (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
  for (const p of staircase(points)) { while (out.length > 1 && turn(out[out.length - 2], out[out.length - 1], p) >= 0) out.pop(); out.push(p); }
  return out;
}
const line = (ps) => ps.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ");
const path = (ps) => ps.length ? "M" + line(ps).replaceAll(" ", "L") : "";
const two = (v) => v.toFixed(2), HALO = "paint-order:stroke;stroke:var(--back);stroke-width:3px;stroke-linejoin:round";
const show = (e, on) => { e.style.display = on ? "" : "none"; };
const short = (s, n) => s.length > n ? s.slice(0, n - 1) + "…" : s;

// What one panel shows: a set that a reader puts together, or what an arm of a run sampled at the step shown.
function source(model, arm) {
  const texts = model.get("texts"), seen = { arm };
  const now = () => arm === null ? null : model.get("arms")[arm].frames[model.get("frame")];
  seen.refresh = () => {
    const V = model.get("vectors"), u = model.get("utility"), rows = now();
    seen.members = rows ? rows.map((r) => r[0]).sort((a, b) => a - b) : model.get("chosen").flatMap((c, i) => c ? [i] : []);
    seen.total = rows ? rows.reduce((s, r) => s + r[1], 0) : 0;
    seen.row = (i) => rows && rows.find((r) => r[0] === i);
    seen.filled = fill(V, seen.members, model.get("nodes")[model.get("alpha")], u);
    [seen.best, seen.worth] = bestOf(V, seen.members, model.get("weights"), u);
    seen.cell = (i) => seen.filled.best.filter((b) => b === i).length / seen.filled.best.length;
  };
  seen.text = (i) => { const r = seen.row(i); return r ? texts[r[2]] : arm === null ? texts[i] : ""; };
  seen.shown = (i) => arm === null || seen.members.includes(i);
  seen.radius = (i, r) => { const row = seen.row(i); return row ? 5 + (r - 2) * Math.sqrt(row[1] / seen.total) : r; };
  return seen;
}
// A numbered point that can be looked at by hand and by keyboard, and taken in and out of a set.
function marker(c, parent, src, i) {
  const g = node("g", { class: "dr-point", tabindex: 0, "data-answer": i, role: c.run ? "img" : "button", ...(c.run ? {} : { style: "cursor:pointer" }) }, parent);
  node("circle", { r: 14, fill: "transparent" }, g);
  const ring = node("circle", { class: "dr-ring" }, g), halo = node("circle", { fill: "none", stroke: "var(--ink)", "stroke-width": 2 }, g), body = node("circle", { "stroke-width": 2 }, g);
  const label = node("text", { "text-anchor": "middle" }, g, i + 1); look(c, g, src, i);
  return (x, y, size, even = false) => {
    const inside = src.members.includes(i), r = even ? size : src.radius(i, size), hue = c.hue(i), on = src.shown(i);
    show(g, on); if (!on) return;
    put(g, { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, "aria-label": c.name(src, i), ...(c.run ? {} : { "aria-pressed": inside }) });
    put(ring, { r: r + 7 }); put(halo, { r: r + 3.5, opacity: src.best === i ? 1 : 0 });
    put(body, { r, fill: inside ? hue : "var(--back)", stroke: inside ? "var(--back)" : hue, "stroke-dasharray": inside ? "none" : "3 2" });
    put(label, { y: r > 8 ? 4 : 3.2, style: `font-size:${r > 8 ? 11 : 9}px;font-weight:600;fill:${inside ? inkOn(hue) : "var(--ink)"}` }); show(label, r > 5.6);
  };
}
function look(c, e, src, i) {
  for (const [n, on] of [["pointerenter", 1], ["focus", 1], ["pointerleave", 0], ["blur", 0]]) e.addEventListener(n, () => c.hover(on ? src : null, i));
  if (c.run) return;
  e.addEventListener("click", () => c.toggle(i));
  e.addEventListener("keydown", (ev) => { if (ev.key === "Enter" || ev.key === " ") { ev.preventDefault(); c.toggle(i); } });
}
// Equal answers stand side by side: how many places to the right.
const beside = (V, src, i) => V.slice(0, i).filter((r, j) => src.arm === null && r.every((v, d) => v === V[i][d])).length;

// ---- D=2: a plane, a segment
function plane(c, box, src) {
  const g = node("g", {}, c.f.svg), tight = box.w < 250, left = box.x + (tight ? 36 : 50), w = box.x + box.w - 14 - left, top = box.y + 14, h = box.h - 56, [tx, ty] = c.top;
  const X = (v) => left + w * v / tx, Y = (v) => top + h * (1 - v / ty), F = staircase(c.front), at = (p) => [X(p[0]), Y(p[1])];
  const steps = F.length ? [[0, F[0][1]], ...F.flatMap((p, i) => [p, [p[0], i + 1 < F.length ? F[i + 1][1] : 0]])] : [];
  if (F.length) node("polygon", { class: "dr-front", points: line([[0, 0], ...steps].map(at)), fill: "var(--wash)" }, g);
  node("polyline", { points: line(steps.map(at)), fill: "none", stroke: "var(--edge)", "stroke-width": 1.5 }, g);
  node("polyline", { points: line(hull(c.front).map(at)), fill: "none", stroke: "var(--edge)", "stroke-width": 1.5, "stroke-dasharray": "2 4" }, g);
  node("path", { d: path([[left, top - 4], [left, top + h], [left + w + 4, top + h]]), fill: "none", stroke: "var(--edge)" }, g);
  for (const t of [0, .5, 1]) {
    node("text", { x: X(t * tx), y: top + h + 22, "text-anchor": "middle", style: "font-size:11px;fill:var(--soft)" }, g, +(t * tx).toFixed(2));
    if (t && !(tight && t < 1)) node("text", { x: left - 13, y: Y(t * ty) + 4, "text-anchor": "end", style: "font-size:11px;fill:var(--soft)" }, g, +(t * ty).toFixed(2));
  }
  node("text", { x: left + w / 2, y: top + h + 38, "text-anchor": "middle" }, g, short(c.names[0], w / 8));
  node("text", { transform: `translate(${left - (tight ? 20 : 38)} ${top + h / 2}) rotate(-90)`, "text-anchor": "middle" }, g, short(c.names[1], h / 8));
  const level = node("path", { class: "dr-level", fill: "none", stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "6 4" }, g);
  const dots = c.front.map((p) => node("rect", { x: X(p[0]) - 4.5, y: Y(p[1]) - 4.5, width: 9, height: 9, fill: "var(--back)", stroke: "var(--edge)", "stroke-width": 1.5, transform: `rotate(45 ${X(p[0])} ${Y(p[1])})` }, g));
  dots.forEach((o) => put(o, { "aria-hidden": true }));
  const marks = c.V.map((_, i) => marker(c, g, src, i));
  return () => {
    put(level, { d: path(levelLine(c.model.get("weights"), src, c).map(at)) });
    c.V.forEach((r, i) => marks[i](X(r[0]) + 17 * beside(c.V, src, i), Y(r[1]), c.dot));
  };
}
// Where all points are worth as much as the best answer.
function levelLine(w, src, c) {
  const [tx, ty] = c.top; if (src.best < 0) return [];
  if (c.model.get("utility") === "chebyshev") {
    const gap = Math.max(...w) - src.worth, [x, y] = w.map((v) => v > 1e-9 ? 1 - gap / v : -1);
    return [...(x >= 0 ? [[x, ty], [x, Math.max(y, 0)]] : [[0, y]]), ...(y >= 0 ? [[tx, y]] : [])].filter((p) => p[1] >= 0);
  }
  const on = []; const add = (x, y) => { if (x >= -1e-9 && x <= tx + 1e-9 && y >= -1e-9 && y <= ty + 1e-9) on.push([x, y]); };
  if (w[1] > 1e-9) { add(0, src.worth / w[1]); add(tx, (src.worth - w[0] * tx) / w[1]); }
  if (w[0] > 1e-9) { add(src.worth / w[0], 0); add((src.worth - w[1] * ty) / w[0], ty); }
  return on.sort((a, b) => a[0] - b[0] || b[1] - a[1]).filter((p, i, all) => i === 0 || i === all.length - 1);
}
function segment(c, box, src) {
  const g = node("g", {}, c.f.svg), low = c.run ? box.y + 16 : box.y + box.h - 46, left = box.x + (box.w < 250 ? 36 : 50), side = box.x + box.w - 14 - left, top = box.y + 14, h = low - 18 - top;
  const map = simplexMap(left, low - side / 2, side, 2), high = Math.max(...c.top), X = (t) => left + side * t, Y = (u) => top + h * (1 - u / high);
  drawSimplex(g, map, c.names.map((n) => short(n, box.w > 250 ? 18 : 10)), c.names.map(() => "var(--soft)"));
  const cells = node("g", { class: "dr-cells", "aria-hidden": true }, g); let plot = null;
  if (!c.run) {
    plot = node("g", { "aria-hidden": true }, g);
    node("path", { d: path([[left, top - 4], [left, top + h], [left + side, top + h]]), fill: "none", stroke: "var(--edge)" }, g);
    for (const t of [.5, 1]) node("text", { x: left - 6, y: Y(t * high) + 4, "text-anchor": "end", style: "font-size:11px;fill:var(--soft)" }, g, +(t * high).toFixed(2));
    node("text", { transform: `translate(${left - 38} ${top + h / 2}) rotate(-90)`, "text-anchor": "middle" }, g, "utility");
  }
  const stem = node("path", { fill: "none", stroke: "var(--ink)", "stroke-dasharray": "2 3", "stroke-width": 1.5 }, g);
  simplexHandle(c.f, g, map, c.model, "weights", `weights of ${c.names.join(" and ")}; arrow keys move them`);
  return () => {
    const u = c.model.get("utility"), parts = src.members.length ? c.memo("segment", src, () => intervals(c.V, src.members, u)) : [], now = c.model.get("weights")[1];
    cells.replaceChildren(); if (plot) plot.replaceChildren();
    const worth = (i, t) => UTILITIES[u](c.V[i], [1 - t, t]), curve = (i, a, b) => Array.from({ length: 33 }, (_, j) => a + (b - a) * j / 32).map((t) => [X(t), Y(worth(i, t))]);
    for (const [i, a, b] of parts) {
      const hue = c.hue(i), strong = c.strong(src, i);
      node("rect", { x: X(a), y: low - 7, width: Math.max(0, X(b) - X(a)), height: 14, fill: "var(--back)" }, cells);
      node("rect", { "data-cell": i, "data-from": a.toFixed(6), "data-to": b.toFixed(6), x: X(a), y: low - 7, width: Math.max(0, X(b) - X(a)), height: 14, fill: hue, opacity: strong ? .95 : .55 }, cells);
      if (X(b) - X(a) > 15) node("text", { x: X((a + b) / 2), y: low + 4, "text-anchor": "middle", style: `font-size:11px;font-weight:600;fill:${strong ? inkOn(hue) : "var(--ink)"}` }, cells, i + 1);
      if (plot) node("path", { d: path([[X(a), top + h], ...curve(i, a, b), [X(b), top + h]]) + "Z", fill: hue, opacity: strong ? .36 : .18 }, plot);
    }
    if (plot) {
      const k = c.model.get("shown"), nodes = c.model.get("nodes")[c.model.get("alpha")];
      node("path", { class: "dr-stems", d: nodes.slice(0, k).map((w, j) => `M${X(w[1]).toFixed(1)} ${(top + h).toFixed(1)}V${Y(src.filled.value[j]).toFixed(1)}`).join(""), stroke: "var(--ink)", "stroke-width": 1, opacity: .3 }, plot);
      for (const i of src.members) node("path", { d: path(curve(i, 0, 1)), fill: "none", stroke: c.hue(i), "stroke-width": 1.3, opacity: .75 }, plot);
      for (const [i, a, b] of parts) node("path", { d: path(curve(i, a, b)), fill: "none", stroke: c.hue(i), "stroke-width": 4 }, plot);
      put(stem, { d: src.best < 0 ? "" : path([[X(now), low], [X(now), Y(src.worth)]]) });
    }
  };
}
// ---- D=3: a space to turn, a triangle
export function project([x, y, z], yaw, pitch) {           // second component away from the reader, third up
  const a = Math.cos(yaw), b = Math.sin(yaw), c = Math.cos(pitch), d = Math.sin(pitch), [u, v, t] = [x - .5, y - .5, z - .5];
  return [a * u - b * v, c * t + d * (b * u + a * v)];
}
const CORNERS3 = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => [i & 1, i >> 1 & 1, i >> 2 & 1]), EDGES = [];
CORNERS3.forEach((p, i) => [1, 2, 4].forEach((b) => { if (!(i & b)) EDGES.push([p, CORNERS3[i | b]]); }));
// The level surface inside the box, in its units: a polygon for a linear utility, three edges that meet for Chebyshev's.
function levelSurface(w, src, c) {
  if (src.best < 0) return "";
  const to = (p) => c.at3(p), t = c.top;
  if (c.model.get("utility") === "chebyshev") {
    const gap = Math.max(...w) - src.worth, corner = w.map((v, d) => v > 1e-9 ? Math.min(1, Math.max(0, (1 - gap / v) / t[d])) : 0);
    return corner.map((_, d) => path([to(corner), to(corner.map((v, e) => e === d ? 1 : v))])).join("");
  }
  const value = (p) => dot(p.map((v, d) => v * t[d]), w) - src.worth, cut = [];
  for (const [a, b] of EDGES) { const u = value(a), v = value(b); if (Math.abs(u - v) > 1e-9 && u * v <= 1e-12) { const s = u / (u - v); cut.push(to(a.map((o, d) => o + s * (b[d] - o)))); } }
  if (cut.length < 3) return "";
  const mid = [0, 1].map((k) => cut.reduce((s, p) => s + p[k], 0) / cut.length);
  return path(cut.sort((a, b) => Math.atan2(a[1] - mid[1], a[0] - mid[0]) - Math.atan2(b[1] - mid[1], b[0] - mid[0]))) + "Z";
}
function space(c, box, src) {
  const g = node("g", {}, c.f.svg), size = Math.min(box.w * (c.run ? .56 : .64), box.h * (c.run ? .56 : .62)), mx = box.x + box.w / 2, my = box.y + box.h / 2 + (c.run ? 10 : 0);
  const ball = node("g", { class: "dr-space", tabindex: 0, role: "img", "aria-label": `${src.title ? src.title + ": " : ""}answers in the space of ${c.names.join(", ")}; arrow keys turn it`, style: "cursor:grab" }, g);
  node("rect", { x: box.x + 2, y: box.y + 2, width: box.w - 4, height: box.h - 4, fill: "transparent" }, ball); node("rect", { class: "dr-ring", x: box.x + 3, y: box.y + 3, width: box.w - 6, height: box.h - 6, rx: 8 }, ball);
  const edges = EDGES.map(([a]) => node("path", { stroke: "var(--edge)", "stroke-width": a.every((v) => !v) ? 1.8 : .8, opacity: a.every((v) => !v) ? 1 : .6 }, ball));
  const level = node("path", { class: "dr-level", fill: "var(--wash)", stroke: "var(--soft)", "stroke-width": 1.3, "stroke-dasharray": "5 4" }, ball);
  const labels = c.names.map((n, d) => node("text", { "text-anchor": d === 2 ? "start" : "middle", style: HALO + (box.w < 250 ? ";font-size:11px" : "") }, ball, short(n, box.w < 250 ? 11 : 16)));
  const drops = node("path", { stroke: "var(--edge)", "stroke-width": 1, "stroke-dasharray": "1 3", fill: "none" }, ball);
  const fronts = c.front.map(() => node("path", { fill: "var(--back)", stroke: "var(--edge)", "stroke-width": 1.5 }, ball));
  const marks = c.V.map((_, i) => marker(c, g, src, i));
  drag(c.f, ball, (dx, dy) => c.turn(-dx / size, dy / size), () => c.model.save_changes());
  keys(ball, (dx, dy, far) => c.turn(-dx * (far ? .4 : .1), dy * (far ? .4 : .1)), () => c.model.save_changes());
  return () => {
    const yaw = c.model.get("yaw"), pitch = c.model.get("pitch"), unit = (r) => r.map((v, d) => v / c.top[d]);
    const at = (p) => { const [x, y] = project(p, yaw, pitch); return [mx + size * x, my - size * y]; };
    EDGES.forEach(([a, b], i) => put(edges[i], { d: path([at(a), at(b)]) }));
    labels.forEach((t, d) => { const [x, y] = at([0, 1, 2].map((e) => e === d ? (d === 2 ? .5 : 1.13) : d === 2 ? 0 : -.02)); put(t, { x: d === 2 ? x + 7 : Math.min(box.x + box.w - 34, Math.max(box.x + 34, x)), y: y + 4 }); });
    c.at3 = at; put(level, { d: levelSurface(c.model.get("weights"), src, c) });
    put(drops, { d: c.V.map(unit).filter((_, i) => src.shown(i)).map((p) => path([at(p), at([p[0], p[1], 0])])).join("") });
    c.front.map(unit).forEach((p, i) => { const [x, y] = at(p); put(fronts[i], { d: `M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z` }); });
    c.V.forEach((r, i) => { const [x, y] = at(unit(r)); marks[i](x + 17 * beside(c.V, src, i), y, c.dot); });
  };
}
function triangle(c, box, src) {
  const g = node("g", {}, c.f.svg), side = Math.min(box.w - 30, (box.h - 54) / .866), map = simplexMap(box.x + (box.w - side) / 2, box.y + 26, side, 3);
  drawSimplex(g, map, c.names.map((n) => short(n, box.w > 250 ? 18 : 11)), c.names.map(() => "var(--soft)"));
  const cells = node("g", { class: "dr-cells", "aria-hidden": true }, g), dots = node("path", { class: "dr-nodes", fill: "var(--ink)", opacity: .75, "aria-hidden": true }, g), names = node("g", { "aria-hidden": true }, g);
  simplexHandle(c.f, g, map, c.model, "weights", `weights of ${c.names.join(", ")}; arrow keys move them`);
  const step = c.run ? 2 : 1.5;
  return () => {
    const u = c.model.get("utility"), rows = src.members.length ? c.memo("triangle" + side, src, () => {
      const r = regions(c.V, src.members, u, map, step);
      return Object.entries(r).map(([i, all]) => { const widest = all.reduce((s, o) => s + o[2] - o[1], 0), mid = [0, 1].map((k) => all.reduce((s, o) => s + (o[2] - o[1]) * (k ? o[0] + step / 2 : (o[1] + o[2]) / 2), 0) / widest);
        return [+i, all.map(([y, a, b]) => `M${a.toFixed(1)} ${y.toFixed(2)}H${b.toFixed(1)}v${step + .3}H${a.toFixed(1)}Z`).join(""), mid, widest * step]; });
    }) : [];
    cells.replaceChildren(); names.replaceChildren();
    for (const [i, d, mid, area] of rows) {
      node("path", { "data-cell": i, "data-area": area.toFixed(0), d, fill: c.hue(i), opacity: c.strong(src, i) ? .8 : .42 }, cells);
      if (area > 330) node("text", { x: mid[0], y: mid[1] + 5, "text-anchor": "middle", style: HALO + ";font-weight:600" }, names, i + 1);
    }
    const k = c.run ? 0 : c.model.get("shown");
    put(dots, { d: c.model.get("nodes")[c.model.get("alpha")].slice(0, k).map((w) => { const [x, y] = map.place(w); return `M${(x - 1.9).toFixed(1)} ${y.toFixed(1)}a1.9 1.9 0 1 0 3.8 0a1.9 1.9 0 1 0 -3.8 0`; }).join("") });
  };
}
// ---- D≥4: one axis per component, the utility as the last one, a weight under each axis
function axes(c, box, src) {
  const g = node("g", {}, c.f.svg), D = c.names.length, tall = 58, left = box.x + (box.w < 250 || c.narrow ? 36 : 48), gap = (box.x + box.w - 34 - left) / D, top = box.y + 30, h = box.h - 30 - tall - 52, base = top + h + 28;
  const X = (d) => left + gap * d, Y = (v, d) => top + h * (1 - v / c.top[d]), last = left + gap * D, high = Math.max(...c.top), small = gap < 70;
  const U = (u) => top + h * (1 - u / high), rows = c.V.map((_, i) => i), label = (d, t) => node("text", { x: X(d), y: top - 12, "text-anchor": "middle", style: small ? "font-size:10.5px" : gap < 100 ? "font-size:12px" : "" }, g, t);
  for (let d = 0; d <= D; d++) node("line", { x1: X(d), x2: X(d), y1: top, y2: top + h, stroke: "var(--edge)", "stroke-width": d === D ? 2 : 1 }, g);
  c.names.forEach((n, d) => label(d, short(n, small ? 10 : 16))); label(D, "utility");
  for (const [v, t] of [[0, "0"], [c.top[0], +c.top[0].toFixed(2)]]) node("text", { x: left - 13, y: Y(v, 0) + 4, "text-anchor": "end", style: "font-size:11px;fill:var(--soft)" }, g, t);
  node("text", { x: left - 12, y: base + tall / 2 + 4, "text-anchor": "end", style: "font-style:italic" }, g, "w");
  for (const p of c.front) node("polyline", { points: line(p.map((v, d) => [X(d), Y(v, d)])), fill: "none", stroke: "var(--edge)", "stroke-width": 5, opacity: .35, "stroke-linejoin": "round", "aria-hidden": true }, g);
  const shift = (i) => (i % 7 - 3) * 1.6;
  const lines = rows.map((i) => { const e = node("g", { "aria-hidden": true }, g), hit = node("polyline", { fill: "none", stroke: "transparent", "stroke-width": 11 }, e), ink = node("polyline", { fill: "none", stroke: c.hue(i), "stroke-linejoin": "round" }, e); look(c, e, src, i); return [e, hit, ink]; });
  const marks = rows.map((i) => marker(c, g, src, i)), levels = c.names.map((n, d) => well(c, g, X(d), base, tall, d));
  return () => {
    const w = c.model.get("weights"), u = c.V.map((r) => UTILITIES[c.model.get("utility")](r, w)), there = rows.filter((i) => src.shown(i)).sort((a, b) => u[b] - u[a] || a - b);
    const apart = Math.min(c.run ? 15 : 20, h / Math.max(1, there.length - 1)), y = []; let low = -Infinity;
    for (const i of there) { low = Math.max(U(u[i]), low + apart); y[i] = low; }
    let most = top + h; for (const i of [...there].reverse()) { y[i] = Math.min(y[i], most); most = y[i] - apart; }
    for (const i of rows) {
      show(lines[i][0], src.shown(i)); if (!src.shown(i)) { marks[i](0, 0, 8); continue; }
      const inside = src.members.includes(i), ps = line([...c.V[i].map((v, d) => [X(d), Y(v, d) + shift(i)]), [last, U(u[i])], [last + 12, y[i]]]), strong = src.best === i || c.hovered(src) === i;
      put(lines[i][1], { points: ps }); put(lines[i][2], { points: ps, "stroke-width": strong ? 4 : 1.8, opacity: inside ? (strong ? 1 : .7) : .35, "stroke-dasharray": inside ? "none" : "4 4" });
      marks[i](last + 14, y[i], Math.min(c.run ? 8 : 9, Math.max(4, apart * .47)), true);
    }
    levels.forEach((draw) => draw());
  };
}
function well(c, parent, x, y, h, d) {
  node("line", { x1: x, x2: x, y1: y, y2: y + h, stroke: "var(--edge)", "stroke-width": 5, "stroke-linecap": "round", opacity: .5 }, parent);
  const bar = node("line", { x1: x, x2: x, y2: y + h, stroke: "var(--blue)", "stroke-width": 5, "stroke-linecap": "round" }, parent);
  const value = node("text", { x, y: y + h + 19, "text-anchor": "middle", style: "font-size:12px" }, parent);
  const g = node("g", { class: "dr-weight", tabindex: 0, role: "slider", "aria-orientation": "vertical", "aria-label": `weight of ${c.names[d]}`, "aria-valuemin": 0, "aria-valuemax": 1, style: "cursor:grab" }, parent);
  node("circle", { r: 15, fill: "transparent" }, g); node("circle", { class: "dr-ring", r: 12 }, g); node("circle", { r: 8, fill: "var(--ink)", stroke: "var(--back)", "stroke-width": 2 }, g);
  const to = (v) => { c.model.set("weights", moved(c.model.get("weights"), d, v).map((o) => +o.toFixed(6))); c.model.save_changes(); };
  drag(c.f, g, (dx, dy, px, py) => to((y + h - py) / h), c.told);
  keys(g, (dx, dy, far) => to(c.model.get("weights")[d] + (dx - dy) * (far ? .1 : .02)), c.told);
  return () => {
    const w = c.model.get("weights")[d], at = y + h * (1 - w);
    put(g, { transform: `translate(${x} ${at.toFixed(1)})`, "aria-valuenow": two(w), "aria-valuetext": two(w) }); put(bar, { y1: at }); value.textContent = two(w);
  };
}
// ---- under it: the set reward node by node, or step by step
function ruler(c, g, box, left, right) {                   // an axis from low to high; returns how to change low
  const top = box.y + 26, h = box.h - 44, high = Math.max(...c.top); let low = 0;
  node("path", { d: path([[left, top], [left, top + h], [right, top + h]]), fill: "none", stroke: "var(--edge)" }, g);
  node("path", { d: path([[left, top], [right, top]]), fill: "none", stroke: "var(--edge)", "stroke-width": .5 }, g);
  const [foot] = [[top + h, 0], [top, high]].map(([y, v]) => node("text", { x: left - 7, y: y + 4, "text-anchor": "end", style: "font-size:11px;fill:var(--soft)" }, g, +v.toFixed(2)));
  return { Y: (v) => top + h * (1 - (v - low) / (high - low)), from: (v) => { low = v; foot.textContent = +v.toFixed(2); } };
}
function trace(c, box, src) {
  const g = node("g", { class: "dr-trace", role: "img" }, c.f.svg), K = c.K, left = box.x + (c.narrow ? 36 : 50), right = box.x + box.w - 14, { Y, from } = ruler(c, g, box, left, right), X = (k) => left + (right - left) * k / K;
  const dots = Array.from({ length: K }, (_, k) => node("circle", { cx: X(k + .5).toFixed(1), r: c.narrow ? 2.2 : 3 }, g)), front = node("path", { fill: "none", stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "2 3" }, g), mean = node("path", { class: "dr-mean", fill: "none", stroke: "var(--ink)", "stroke-width": 2.6 }, g), head = node("text", { x: left, y: box.y + 14 }, g);
  node("text", { x: right, y: box.y + box.h - 3, "text-anchor": "end", style: "font-size:11px;fill:var(--soft)" }, g, `weight vector ${K}`); node("text", { x: left, y: box.y + box.h - 3, style: "font-size:11px;fill:var(--soft)" }, g, "1");
  return () => {
    const k = c.model.get("shown"), s = src.filled, nodes = c.model.get("nodes")[c.model.get("alpha")], up = (m) => m.slice(0, k).map((v, j) => [X(j + .5), Y(v)]), on = (j) => j < k && s.best[j] >= 0;
    const best = c.front.length ? fill(c.front, c.front.map((_, i) => i), nodes, c.model.get("utility")).mean : null, now = s.mean[k - 1], eye = c.hovered(src);
    from(Math.max(0, Math.floor(10 * Math.min(...s.value) - .2) / 10));
    put(mean, { d: path(up(s.mean)) }); put(front, { d: best ? path(up(best)) : "" });
    dots.forEach((o, j) => { show(o, on(j)); if (on(j)) put(o, { cy: Y(s.value[j]).toFixed(1), fill: c.hue(s.best[j]), opacity: eye === null || eye === s.best[j] ? .85 : .2 }); });
    head.replaceChildren();
    const part = (t, style) => { const e = document.createElementNS("http://www.w3.org/2000/svg", "tspan"); e.textContent = t; e.setAttribute("style", style); head.append(e); };
    part(c.narrow ? "set reward " : `set reward of ${c.model.get("m")} answers over ${k} weight vectors: `, ""); part(two(now), "font-weight:700;font-size:17px"); if (best) part(` · exact front ${two(best[k - 1])} (dotted)`, "fill:var(--soft)");
    put(g, { "aria-label": `set reward of ${c.model.get("m")} answers over the first ${k} weight vectors: ${now.toFixed(3)}` + (best ? `; of the exact front ${best[k - 1].toFixed(3)}` : "") });
    c.value = now;
  };
}
const DASH = ["5 4", "none"];
function curves(c, box, sources) {
  const g = node("g", { class: "dr-trace", role: "img" }, c.f.svg), steps = c.model.get("steps"), left = box.x + (c.narrow ? 36 : 50), right = box.x + box.w - 16, { Y } = ruler(c, g, box, left, right), X = (j) => left + (right - left) * (steps.length > 1 ? j / (steps.length - 1) : .5);
  const each = (right - left) / (sources.length + 1), keysAt = (n) => left + each * n;
  const lines = sources.map((_, a) => [node("path", { class: "dr-curve", fill: "none", stroke: "var(--ink)", "stroke-width": 2.4, "stroke-dasharray": DASH[a % 2] }, g), node("circle", { r: 4.5, fill: "var(--ink)", stroke: "var(--back)", "stroke-width": 1.5 }, g),
    node("line", { x1: keysAt(a), x2: keysAt(a) + 22, y1: box.y + 10, y2: box.y + 10, stroke: "var(--ink)", "stroke-width": 2.4, "stroke-dasharray": DASH[a % 2] }, g), node("text", { x: keysAt(a) + 27, y: box.y + 14 }, g)]);
  const front = node("path", { stroke: "var(--ink)", "stroke-width": 1.4, "stroke-dasharray": "2 3" }, g), cursor = node("line", { y1: box.y + 24, y2: box.y + box.h - 18, stroke: "var(--edge)" }, g);
  if (c.front.length) node("line", { x1: keysAt(sources.length), x2: keysAt(sources.length) + 22, y1: box.y + 10, y2: box.y + 10, stroke: "var(--ink)", "stroke-width": 1.4, "stroke-dasharray": "2 3" }, g);
  const frontText = node("text", { x: keysAt(sources.length) + 27, y: box.y + 14 }, g);
  node("text", { x: left, y: box.y + box.h - 3, style: "font-size:11px;fill:var(--soft)" }, g, `step ${steps[0]}`); node("text", { x: right, y: box.y + box.h - 3, "text-anchor": "end", style: "font-size:11px;fill:var(--soft)" }, g, steps[steps.length - 1]);
  return () => {
    const u = c.model.get("utility"), nodes = c.model.get("nodes")[c.model.get("alpha")], m = c.model.get("m"), j = c.model.get("frame");
    const all = c.memo("curves" + m, { members: [] }, () => c.model.get("arms").map((a) => a.frames.map((rows) => drawsReward(c.V, rows.map((r) => r[0]), rows.map((r) => r[1]), nodes, u, m))));
    const most = c.front.length ? fill(c.front, c.front.map((_, i) => i), nodes, u).mean[nodes.length - 1] : null;
    all.forEach((v, a) => { const [p, o, , t] = lines[a]; put(p, { d: path(v.map((y, i) => [X(i), Y(y)])) }); put(o, { cx: X(j), cy: Y(v[j]) }); t.textContent = `${short(c.model.get("arms")[a].label, c.narrow ? 7 : 22)} ${two(v[j])}`; });
    if (most !== null) { put(front, { d: path([[left, Y(most)], [right, Y(most)]]) }); frontText.textContent = `front ${two(most)}`; }
    put(cursor, { x1: X(j), x2: X(j) });
    c.values = all.map((v) => v[j]);
    put(g, { "aria-label": `expected set reward of ${m} draws at step ${steps[j]}: ` + all.map((v, a) => `${c.model.get("arms")[a].label} ${v[j].toFixed(3)}`).join(", ") + (most === null ? "" : `; exact front ${most.toFixed(3)}`) });
  };
}
export function render({ model, el }) {
  const f = frame(el, model), names = model.get("names"), D = names.length, arms = model.get("arms"), run = arms.length > 0, V = model.get("vectors"), kept = new Map();
  let draws = [], hovered = null;
  const sources = (run ? arms.map((_, a) => a) : [null]).map((a) => source(model, a));
  if (run) sources.forEach((s, a) => { s.title = arms[a].label; });
  const c = { f, model, V, D, names, run, front: model.get("front"), top: model.get("top"), K: Object.values(model.get("nodes"))[0].length, dot: 10, hue: (i) => COLORS[model.get("colours")[i] % 6],
    hovered: (src) => hovered && hovered[0] === src ? hovered[1] : null, strong: (src, i) => (hovered && hovered[0] === src ? hovered[1] === i : src.best === i) };
  c.memo = (kind, src, make) => {                          // maps and curves do not depend on the weights shown: make them once
    const key = [kind, model.get("utility"), kind.startsWith("curves") ? model.get("alpha") : "", src.members].join("|");
    if (!kept.has(key)) { if (kept.size > 200) kept.clear(); kept.set(key, make()); }
    return kept.get(key);
  };
  const vector = (i) => names.map((n, d) => `${n} ${two(V[i][d])}`).join(", ");
  c.name = (src, i) => `${run ? src.title + ", outcome" : "answer"} ${i + 1}: ${vector(i)}; ${src.text(i)}`;
  c.hover = (src, i) => { hovered = src ? [src, i] : null; draw(); };
  c.toggle = (i) => {
    const next = [...model.get("chosen")]; next[i] = next[i] ? 0 : 1;
    model.set("chosen", next); model.set("m", next.reduce((a, b) => a + b, 0)); model.save_changes(); c.told();
  };
  c.turn = (dx, dy) => { model.set("yaw", +(model.get("yaw") + dx).toFixed(4)); model.set("pitch", +Math.max(-.2, Math.min(1.57, model.get("pitch") + dy)).toFixed(4)); };
  c.told = () => f.say(run ? `Step ${model.get("steps")[model.get("frame")]}: ` + sources.map((s, a) => `${s.title}, set reward of ${model.get("m")} draws ${c.values[a].toFixed(2)}`).join("; ")
    : `Best answer ${sources[0].best + 1}, worth ${sources[0].worth.toFixed(2)}; set reward ${c.value.toFixed(2)} with ${model.get("m")} answers`);
  function tell() {                                        // two lines of fixed height: text and numbers of what is looked at, or of the best answer
    const [src, i] = hovered || [sources[sources.length - 1], sources[sources.length - 1].best], row = i >= 0 && src.row(i);
    said.textContent = i < 0 ? "No answer in the set: it is worth 0." : (run ? `${src.title}, outcome ${i + 1}` : `Answer ${i + 1}`) + `: ${src.text(i) || "(no text)"}`; said.title = said.textContent;
    if (i < 0) { numbers.textContent = ""; return; }
    const inside = src.members.includes(i), worth = UTILITIES[model.get("utility")](V[i], model.get("weights"));
    numbers.textContent = `${vector(i)} · worth ${two(worth)}${src.best === i ? ", the best" : ""} · ` + (inside ? `best for ${Math.round(100 * src.cell(i))} % of weights` : "not in the set") + (row ? ` · ${row[1]} of ${src.total} samples${row[3] ? `, ${row[3] + 1} texts` : ""}` : "");
  }
  function draw() { sources.forEach((s) => s.refresh()); draws.forEach((d) => d()); tell(); }
  function build(w, h, narrow) {
    f.svg.replaceChildren(); c.narrow = narrow; for (const e of [numbers, hint]) e.style.height = narrow ? "54px" : "36px"; c.dot = run ? (narrow ? 15 : 22) : 10; draws = [];
    const low = 124, high = h - low, box = (x, y, bw, bh) => ({ x, y, w: bw, h: bh }), [points, weights] = D === 2 ? [plane, segment] : D === 3 ? [space, triangle] : [axes, null];
    sources.forEach((s) => s.refresh());
    sources.forEach((s, a) => {
      const rows = run && narrow && D > 3, each = run && !rows ? w / sources.length : w, x = rows || !run ? 0 : a * each, part = rows ? high / sources.length : high, y = (rows ? a * part : 0) + (run ? 22 : 0), all = part - (run ? 22 : 0);
      if (run) node("text", { x: x + each / 2 + (D === 2 ? 12 : 0), y: y - 6, "text-anchor": "middle", style: "font-weight:600" }, f.svg, short(s.title, narrow ? 22 : 40));
      if (!weights) draws.push(points(c, box(x, y, each, all), s));
      else if (run) { const cut = D === 2 ? all - 54 : all * .56; draws.push(points(c, box(x, y, each, cut), s), weights(c, box(x, y + cut, each, all - cut), s)); }
      else if (narrow) draws.push(points(c, box(0, 0, w, all * .52), s), weights(c, box(0, all * .52, w, all * .48), s));
      else draws.push(points(c, box(0, 0, w / 2, all), s), weights(c, box(w / 2, 0, w / 2, all), s));
    });
    draws.push(run ? curves(c, box(0, h - low + 4, w, low - 4), sources) : trace(c, box(0, h - low + 4, w, low - 4), sources[0]));
    draw();
  }
  const end = run ? model.get("steps").length - 1 : c.K, at = run ? "frame" : "shown", first = run ? 0 : 1;
  const names2 = run ? ["Play", "Pause"] : ["Fill", "Pause"];
  const go = player(f, names2, () => { model.set(at, Math.min(end, model.get(at) + 1)); return model.get(at) < end; }, () => model.set(at, end), () => { model.save_changes(); c.told(); });
  go.button.addEventListener("click", () => { if (model.get(at) === end && go.button.textContent === "Pause") model.set(at, first); });
  const time = slider(f, model, at, run ? "step" : "weights K", { min: first, max: end, step: 1, grow: true, show: (k) => String(run ? model.get("steps")[Math.round(k)] : Math.round(k)) });
  time.addEventListener("change", () => c.told()); time.parentNode.style.flexBasis = "70%"; time.setAttribute("aria-label", run ? "training step" : "weights K: how many are shown");
  slider(f, model, "m", run ? "draws M" : "answers M", { min: run ? 1 : 0, max: model.get("most"), step: 1, show: (v) => String(Math.round(v)) }).addEventListener("change", () => c.told());
  select(f, model, "alpha", "α", Object.fromEntries(Object.keys(model.get("nodes")).map((a) => [a, String(+a)])));
  select(f, model, "utility", "utility", { linear: "linear", ...(model.get("bounded") ? { chebyshev: "Chebyshev" } : {}) });
  const said = node("div", { class: "dr-line dr-text", style: "height:19px;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;color:var(--ink);min-width:0" }, f.panel), numbers = node("div", { class: "dr-line dr-numbers", style: "overflow:hidden" }, f.panel);
  const hint = node("div", { class: "dr-line", style: "overflow:hidden" }, f.panel, D > 3 ? "Thick grey: the exact front. Drag the weights under the axes. " + (run ? "" : "Click an answer to take it in or out.")
    : `${c.front.length ? "Hollow squares: the exact front. " : ""}Drag the big dot${D === 3 ? "; drag the box to turn it" : ""}. ` + (run ? "Area: how often an outcome was sampled." : "Click an answer to take it in or out of the set. Dashed: as good as the best."));
  model.on("change:m", () => { const n = model.get("m"), was = model.get("chosen"); if (!run && was.reduce((a, b) => a + b, 0) !== n) model.set("chosen", was.map((_, i) => +(i < n))); });
  for (const k of ["weights", "utility", "alpha", "shown", "chosen", "frame", "m", "yaw", "pitch"]) model.on("change:" + k, draw);
  const ends = [fit(f, build), follow(f, draw)];
  return () => { go.stop(); ends.forEach((e) => e()); };
}
