// Prototypes of experts as lines through the middle of a sphere: a direction and its opposite are the same prototype.
export function rotate([x, y, z], yaw, pitch) {            // to the right about the upright axis, then towards the reader
  const a = Math.cos(yaw), b = Math.sin(yaw), c = Math.cos(pitch), d = Math.sin(pitch), x1 = a * x + b * z, z1 = -b * x + a * z;
  return [x1, c * y - d * z1, d * y + c * z1];
}
export const cosines = (p) => p.map((a) => p.map((b) => a.reduce((s, v, d) => s + v * b[d], 0)));
// Mean squared cosine of different experts.
export function overlap(c) {
  let s = 0; const n = c.length;
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j) s += c[i][j] ** 2;
  return s / (n * (n - 1));
}
const circle = (of) => Array.from({ length: 73 }, (_, i) => of(i * Math.PI / 36));
const GRID = [0, 1, 2].map((k) => circle((t) => [Math.cos(k * Math.PI / 3) * Math.cos(t), Math.sin(t), Math.sin(k * Math.PI / 3) * Math.cos(t)]))
  .concat([-.5, 0, .5].map((h) => circle((t) => [Math.sqrt(1 - h * h) * Math.cos(t), h, Math.sqrt(1 - h * h) * Math.sin(t)])));
const points = (ps) => ps.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

// One arm: its sphere at (cx, cy) with radius r, its heat map under it.
function panel(f, model, arm, { cx, cy, r, cell, top }) {
  const arms = model.get("arms"), P = model.get("prototypes")[arm], own = model.get("cosines"), n = P[0].length, yaw = () => model.get("yaw"), pitch = () => model.get("pitch");
  const at = (p) => { const [x, y, z] = rotate(p, yaw(), pitch()); return [cx + r * x, cy - r * y, z]; };
  node("text", { x: cx, y: 16, "text-anchor": "middle", style: "font-weight:600" }, f.svg, arms[arm]);
  const ball = node("g", { class: "dr-ball", tabindex: 0, role: "img", "aria-label": `${arms[arm]}: ${n} prototypes as lines through a sphere; arrow keys turn it`, style: "cursor:grab" }, f.svg);
  node("circle", { cx, cy, r, fill: "var(--wash)", stroke: "var(--edge)" }, ball); node("circle", { class: "dr-ring", cx, cy, r: r + 4 }, ball);
  const grid = GRID.map(() => node("polyline", { fill: "none", stroke: "var(--edge)", "stroke-width": .6, opacity: .55 }, ball));
  const trails = P[0].map((_, i) => node("polyline", { fill: "none", stroke: COLORS[i % 6], "stroke-width": 1.4, opacity: .55 }, ball));
  const layers = node("g", {}, ball);
  const size = cell * n, left = cx - size / 2 - (cell > 24 ? 34 : 0);
  const map = node("g", { class: "dr-map", role: "img" }, f.svg), cells = [];
  for (let i = 0; i < n; i++) {
    node("text", { x: left - 6, y: top + (i + .5) * cell + 4, "text-anchor": "end", style: `fill:var(--ink);font-size:11px` }, map, i + 1);
    for (let j = 0; j < n; j++) {
      node("rect", { x: left + j * cell, y: top + i * cell, width: cell - 1.5, height: cell - 1.5, rx: 2, fill: "var(--wash)" }, map);
      const box = node("rect", { x: left + j * cell, y: top + i * cell, width: cell - 1.5, height: cell - 1.5, rx: 2, fill: COLORS[1] }, map);
      const t = node("text", { x: left + (j + .5) * cell - .7, y: top + (i + .5) * cell + 3.5, "text-anchor": "middle", style: "font-size:9.5px" }, map);
      cells.push([i, j, box, t]);
    }
  }
  const sum = cell > 24 ? node("text", { class: "dr-overlap", x: left + size + 10, y: top + 14 }, f.svg) : node("text", { class: "dr-overlap", x: cx, y: top + size + 15, "text-anchor": "middle" }, f.svg);
  const big = cell > 24 ? node("text", { x: left + size + 10, y: top + 40, style: "font-size:22px;font-weight:600" }, f.svg) : null;

  return function draw() {
    const k = model.get("frame"), p = P[k], c = own ? own[arm][k] : cosines(p), o = overlap(c);
    GRID.forEach((g, i) => put(grid[i], { points: points(g.map(at)) }));
    trails.forEach((e, i) => put(e, { points: points(P.slice(0, k + 1).map((q) => at(q[i]))) }));
    layers.replaceChildren();
    const ends = p.flatMap((q, i) => [[i, 1, at(q)], [i, -1, at(q.map((v) => -v))]]).sort((a, b) => a[2][2] - b[2][2]);
    for (const [i, sign, [x, y, z]] of ends) {
      const e = node("g", { opacity: z < 0 ? .45 : 1 }, layers), colour = COLORS[i % 6];
      node("line", { x1: cx, y1: cy, x2: x, y2: y, stroke: colour, "stroke-width": z < 0 ? 2 : 3 }, e);
      node("circle", { class: sign > 0 ? "dr-end" : "dr-opposite", cx: x, cy: y, r: r > 100 ? 9 : 7.5, fill: colour, stroke: "var(--back)", "stroke-width": 1.5 }, e);
      node("text", { x, y: y + 4, "text-anchor": "middle", style: `fill:${inkOn(colour)};font-size:11px;font-weight:600` }, e, i + 1);
    }
    cells.forEach(([i, j, box, t]) => {
      const v = c[i][j] ** 2; put(box, { opacity: (i === j ? 0 : .85 * v).toFixed(3) });
      t.textContent = i === j ? "" : v.toFixed(2).replace("0.", ".");
    });
    map.setAttribute("aria-label", `${arms[arm]}: squared cosines of all pairs, mean ${o.toFixed(2)}`);
    sum.textContent = big ? "overlap" : `overlap ${o.toFixed(2)}`; if (big) big.textContent = o.toFixed(2);
  };
}
export function render({ model, el }) {
  const f = frame(el, model), last = model.get("steps").length - 1;
  let draws = [];
  const draw = () => draws.forEach((d) => d());
  const mean = (a) => { const k = model.get("frame"); return overlap(model.get("cosines") ? model.get("cosines")[a][k] : cosines(model.get("prototypes")[a][k])); };
  const told = () => f.say(`Step ${model.get("steps")[model.get("frame")]}: ` + model.get("arms").map((a, i) => `${a}, overlap ${mean(i).toFixed(2)}`).join("; "));
  const turn = (dx, dy) => { model.set("yaw", +(model.get("yaw") + dx).toFixed(4)); model.set("pitch", +Math.max(-1.57, Math.min(1.57, model.get("pitch") + dy)).toFixed(4)); };
  function build(w, h, narrow) {
    f.svg.replaceChildren(); const n = model.get("arms").length, each = w / n, r = Math.min(each / 2 - 14, h * .29), cell = narrow ? 22 : 27;
    draws = model.get("arms").map((_, i) => panel(f, model, i, { cx: (i + .5) * each + (narrow ? 3 : 0), cy: 30 + r, r, cell, top: 2 * r + 54 }));
    f.svg.querySelectorAll(".dr-ball").forEach((b) => {
      drag(f, b, (dx, dy) => turn(dx / r, dy / r), () => model.save_changes()); keys(b, (dx, dy, far) => turn(dx * (far ? .4 : .1), dy * (far ? .4 : .1)), () => model.save_changes());
    });
    draw();
  }
  const to = (k) => { model.set("frame", Math.max(0, Math.min(last, k))); };
  const run = player(f, ["Play", "Pause"], () => { to(model.get("frame") + 1); return model.get("frame") < last; }, () => to(last), () => { model.save_changes(); told(); });
  run.button.addEventListener("click", () => { if (model.get("frame") === last && run.button.textContent === "Pause") to(0); });
  const time = slider(f, model, "frame", "step", { min: 0, max: last, step: 1, grow: true, show: (k) => String(model.get("steps")[Math.round(k)]) });
  time.setAttribute("aria-label", "training step"); time.addEventListener("change", told);
  button(f, "Reset view", () => { model.set("yaw", .6); model.set("pitch", .4); model.save_changes(); });
  const share = model.get("share");
  node("div", { class: "dr-line" }, f.panel, (share > .9995 ? "The vectors have three components: nothing is hidden." : `Three principal directions: ${(100 * share).toFixed(0)} % of the squared length is shown; lines that end inside point out of the picture.`)
    + " Both ends of a line are the same prototype. Grids: squared cosines (0 right angle, 1 same line). Drag a sphere, or tab to it and press arrow keys.");
  for (const k of ["frame", "yaw", "pitch"]) model.on("change:" + k, draw);
  const ends = [fit(f, build), follow(f, () => {})];
  return () => { run.stop(); ends.forEach((e) => e()); };
}
