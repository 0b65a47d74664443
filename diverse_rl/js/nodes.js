// uses: simplex
// Weight vectors on the simplex by three rules, what their number costs, and what a group makes of the set rewards.
export const RULES = { iid: [COLORS[3], "iid"], sobol: [COLORS[1], "Sobol"], lattice: [COLORS[2], "lattice"] };

// Weights from base64: the first D-1 components of each, three bytes a number, in units of 1/(2^24-1).
export function unpack(text, size) {
  const s = atob(text), w = [], c = size - 1;
  for (let i = 0; i < s.length; i += 3 * c) {
    const v = Array.from({ length: c }, (_, d) => ((s.charCodeAt(i + 3 * d) << 16) | (s.charCodeAt(i + 3 * d + 1) << 8) | s.charCodeAt(i + 3 * d + 2)) / (2 ** 24 - 1));
    w.push([...v, 1 - v.reduce((a, b) => a + b, 0)]);
  }
  return w;
}
// The lattice with n steps along an edge, pulled towards the centre so that its mean and covariance are the uniform ones.
export function lattice(n, size) {
  const rows = size === 2 ? Array.from({ length: n + 1 }, (_, i) => [i, n - i]) : Array.from({ length: n + 1 }, (_, i) => Array.from({ length: n - i + 1 }, (_, j) => [i, j, n - i - j])).flat();
  return rows.map((r) => r.map((i) => 1 / size + (i - n / size) / Math.sqrt(Math.max(1, n * (n + size)))));
}
const dot = (a, b) => a.reduce((s, v, i) => s + v * b[i], 0);
// Mean over the weights of the best answer's utility.
export const setReward = (set, weights) => weights.reduce((s, w) => s + Math.max(...set.map((r) => dot(r, w))), 0) / weights.length;
// What a group makes of its rewards: distance from the mean, for 'z_norm' in population standard deviations.
export function advantage(rewards, transform) {
  const n = rewards.length, m = rewards.reduce((a, b) => a + b, 0) / n, c = rewards.map((r) => r - m);
  if (transform === "center") return c;
  const sd = Math.sqrt(c.reduce((a, b) => a + b * b, 0) / n);
  return c.map((v) => sd < 1e-6 ? 0 : v / (sd + 1e-6));
}
// The weights under which answer m wins, as a polygon of weight vectors (D=3).
export function cell(set, m) {
  let poly = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
  set.forEach((other, j) => {
    if (j === m) return;
    const delta = set[m].map((v, d) => v - other[d]), out = [];
    poly.forEach((w, i) => {
      const v = poly[(i + poly.length - 1) % poly.length], a = dot(w, delta), b = dot(v, delta);
      if (a * b < 0) out.push(w.map((x, d) => (b * x - a * v[d]) / (b - a)));
      if (a >= 0) out.push(w);
    });
    poly = out;
  });
  return poly;
}
const LETTER = (i) => String.fromCharCode(65 + i), bold = "font-weight:600", small = "font-size:11.5px", soft = "fill:var(--soft);font-size:11.5px";
const short = (v) => v.toFixed(4);

export function render({ model, el }) {
  const f = frame(el, model), sets = model.get("sets"), size = sets[0][0].length, alphas = model.get("alphas"), one = alphas.indexOf(1);
  const at = () => model.get("rule") === "lattice" ? one : model.get("alpha"), sizes = () => model.get("rule") === "lattice" ? model.get("lattices") : model.get("sizes");
  const tables = {};
  const nodes = () => {
    const rule = model.get("rule"), i = model.get("size");
    if (rule === "lattice") return lattice(model.get("edges")[i], size);
    const key = [rule, at(), model.get("draw")].join();
    tables[key] ||= unpack(model.get("nodes")[rule][model.get("draw")][at()], size);
    return tables[key].slice(0, sizes()[i]);
  };
  let box = {}, layer = null;
  const text = (x, y, t, style = "", anchor = "middle", parent = layer) => node("text", { x, y, "text-anchor": anchor, style }, parent, t);
  const line = (x1, y1, x2, y2, more = {}, parent = layer) => node("line", { x1, y1, x2, y2, stroke: "var(--edge)", ...more }, parent);
  const mark = (rule, x, y, r, more) => rule === "iid" ? node("circle", { cx: x, cy: y, r, ...more }, layer) : rule === "sobol" ? node("rect", { x: x - r * .9, y: y - r * .9, width: 1.8 * r, height: 1.8 * r, ...more }, layer)
    : node("polygon", { points: `${x},${y - 1.2 * r} ${x + 1.1 * r},${y + .8 * r} ${x - 1.1 * r},${y + .8 * r}`, ...more }, layer);

  function triangle(w, colour) {
    const { x, y, side } = box.left, map = simplexMap(x, y, side, size), names = [1, 2, 3].map((d) => `reward ${d}`);
    drawSimplex(layer, map, names, names.map(() => "var(--soft)"));
    sets[0].forEach((_, m) => {
      const poly = cell(sets[0], m).map(map.place); if (poly.length < 3) return;
      node("polygon", { class: "dr-cell", points: poly.map((p) => p.map((v) => v.toFixed(1)).join()).join(" "), fill: "none", stroke: "var(--edge)", "stroke-dasharray": "3 3" }, layer);
    });
    const r = w.length > 100 ? 2.6 : w.length > 30 ? 3.4 : 4.6;
    w.map(map.place).forEach(([a, b]) => node("circle", { class: "dr-node", cx: a.toFixed(2), cy: b.toFixed(2), r, fill: colour, "fill-opacity": .85, stroke: "var(--back)", "stroke-width": .6 }, layer));
    sets[0].forEach((_, m) => {
      const poly = cell(sets[0], m).map(map.place); if (poly.length < 3) return;
      const c = [0, 1].map((k) => poly.reduce((s, p) => s + p[k], 0) / poly.length);
      node("text", { x: c[0], y: c[1] + 6, "text-anchor": "middle", style: "font-size:17px;font-weight:700;stroke:var(--back);stroke-width:4px;paint-order:stroke" }, layer, LETTER(m));
    });
  }
  function segment(w, colour) {                              // two components: the answers' lines, their upper envelope, and the nodes on it
    const { x, y, side } = box.left, h = side * .8, X = (t) => x + t * side, Y = (u) => y + h - u * h, top = (t) => Math.max(...sets[0].map((r) => dot(r, [t, 1 - t])));
    node("rect", { x, y, width: side, height: h, fill: "var(--wash)", stroke: "var(--edge)" }, layer);
    sets[0].forEach((r, m) => { line(X(0), Y(r[1]), X(1), Y(r[0]), { "stroke-dasharray": "3 3" }); text(x + side + 5, Y(r[0]) + 4, LETTER(m), bold, "start"); });
    node("polyline", { class: "dr-cell", points: Array.from({ length: 101 }, (_, i) => `${X(i / 100).toFixed(1)},${Y(top(i / 100)).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 1.6 }, layer);
    w.forEach((v) => node("circle", { class: "dr-node", cx: X(v[0]).toFixed(2), cy: Y(top(v[0])).toFixed(2), r: w.length > 60 ? 2.4 : 3.8, fill: colour, "fill-opacity": .85, stroke: "var(--back)", "stroke-width": .6 }, layer));
    w.forEach((v) => line(X(v[0]), y + h, X(v[0]), y + h - 7, { stroke: colour, opacity: .7 }));
    text(X(0), y + h + 18, "reward 2 alone", soft, "start"); text(X(1), y + h + 18, "reward 1 alone", soft, "end");
  }
  function errors(own) {
    const { x, y, w, h } = box.right, rms = model.get("errors"), low = model.get("lowest"), X = (k) => x + w * Math.log(k / 3) / Math.log(256 / 3), Y = (e) => y + h * Math.min(1, Math.max(0, Math.log(.2 / Math.max(e, 1e-12)) / Math.log(.2 / low)));
    node("rect", { x, y, width: w, height: h, fill: "var(--wash)" }, layer);
    for (const k of [4, 16, 64, 256]) { line(X(k), y, X(k), y + h, { opacity: .4 }); text(X(k), y + h + 16, k, small); }
    for (const e of [.1, .01, .001, .0001, .00001]) if (e >= low) { line(x, Y(e), x + w, Y(e), { opacity: .4 }); text(x - 6, Y(e) + 4, e < .0001 ? "10⁻⁵" : String(e), small, "end"); }
    text(x + w / 2, y + h + 32, "number of weights K", soft);
    const k = sizes()[model.get("size")]; line(X(k), y, X(k), y + h, { stroke: "var(--ink)", "stroke-dasharray": "2 3" });
    for (const [rule, [colour]] of Object.entries(RULES)) {
      const e = rule === "lattice" ? (at() === one ? rms.lattice : null) : rms[rule][at()]; if (!e) continue;
      const ks = rule === "lattice" ? model.get("lattices") : model.get("sizes"), on = rule === model.get("rule"), p = e.map((v, i) => [X(ks[i]), Y(v)]);
      node("polyline", { class: `dr-error dr-${rule}`, points: p.map((o) => o.map((v) => v.toFixed(2)).join()).join(" "), fill: "none", stroke: colour, "stroke-width": on ? 2.6 : 1.5, opacity: on ? 1 : .75 }, layer);
      p.forEach(([a, b]) => mark(rule, a, b, on ? 4 : 3, { fill: colour, opacity: on ? 1 : .8 }));
    }
    if (own !== null) node("circle", { class: "dr-own", cx: X(k), cy: Y(own).toFixed(2), r: 8, fill: "none", stroke: "var(--ink)", "stroke-width": 2.2 }, layer);
    let left = x;
    for (const [rule, [colour, name]] of Object.entries(RULES)) {
      const gone = rule === "lattice" && at() !== one; mark(rule, left + 6, y - 12, 4.5, { fill: colour, opacity: gone ? .35 : 1 });
      text(left + 16, y - 8, gone ? "lattice: α = 1 only" : name, small + (gone ? ";fill:var(--soft)" : ""), "start"); left += rule === "iid" ? 46 : 66;
    }
  }
  function strip(values, exact, colour) {
    const { x, y, w, gap } = box.strip, [a, b] = model.get("range"), z = model.get("transform") === "z_norm", most = z ? 3.2 : .3, G = values.length;
    const inside = (v, l, h) => Math.min(h, Math.max(l, v)), X = (v) => x + w * (inside(v, a, b) - a) / (b - a), Z = (v) => x + w * (inside(v, -most, most) + most) / (2 * most);
    const A = advantage(values, model.get("transform")), B = advantage(exact, model.get("transform"));
    const axis = (at, ticks, T, show, side) => { line(x, at, x + w, at); ticks.forEach((t) => { line(T(t), at - 4, T(t), at + 4); text(T(t), at + side, show(t), small); }); };
    axis(y, Array.from({ length: Math.round((b - a) / .1) + 1 }, (_, i) => a + i * .1), X, (v) => v.toFixed(1), -13);
    axis(y + gap, z ? [-3, -2, -1, 0, 1, 2, 3] : [-.3, -.2, -.1, 0, .1, .2, .3], Z, (v) => (v > 0 ? "+" : v < 0 ? "−" : "") + Math.abs(v).toFixed(z ? 0 : 1), 22);
    for (let i = G - 1; i >= 0; i--) {
      const on = i < 2; line(X(values[i]), y, Z(A[i]), y + gap, { opacity: on ? .9 : .6, stroke: on ? "var(--ink)" : "var(--edge)", "stroke-width": on ? 1.4 : 1 });
      for (const [p, q, at, kind] of [[X(exact[i]), X(values[i]), y, "reward"], [Z(B[i]), Z(A[i]), y + gap, "advantage"]]) {
        node("circle", { class: "dr-exact", cx: p.toFixed(2), cy: at, r: 7.5, fill: "none", stroke: "var(--ink)", "stroke-width": 1.2, opacity: .8 }, layer);
        node("circle", { class: `dr-${kind}`, cx: q.toFixed(2), cy: at, r: 4.6, fill: colour, stroke: "var(--back)", "stroke-width": .8 }, layer);
      }
    }
    return Math.sqrt(A.reduce((s, v, i) => s + (v - B[i]) ** 2, 0) / G);
  }
  function draw() {
    if (!box.left) return;
    layer?.remove(); layer = node("g", { "aria-hidden": "true" }, f.svg);
    const w = nodes(), rule = model.get("rule"), [colour, name] = RULES[rule], G = model.get("group"), alpha = alphas[at()], truth = model.get("exact")[at()], values = sets.slice(0, G).map((s) => setReward(s, w)), own = Math.abs(values[0] - truth[0]);
    text(box.left.x + box.left.side / 2, box.titles[0], `${w.length} ${name} weight vectors, α = ${alpha}`, bold);
    text(box.right.x + box.right.w / 2 - 8, box.titles[1], "error of the set reward", bold);
    const head = text(box.strip.x, box.titles[2], `set rewards of ${G} rollouts`, bold, "start"); text(box.strip.x + head.getComputedTextLength() + 8, box.titles[2], "the first is the set above", soft, "start");
    (size === 3 ? triangle : segment)(w, colour); errors(own);
    const miss = strip(values, truth.slice(0, G), colour);
    text(box.strip.x, box.strip.y + box.strip.gap + 42, model.get("transform") === "z_norm" ? "their advantages, in group standard deviations" : "their advantages: distance from the group mean", bold, "start");
    const list = sizes(), e = rule === "lattice" ? model.get("errors").lattice[model.get("size")] : model.get("errors")[rule][at()][model.get("size")];
    info.textContent = `set reward ${values[0].toFixed(4)}, exact ${truth[0].toFixed(4)}: off by ${short(own)}` + (rule === "lattice" ? "" : `, rms of ${model.get("repeats")} draws ${short(e)}`);
    verdict.textContent = `G = ${G}: advantage off by ${miss.toFixed(3)} rms` + (G === 2 && model.get("transform") === "z_norm" ? " · two rollouts score ±1 whatever α, K or rule" : "");
    alphaSlider.disabled = rule === "lattice"; if (rule === "lattice") alphaSlider.shown(one); else alphaSlider.shown(model.get("alpha"));
    sizeSlider.shown(model.get("size")); again.disabled = rule === "lattice";
    put(f.svg, { "aria-label": `${list[model.get("size")]} ${name} weight vectors with alpha ${alpha}; ${info.textContent}; ${verdict.textContent}` });
  }
  select(f, model, "rule", "rule", { iid: "iid", sobol: "Sobol", lattice: "lattice" });
  const again = button(f, "Redraw", () => { model.set("draw", (model.get("draw") + 1) % model.get("nodes").iid.length); model.save_changes(); f.say(info.textContent); }, "the same rule, other chance");
  const sizeSlider = slider(f, model, "size", "K", { min: 0, max: model.get("sizes").length - 1, step: 1, show: (i) => String(sizes()[Math.round(i)]) });
  const alphaSlider = slider(f, model, "alpha", "α", { min: 0, max: alphas.length - 1, step: 1, show: (i) => String(alphas[Math.round(i)]) });
  const groupSlider = slider(f, model, "group", "group size G", { min: 2, max: sets.length, step: 1, show: (v) => String(v) });
  select(f, model, "transform", "advantage", { z_norm: "z-score", center: "centred" });
  const info = node("div", { class: "dr-line" }, f.panel), verdict = node("div", { class: "dr-line" }, f.panel), key = node("div", { class: "dr-line" }, f.panel, "dots: what the weights say · rings: exact · curves: rms over draws, big ring: the draw you see");
  for (const s of [sizeSlider, alphaSlider, groupSlider]) s.addEventListener("change", () => f.say(`${info.textContent}; ${verdict.textContent}`));
  for (const k of ["rule", "size", "alpha", "draw", "group", "transform"]) model.on("change:" + k, draw);
  const ends = [fit(f, (w, h, narrow) => {
    box = narrow ? { titles: [16, 358, 600], left: { x: 40, y: 48, side: 300 }, right: { x: 50, y: 396, w: 316, h: 150 }, strip: { x: 16, y: 640, w: 348, gap: 90 } }
      : { titles: [16, 16, 340], left: { x: 24, y: 48, side: 280 }, right: { x: 384, y: 52, w: 300, h: 210 }, strip: { x: 24, y: 380, w: 652, gap: 96 } };
    draw();
  }), follow(f, draw)];
  return () => ends.forEach((e) => e());
}
