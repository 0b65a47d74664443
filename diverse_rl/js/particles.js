// Particles that climb towards where a density is high and push each other apart. Same formulas and letters as stein.py.
export const TARGETS = {
  gaussian: { logp: ([x, y]) => -(x * x + y * y) / 2, score: ([x, y]) => [-x, -y] },
  mixture: {
    std: .6, means: [[-1.5, 0], [1.5, 0]],
    parts([x, y]) { return this.means.map(([a, b]) => -((x - a) ** 2 + (y - b) ** 2) / (2 * this.std ** 2)); },
    logp(p) { const l = this.parts(p), m = Math.max(...l); return m + Math.log(l.reduce((s, v) => s + Math.exp(v - m), 0)); },
    score(p) {
      const top = this.logp(p), w = this.parts(p).map((v) => Math.exp(v - top)), s2 = this.std ** 2;
      return [0, 1].map((d) => w.reduce((s, v, c) => s + v * (this.means[c][d] - p[d]) / s2, 0));
    },
  },
  banana: {
    std: .5,
    logp([x, y]) { return -x * x / 2 - ((y - x * x + 1) / this.std) ** 2 / 2; },
    score([x, y]) { const r = (y - x * x + 1) / this.std ** 2; return [-x + 2 * x * r, -r]; },
  },
};
// Kernel k of s = d²/h, and minus its slope in s.
export const KERNELS = {
  rbf: (s) => { const k = Math.exp(-s); return [k, k]; },
  imq: (s) => { const k = 1 / Math.sqrt(1 + s); return [k, k ** 3 / 2]; },
};
const distance2 = (a, b) => (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2;
// m²/log N with m the median distance of pairs; their mean square where m is 0; 1 for one particle or equal ones.
export function medianBandwidth(xs) {
  const n = xs.length, d = [];
  for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) d.push(Math.sqrt(distance2(xs[i], xs[j])));
  if (!d.length) return 1;
  d.sort((a, b) => a - b);
  const m = (d[(d.length - 1) >> 1] + d[d.length >> 1]) / 2, m2 = m > 0 ? m * m : d.reduce((s, v) => s + v * v, 0) / d.length;
  return m2 > 0 ? m2 / Math.log(n) : 1;
}
// The two parts of the Stein force on every particle; h null: the median rule.
export function forces(xs, target, kernel, h = null) {
  const n = xs.length, s = xs.map((x) => TARGETS[target].score(x)), width = h ?? medianBandwidth(xs), driving = [], repulsive = [];
  for (let i = 0; i < n; i++) {
    const a = [0, 0], r = [0, 0];
    for (let j = 0; j < n; j++) {
      const [k, w] = KERNELS[kernel](distance2(xs[i], xs[j]) / width);
      for (const d of [0, 1]) { a[d] += k * s[j][d] / n; r[d] += w * (xs[i][d] - xs[j][d]) * 2 / width / n; }
    }
    driving.push(a); repulsive.push(r);
  }
  return { driving, repulsive, h: width };
}
export function step(xs, { target, kernel, h = null, temperature = 1, rate = .1 }) {
  const f = forces(xs, target, kernel, h);
  return xs.map((x, i) => [0, 1].map((d) => x[d] + rate * (f.driving[i][d] + temperature * f.repulsive[i][d])));
}
const settings = (m) => ({ target: m.get("target"), kernel: m.get("kernel"), h: m.get("median") ? null : m.get("bandwidth"), temperature: m.get("repulsion") ? m.get("temperature") : 0, rate: m.get("rate") });
const LEFT = -3.4, TOP = 3.1, UNITS = 6.8, LOW = -2;                       // what is seen: 6.8 across, 5.1 up
const clamp = (v, a, b) => Math.min(b, Math.max(a, v));

// Shaft and head of an arrow, as two paths; it starts at the rim of its dot.
function arrow(x, y, dx, dy) {
  const n = Math.hypot(dx, dy); if (n < .5) return ["", ""];
  const l = Math.min(n, 130), ux = dx / n, uy = dy / n, t = Math.min(9, 4 + l / 8), a = x + ux * (l + 6), b = y + uy * (l + 6), c = a + ux * t, d = b + uy * t, w = t * .5, p = (...v) => v.map((o) => o.toFixed(1)).join(" ");
  return [`M${p(x, y)}L${p(a, b)}`, `M${p(c, d)}L${p(a - uy * w, b + ux * w)}L${p(a + uy * w, b - ux * w)}Z`];
}
// The density as a wash of the ink, on a coarse canvas that the browser smooths.
function shade(canvas, target, ink) {
  const w = canvas.width = 128, h = canvas.height = 96, g = canvas.getContext("2d"), img = g.createImageData(w, h), t = TARGETS[target];
  const c = (ink.match(/[\d.]+/g) || [0, 0, 0]).map(Number), v = [];
  for (let j = 0; j < h; j++) for (let i = 0; i < w; i++) v.push(t.logp([LEFT + UNITS * (i + .5) / w, TOP - UNITS * .75 * (j + .5) / h]));
  const top = Math.max(...v);
  v.forEach((l, i) => { img.data.set([c[0], c[1], c[2], 105 * Math.exp(l - top)], 4 * i); });
  g.putImageData(img, 0, 0);
}
export function render({ model, el }) {
  const f = frame(el, model), canvas = node("canvas", { "aria-hidden": "true" }); f.stage.prepend(canvas);
  let scale = 80, dots = [], paths = {}, width = { shown() {} };
  const X = (x) => (x - LEFT) * scale, Y = (y) => (TOP - y) * scale, xs = () => model.get("particles");
  const place = (next, save = true) => { model.set("particles", next); if (save) model.save_changes(); };
  const told = () => { const s = measures(); f.say(`Step ${model.get("steps")}: nearest pair ${s.near.toFixed(2)} apart, variance ${s.variance.toFixed(2)}`); };
  function measures() {
    const p = xs(), n = p.length, m = [0, 1].map((d) => p.reduce((s, x) => s + x[d], 0) / n); let near = Infinity;
    for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) near = Math.min(near, distance2(p[i], p[j]));
    return { near: Math.sqrt(near), variance: p.reduce((s, x) => s + distance2(x, m), 0) / n };
  }
  function nudge(i, dx, dy) {
    const next = xs().map((x) => [...x]), x = next[i];
    next[i] = [clamp(+(x[0] + dx).toFixed(6), LEFT, LEFT + UNITS), clamp(+(x[1] + dy).toFixed(6), LOW, TOP)]; place(next, false);
  }
  function build() {                                       // one focusable dot per particle; kept while particles move, so that the focus stays
    f.svg.replaceChildren();
    paths = {};
    for (const [name, colour, dashes] of [["driving", COLORS[1], "none"], ["repulsive", COLORS[0], "4 2.5"]]) {
      const g = node("g", { "aria-hidden": "true" }, f.svg);
      paths[name] = [g, node("path", { class: "dr-" + name, fill: "none", stroke: colour, "stroke-width": 2.6, "stroke-dasharray": dashes }, g), node("path", { fill: colour }, g)];
    }
    dots = xs().map((_, i) => {
      const g = node("g", { class: "dr-dot", tabindex: 0, role: "slider", "aria-label": `particle ${i + 1} of ${xs().length}; arrow keys move it`, "aria-valuemin": LEFT, "aria-valuemax": LEFT + UNITS, style: "cursor:grab" }, f.svg);
      node("circle", { r: 17, fill: "transparent" }, g); node("circle", { class: "dr-ring", r: 11 }, g);
      node("circle", { r: 5.5, fill: "var(--ink)", stroke: "var(--back)", "stroke-width": 1.5 }, g);
      drag(f, g, (dx, dy) => nudge(i, dx / scale, -dy / scale), () => { model.save_changes(); told(); });
      keys(g, (dx, dy, far) => nudge(i, dx * (far ? .5 : .1), -dy * (far ? .5 : .1)), () => { model.save_changes(); told(); });
      g.addEventListener("keydown", (ev) => { if (ev.key === "Escape") f.panel.querySelector("button").focus(); });
      return g;
    });
  }
  function draw() {
    const p = xs(); if (dots.length !== p.length) build();
    const on = model.get("repulsion"), F = forces(p, model.get("target"), model.get("kernel"), model.get("median") ? null : model.get("bandwidth"));
    const arrows = ([g, shaft, head], part, by, opacity) => {
      const a = p.map((x, i) => arrow(X(x[0]), Y(x[1]), by * part[i][0] * scale, -by * part[i][1] * scale));
      put(g, { opacity }); put(shaft, { d: a.map((o) => o[0]).join("") }); put(head, { d: a.map((o) => o[1]).join("") });
    };
    arrows(paths.driving, F.driving, 1, 1); arrows(paths.repulsive, F.repulsive, on ? model.get("temperature") : 1, on ? 1 : .25);
    if (model.get("median")) width.shown(F.h);
    p.forEach((x, i) => put(dots[i], { transform: `translate(${X(x[0]).toFixed(2)} ${Y(x[1]).toFixed(2)})`, "aria-valuenow": x[0].toFixed(2), "aria-valuetext": `${x[0].toFixed(2)} across, ${x[1].toFixed(2)} up` }));
    const s = measures();
    line.textContent = `step ${model.get("steps")} · h ${F.h.toFixed(2)} · nearest pair ${s.near.toFixed(2)} · variance ${s.variance.toFixed(2)}`;
  }
  const wash = () => shade(canvas, model.get("target"), getComputedStyle(el).color);
  let count = 0;
  const go = (save = true) => { model.set("steps", model.get("steps") + 1); place(step(xs(), settings(model)), save); };
  const run = player(f, ["Run", "Pause"], () => go(++count % 12 === 0), () => { for (let i = 0; i < 60; i++) go(false); }, () => { model.save_changes(); told(); });
  button(f, "Step", () => { run.stop(); go(); told(); }); button(f, "Reset", () => { run.stop(); model.set("steps", 0); place(model.get("start").map((x) => [...x])); draw(); told(); });
  select(f, model, "target", "target", { gaussian: "Gaussian", mixture: "mixture", banana: "banana" });
  select(f, model, "kernel", "kernel", { rbf: "RBF", imq: "IMQ" });
  width = slider(f, model, "bandwidth", "bandwidth h", { min: .01, max: 10, step: .01, log: true });
  check(f, model, "median", "median");
  slider(f, model, "temperature", "temperature", { min: 0, max: 3, step: .05 });
  check(f, model, "repulsion", "repulsion");
  const legend = node("div", { class: "dr-line" }, f.panel);
  legend.innerHTML = `<svg width="34" height="10" viewBox="0 0 34 10" aria-hidden="true"><line x1="2" x2="32" y1="5" y2="5" stroke="${COLORS[1]}" stroke-width="3"/></svg> driving force &nbsp; <svg width="34" height="10" viewBox="0 0 34 10" aria-hidden="true"><line x1="2" x2="32" y1="5" y2="5" stroke="${COLORS[0]}" stroke-width="3" stroke-dasharray="4 2.5"/></svg> repulsive force &nbsp; drag a dot, or tab to it and press arrow keys`;
  const line = node("div", { class: "dr-line" }, f.panel);
  const off = () => { width.disabled = model.get("median"); if (!width.disabled) width.shown(model.get("bandwidth")); };
  for (const k of ["particles", "kernel", "bandwidth", "median", "temperature", "repulsion", "target"]) model.on("change:" + k, draw);
  model.on("change:median", off); model.on("change:target", wash); off();
  const ends = [fit(f, (w) => { scale = w / UNITS; draw(); }), follow(f, wash)];
  return () => { run.stop(); ends.forEach((e) => e()); };
}
