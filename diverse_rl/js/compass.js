// uses: simplex
// A KL term on the simplex of three answers: exact step, sampled steps, variance, and where the steps lead.
const LEAST = 1e-4;
// A policy with no answer below LEAST: logarithms stay finite.
export const inside = (w) => w.map((v) => LEAST + (1 - w.length * LEAST) * v);
const dot = (a, b) => a.reduce((s, v, i) => s + v * b[i], 0);
const entries = (p) => p.map((_, v) => v);
// Numbers per entry as functions of d = log p - log q, with their derivative in log p.
const ESTIMATORS = {
  k1: (d) => [d, 1], k2: (d) => [d * d / 2, d], k3: (d) => [Math.expm1(-d) + d, -Math.expm1(-d)],
  neg: (d) => [-d, -1], neg_k3: (d) => [Math.expm1(d) - d, Math.expm1(d)], log_q: (d, q) => [Math.log(q), 0],
};
// Law, value and gradient (in the logits of p) of every entry that could be sampled. term: {estimator, sampler, placement}.
export function arms(term, p, q) {
  const d = p.map((v, i) => Math.log(v / q[i])), n = p.length, law = term.sampler === "q" ? q : p, score = (v) => p.map((o, i) => (i === v ? 1 : 0) - o);
  if (term.sampler === "all") {
    const kl = term.estimator === "full_pq" ? dot(p, d) : -dot(q, d), g = term.estimator === "full_pq" ? p.map((o, i) => o * (d[i] - kl)) : p.map((o, i) => o - q[i]);
    return { law, value: Array(n).fill(kl), gradient: entries(p).map(() => g) };
  }
  const parts = d.map((o, i) => ESTIMATORS[term.estimator](o, q[i]));
  const factor = { loss: ([, slope]) => slope, reward: ([f]) => f, ratio: ([f, slope]) => f + slope }[term.placement];
  return { law, value: parts.map((o) => o[0]), gradient: parts.map((o, v) => score(v).map((s) => factor(o) * s)) };
}
// Mean of value and gradient, and the variance of a single sample's gradient, summed over the logits.
export function moments(term, p, q) {
  const a = arms(term, p, q), gradient = entries(p).map((i) => dot(a.law, a.gradient.map((g) => g[i])));
  return { value: dot(a.law, a.value), gradient, variance: dot(a.law, a.gradient.map((g) => g.reduce((s, v, i) => s + (v - gradient[i]) ** 2, 0))) };
}
// The policy after a step against the gradient (along it with a minus sign before the term).
export function moved(p, gradient, step) {
  const z = p.map((v, i) => Math.log(v) - step * gradient[i]), top = Math.max(...z), e = z.map((v) => Math.exp(v - top)), s = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / s);
}
// Exact steps, one after the other, from p; it ends early where the policy stands still or an answer has died out.
export function flow(term, p, q, step, steps) {
  const path = [p];
  for (let i = 0; i < steps; i++) {
    const last = path[path.length - 1], next = moved(last, moments(term, last, q).gradient, step);
    if (Math.min(...next) < 1e-6) break;
    path.push(next);
  }
  return path;
}
// Chance that can be repeated: numbers in (0,1) from a seed.
export function chance(seed) {
  let a = (seed * 2654435761 + 1013904223) >>> 0;
  return () => { a = (a + 0x6d2b79f5) >>> 0; let t = Math.imul(a ^ (a >>> 15), 1 | a); t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t; return ((t ^ (t >>> 14)) >>> 0) / 4294967296; };
}
// Mean gradients of independent batches of n samples.
export function sampled(term, p, q, batches, n, seed) {
  const a = arms(term, p, q), u = chance(seed), out = [];
  for (let b = 0; b < batches; b++) {
    const g = p.map(() => 0);
    for (let k = 0; k < n; k++) {
      let t = u(), v = 0; while (v < p.length - 1 && t >= a.law[v]) t -= a.law[v++];
      a.gradient[v].forEach((o, i) => { g[i] += o / n; });
    }
    out.push(g);
  }
  return out;
}
const short = (v) => Math.abs(v) < 5e-4 ? "0" : (v < 0 ? "−" : "") + Math.abs(v).toFixed(3);
const bold = "font-weight:600", soft = "fill:var(--soft);font-size:12px";

export function render({ model, el }) {
  const f = frame(el, model), terms = model.get("terms"), names = model.get("names"), STEP = model.get("step");
  let map = null, back = null, front = null, panel = null;
  const term = () => terms.find((t) => t.name === model.get("term")), sign = () => model.get("minus") ? -1 : 1;
  const at = (w) => map.place(w).map((v) => v.toFixed(2)).join();
  function arrow(from, to, colour, name, width = 5) {
    const a = map.place(from), b = map.place(to), n = Math.hypot(b[0] - a[0], b[1] - a[1]); if (n < 1) return;
    const ux = (b[0] - a[0]) / n, uy = (b[1] - a[1]) / n, t = Math.min(20, n * .6), w = t * .45, c = [b[0] - ux * t, b[1] - uy * t];
    node("path", { d: `M${a.map((v) => v.toFixed(2)).join(" ")}L${c.map((v) => v.toFixed(2)).join(" ")}`, stroke: "var(--back)", "stroke-width": width + 2.5, fill: "none" }, front);
    node("path", { class: name, d: `M${a.map((v) => v.toFixed(2)).join(" ")}L${b.map((v) => v.toFixed(2)).join(" ")}`, stroke: colour, "stroke-width": width, fill: "none" }, front);
    node("path", { d: `M${b.join(" ")}L${c[0] - uy * w * 1.5} ${c[1] + ux * w * 1.5}L${c[0] + uy * w * 1.5} ${c[1] - ux * w * 1.5}Z`, fill: colour, stroke: "var(--back)", "stroke-width": .8 }, front);
  }
  // A needle on a grid of policies: which way each of them would be sent.
  function needles(t, q, colour) {
    const N = 12, unit = Math.hypot(map.corners[1][0] - map.corners[0][0], map.corners[1][1] - map.corners[0][1]) / N;
    for (let i = 0; i < N; i++) for (let j = 0; i + j < N; j++) {
      const w = [(i + 1 / 3) / N, (j + 1 / 3) / N, (N - i - j - 2 / 3) / N], g = moments(t, w, q).gradient, size = Math.sqrt(dot(g, g));
      if (size < 1e-6) { const a = map.place(w); node("circle", { class: "dr-needle", cx: a[0].toFixed(1), cy: a[1].toFixed(1), r: 1.2, fill: colour, opacity: .5 }, back); continue; }
      const a = map.place(w), b = map.place(moved(w, g, sign() * .02 / size)), n = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1, l = unit * .36 * (.35 + .65 * Math.min(1, size / .3)), u = [(b[0] - a[0]) / n * l, (b[1] - a[1]) / n * l];
      const p = [a[0] + u[0], a[1] + u[1]], s = [-u[1] * .28, u[0] * .28];
      node("path", { class: "dr-needle", d: `M${p.map((v) => v.toFixed(1)).join(" ")}L${(a[0] - u[0] + s[0]).toFixed(1)} ${(a[1] - u[1] + s[1]).toFixed(1)}L${(a[0] - u[0] - s[0]).toFixed(1)} ${(a[1] - u[1] - s[1]).toFixed(1)}Z`, fill: colour, opacity: .4 }, back);
    }
  }
  function numbers(t, m, n) {
    const { x, y, w } = panel.box, size = Math.sqrt(dot(m.gradient, m.gradient)); let h = y;
    panel.replaceChildren();
    for (const [a, b, c] of [["value", t.value, m.value], ["size of gradient", t.gradient, size], ["std of one sample", "", Math.sqrt(m.variance)], [`std, mean of ${n}`, "", Math.sqrt(m.variance / n)]]) {
      node("text", { x, y: h, style: soft }, panel, a); if (b) node("text", { x, y: h + 18, style: "font-size:12.5px" }, panel, b);
      node("text", { class: "dr-number", x: x + w, y: h, "text-anchor": "end", style: "font-size:15px;font-weight:600;font-variant-numeric:tabular-nums" }, panel, short(c)); h += b ? 44 : 26;
    }
    if (!panel.box.legend) return;
    h += 26; node("text", { x, y: h, style: soft }, panel, "colour: the gradient it follows");
    for (const [d, label] of [["p||q", "∇KL(p||q)"], ["q||p", "∇KL(q||p)"], ["other", "another"], ["none", "none: noise"]]) {
      h += 23; const on = d === t.direction; node("rect", { x, y: h - 10, width: 22, height: 11, rx: 2, fill: terms.find((o) => o.direction === d).colour, opacity: on ? 1 : .55 }, panel);
      node("text", { x: x + 30, y: h, style: `font-size:12.5px${on ? ";font-weight:700" : ""}` }, panel, label);
    }
  }
  function draw() {
    if (!map) return;
    back.replaceChildren(); front.replaceChildren();
    const t = term(), p = inside(model.get("p")), q = inside(model.get("q")), n = Math.round(model.get("samples")), m = moments(t, p, q), colour = t.colour, go = (g) => moved(p, g, sign() * STEP);
    needles(t, q, colour);
    if (model.get("trace")) {
      const path = flow(t, p, q, sign() * .2, 400);
      node("polyline", { class: "dr-flow", points: path.map(at).join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 2, "stroke-dasharray": "1 5", "stroke-linecap": "round" }, front);
      const e = map.place(path[path.length - 1]); if (path.length > 1) node("rect", { class: "dr-end", x: e[0] - 5, y: e[1] - 5, width: 10, height: 10, transform: `rotate(45 ${e[0]} ${e[1]})`, fill: "var(--back)", stroke: "var(--ink)", "stroke-width": 2 }, front);
    }
    const g = sampled(t, p, q, model.get("batches"), n, model.get("seed")), mean = p.map((_, i) => g.reduce((s, v) => s + v[i], 0) / g.length), o = map.place(p);
    g.forEach((v) => {
      const e = map.place(go(v)); if (Math.hypot(e[0] - o[0], e[1] - o[1]) < .7) return;
      node("line", { class: "dr-ray", x1: o[0].toFixed(2), y1: o[1].toFixed(2), x2: e[0].toFixed(2), y2: e[1].toFixed(2), stroke: colour, "stroke-width": 1.3, opacity: .75 }, front);
      node("circle", { cx: e[0].toFixed(2), cy: e[1].toFixed(2), r: 2.6, fill: colour }, front);
    });
    arrow(p, go(m.gradient), colour, "dr-arrow");
    const c = map.place(go(mean)), s = 6; node("path", { class: "dr-mean", d: `M${c[0] - s} ${c[1] - s}L${c[0] + s} ${c[1] + s}M${c[0] - s} ${c[1] + s}L${c[0] + s} ${c[1] - s}`, stroke: "var(--ink)", "stroke-width": 2.4 }, front);
    numbers(t, m, n);
    title.textContent = `${model.get("minus") ? "− " : ""}${t.name}`;
    batch.textContent = `rays: ${panel.box.legend ? "steps from " : ""}${n} sample${n > 1 ? "s" : ""}`;
    const way = model.get("minus") ? "climbs" : "descends", what = t.gradient.replaceAll("∇", "");
    verdict.textContent = t.direction === "none" ? "no gradient in expectation: all noise" : `${way} ${what}` + (t.direction === "other" ? ", neither KL by itself" : "");
    put(f.svg, { "aria-label": `${title.textContent}: value ${short(m.value)}, size of gradient ${short(Math.sqrt(dot(m.gradient, m.gradient)))}, standard deviation of one sample ${short(Math.sqrt(m.variance))}; ${verdict.textContent}` });
  }
  let title = null, batch = null;
  const options = Object.fromEntries(terms.map((t) => [t.name, `${t.name}`]));
  select(f, model, "term", "term", options);
  const told = () => f.say(f.svg.getAttribute("aria-label"));
  button(f, "Resample", () => { model.set("seed", model.get("seed") + 1); model.save_changes(); told(); });
  button(f, "Step", () => { const p = inside(model.get("p")); model.set("p", moved(p, moments(term(), p, inside(model.get("q"))).gradient, sign() * STEP).map((v) => +v.toFixed(4))); model.save_changes(); told(); }, "to the tip of the arrow");
  button(f, "Reset", () => { for (const k of ["p", "q"]) model.set(k, model.get("start_" + k)); model.save_changes(); told(); });
  slider(f, model, "samples", "samples", { min: 1, max: 256, step: .30103, log: true, show: (v) => String(Math.round(v)) });
  check(f, model, "minus", "minus sign (bonus)"); check(f, model, "trace", "trace");
  const verdict = node("div", { class: "dr-line" }, f.panel);
  node("div", { class: "dr-line" }, f.panel, "arrow: exact step · cross: mean of the rays · dots: where exact steps lead · needles: the same everywhere");
  for (const k of ["p", "q", "term", "samples", "seed", "minus", "trace"]) model.on("change:" + k, draw);
  const ends = [fit(f, (w, h, narrow) => {
    f.svg.replaceChildren();
    const side = narrow ? 320 : 440; map = simplexMap(narrow ? 30 : 34, narrow ? 62 : 62, side, 3);
    title = node("text", { x: narrow ? 12 : 14, y: 18, style: bold + ";font-size:15px" }, f.svg);
    const ground = node("g", { "aria-hidden": "true" }, f.svg); drawSimplex(ground, map, names, names.map(() => "var(--soft)"));
    back = node("g", { "aria-hidden": "true" }, f.svg); front = node("g", { "aria-hidden": "true" }, f.svg); panel = node("g", { "aria-hidden": "true" }, f.svg);
    panel.box = narrow ? { x: 14, y: 392, w: 350, legend: false } : { x: 510, y: 104, w: 182, legend: true };
    batch = node("text", narrow ? { x: 366, y: 18, "text-anchor": "end", style: soft } : { x: 510, y: 64, style: soft }, f.svg);
    const hq = simplexHandle(f, f.svg, map, model, "q", "the other policy q; arrow keys move it"), hp = simplexHandle(f, f.svg, map, model, "p", "the trained policy p; arrow keys move it");
    put(hq.children[1], { fill: "var(--back)", stroke: "var(--ink)", "stroke-width": 3 });
    for (const [g, t] of [[hq, "q"], [hp, "p"]]) { put(g, { class: "dr-policy-" + t }); node("text", { y: 4.5, "text-anchor": "middle", style: `font-weight:700;font-size:13px;pointer-events:none;fill:${t === "p" ? "var(--back)" : "var(--ink)"}` }, g, t); g.addEventListener("keyup", (ev) => { if (ARROWS[ev.key]) told(); }); }
    draw();
  }), follow(f, draw)];
  return () => ends.forEach((e) => e());
}
