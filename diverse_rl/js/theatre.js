// One prompt, several ways of training: the answers of each arm as routes through a maze and as shares, over training.
export const total = (frame) => frame.reduce((s, [, n]) => s + n, 0);
export const shares = (frame) => frame.map(([, n]) => n / total(frame));
export const entropy = (frame) => Math.abs(shares(frame).reduce((s, p) => s - (p ? p * Math.log(p) : 0), 0));
// Cells a route stands on: the start, then one per move; a bump stays, the exit and the budget end it.
export function cells(maze, text) {
  const out = [maze.start]; let here = maze.start;
  for (const m of text ? text.split(" ") : []) {
    if (here === maze.exit || out.length > maze.budget) break;
    const a = "UDLR".indexOf(m); if (maze.openings[here] >> a & 1) here += [-maze.n, maze.n, -1, 1][a];
    out.push(here);
  }
  return out;
}
// Share of a frame's answers that lie on the exact front, and how many of its vectors they reach.
export function onFront(frame, routes) {
  const own = frame.filter(([i]) => routes[i][2] >= 0);
  return { share: total(own) / total(frame), reached: new Set(own.map(([i]) => routes[i][2])).size };
}
const LETTERS = "ABCDEFGHIJ", percent = (x) => (x > 0 && x < .01 ? "< 1" : Math.round(100 * x)) + " %";
const short = (x) => (x % 1 ? x.toFixed(2).replace(/^0/, "").replace(/0$/, "") : String(x));

function glyph(g, kind, x, y, r) {
  if (kind === "gold") node("circle", { cx: x, cy: y, r, fill: "#E69F00", stroke: "var(--back)" }, g);
  if (kind === "diamond") node("path", { d: `M${x} ${y - 1.25 * r}l${r} ${1.25 * r}l${-r} ${1.25 * r}l${-r} ${-1.25 * r}z`, fill: "#56B4E9", stroke: "var(--back)" }, g);
  if (kind === "lava") node("path", { d: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}zM${x - r} ${y}l${r} ${-r}M${x - r} ${y + r}l${2 * r} ${-2 * r}M${x} ${y + r}l${r} ${-r}`, fill: "#D55E00", "fill-opacity": .3, stroke: "#D55E00", "stroke-width": 1.3 }, g);
  if (kind === "S" || kind === "E") { node("circle", { cx: x, cy: y, r: 1.35 * r, fill: "#6E6E6E" }, g); node("text", { x, y: y + .75 * r, "text-anchor": "middle", style: `fill:#fff;font-size:${(2 * r).toFixed(1)}px;font-weight:700` }, g, kind); }
}
function walls(z, x, y, s) {
  let d = `M${x} ${y}h${z.n * s}v${z.n * s}h${-z.n * s}z`;
  z.openings.forEach((o, c) => {
    const a = x + (c % z.n) * s, b = y + Math.floor(c / z.n) * s;
    if (c % z.n < z.n - 1 && !(o & 8)) d += `M${a + s} ${b}v${s}`;
    if (c < z.n * (z.n - 1) && !(o & 2)) d += `M${a} ${b + s}h${s}`;
  });
  return d;
}
export function render({ model, el }) {
  const f = frame(el, model), routes = model.get("routes"), z = model.get("maze"), arms = model.get("arms"), steps = model.get("steps"), frames = model.get("frames"), named = model.get("named"), last = steps.length - 1;
  const rank = new Map(named.map((i, k) => [i, k])), walks = routes.map(([t]) => cells(z, t)), alive = (i) => routes[i][1][0] > 0;
  const id = "s" + Math.random().toString(36).slice(2, 8), high = Math.max(.1, ...frames.flat().map(entropy));
  const colour = (i) => rank.has(i) ? COLORS[rank.get(i) % 5] : "var(--soft)", striped = (i) => rank.get(i) >= 5;
  const fill = (i) => !alive(i) ? "none" : !rank.has(i) ? "var(--edge)" : striped(i) ? `url(#${id}${rank.get(i) % 5})` : colour(i);
  const order = (fr) => [...fr].sort(([i, n], [j, m]) => (alive(j) - alive(i)) || ((rank.has(i) ? rank.get(i) : 99) - (rank.has(j) ? rank.get(j) : 99)) || m - n || i - j);
  const at = (a) => frames[a][model.get("frame")], names = model.get("names"), size = model.get("front").length;
  const title = (i) => rank.has(i) ? `route ${LETTERS[rank.get(i)]}` : alive(i) ? "another route" : "no way out";
  const worth = (i) => names.map((n, d) => `${n} ${short(routes[i][1][d])}`).join(", ") + (routes[i][2] >= 0 ? "; on the exact front" : "");
  const counted = (a, i) => (at(a).find(([j]) => j === i) || [i, 0])[1];
  const words = (a, i) => `${arms[a]}: ${title(i)}, ${percent(counted(a, i) / total(at(a)))} (${counted(a, i)} of ${total(at(a))}). ${routes[i][0] || "no moves"}. ${worth(i)}`;
  const summary = (a) => `${arms[a]}, entropy ${entropy(at(a)).toFixed(2)} nats, ${at(a).length} different answers, ${onFront(at(a), routes).reached} of ${size} vectors of the front`;
  let panels = [], place = 0, stripes = null;
  const pick = (i, a = place) => { place = a; model.set("pick", i); };
  function strip(p, a) {
    const list = order(at(a)), n = total(list); let x = p.x;
    p.strip.replaceChildren(); p.list = list.map(([i]) => i); p.parts = [];
    for (const [i, m] of list) {
      const w = p.w * m / n, g = node("g", { class: "dr-part", style: "cursor:pointer" }, p.strip), own = rank.has(i); p.parts.push(g);
      node("rect", { x: x + .4, y: p.y, width: Math.max(.6, w - .8), height: p.h, fill: fill(i), stroke: alive(i) ? "none" : "var(--edge)", "stroke-width": .8, "fill-opacity": own ? 1 : .75 }, g);
      if (!alive(i)) node("rect", { x, y: p.y, width: w, height: p.h, fill: "transparent" }, g);
      if (routes[i][2] >= 0) node("rect", { class: "dr-star", x: x + .4, y: p.y + p.h + 2, width: Math.max(1.5, w - .8), height: 3, fill: "var(--ink)" }, g);
      if (own && w > 12) {
        if (striped(i)) node("circle", { cx: x + w / 2, cy: p.y + p.h / 2, r: 8, fill: colour(i) }, g);
        node("text", { x: x + w / 2, y: p.y + p.h / 2 + 4.5, "text-anchor": "middle", style: `fill:${inkOn(colour(i))};font-weight:600;pointer-events:none` }, g, LETTERS[rank.get(i)]);
      }
      g.addEventListener("pointerenter", () => pick(i, a)); g.addEventListener("pointerleave", () => pick(-1, a)); x += w;
    }
  }
  const points = (p, i, lane = 0) => walks[i].map((o) => [p.x + (o % z.n + .5) * p.s + lane, p.top + (Math.floor(o / z.n) + .5) * p.s + lane].map((v) => v.toFixed(1)).join(",")).join(" ");
  function paths(p, a) {
    const fr = at(a).filter(([i]) => alive(i)).sort((u, v) => v[1] - u[1]), n = total(at(a)); p.routes.replaceChildren();
    p.lines = fr.map(([i, m]) => [i, node("polyline", { class: "dr-route", points: points(p, i, rank.has(i) ? (rank.get(i) - 4.5) * p.s * .034 : 0), fill: "none", stroke: colour(i),
      "stroke-width": Math.max(.9, .46 * p.s * m / n).toFixed(2), "stroke-dasharray": striped(i) ? "5 2.5" : "none", "stroke-linejoin": "round" }, p.routes)]);
  }
  // Show which answer is chosen, without making anything anew, so that the pointer keeps what it is over.
  function mark() {
    const chosen = model.get("pick");
    panels.forEach((p, a) => {
      p.lines.forEach(([i, e]) => put(e, { opacity: chosen < 0 ? (rank.has(i) ? .92 : .5) : chosen === i ? 1 : .1 }));
      p.parts.forEach((g, k) => put(g, { opacity: chosen < 0 || chosen === p.list[k] ? 1 : .25 }));
      put(p.ghost, { points: chosen >= 0 && !p.list.includes(chosen) ? points(p, chosen) : "" });
      const i = p.list.indexOf(chosen);
      put(p.box, { "aria-valuemax": p.list.length, "aria-valuenow": i + 1, "aria-valuetext": i < 0 ? `${p.list.length} different answers` : words(a, chosen) });
    });
    line.textContent = chosen < 0 ? "Point at an answer, or tab to a strip and press arrow keys, to read it." : words(place, chosen);
  }
  function draw() {
    const k = model.get("frame");
    panels.forEach((p, a) => {
      const fr = at(a), o = onFront(fr, routes);
      paths(p, a); strip(p, a);
      p.nats.textContent = `${entropy(fr).toFixed(2)} nats`; p.kinds.textContent = `${fr.length} different answers`; p.front.textContent = `front ${o.reached} of ${size} (${percent(o.share)})`;
      put(p.dot, { cx: p.curve[k][0], cy: p.curve[k][1] }); p.map.setAttribute("aria-label", summary(a));
    });
    mark();
  }
  function panel(a, x, y, side) {
    const p = { x, w: side, s: side / z.n, top: y + 24, y: y + 24 + side + 10, h: 22 }, s = p.s;
    node("text", { x, y: y + 14, style: "font-weight:600" }, f.svg, arms[a]);
    p.map = node("g", { class: "dr-maze", role: "img" }, f.svg);
    node("rect", { x, y: p.top, width: side, height: side, fill: "var(--wash)" }, p.map);
    p.routes = node("g", {}, p.map); p.ghost = node("polyline", { fill: "none", stroke: "var(--soft)", "stroke-width": 1.2, "stroke-dasharray": "1.5 3" }, p.map);
    node("path", { d: walls(z, x, p.top, s), fill: "none", stroke: "var(--ink)", "stroke-width": 1.6, "stroke-linecap": "round" }, p.map);
    for (const [kind, where] of [["gold", z.gold], ["diamond", z.diamond], ["lava", z.lava], ["S", [z.start]], ["E", [z.exit]]]) for (const c of where) glyph(p.map, kind, x + (c % z.n + .5) * s, p.top + (Math.floor(c / z.n) + .5) * s, .17 * s);
    const box = node("g", { tabindex: 0, role: "slider", "aria-label": `${arms[a]}: shares of the answers; arrow keys go through them`, "aria-valuemin": 0 }, f.svg);
    node("rect", { class: "dr-ring", x: x - 3, y: p.y - 3, width: side + 6, height: p.h + 10, rx: 4 }, box);
    p.box = box; p.strip = node("g", { class: "dr-strip" }, box);
    keys(box, (dx, dy) => { const n = p.list.length, i = p.list.indexOf(model.get("pick")); pick(p.list[i < 0 ? (dx + dy > 0 ? 0 : n - 1) : (i + (dx + dy) + n) % n], a); });
    box.addEventListener("keydown", (ev) => { if (ev.key === "Escape") { pick(-1, a); f.panel.querySelector("button").focus(); } });
    box.addEventListener("blur", () => pick(-1, a));
    const low = p.y + p.h + 24;
    p.nats = node("text", { class: "dr-nats", x, y: low, style: "font-weight:600;font-size:14px;font-variant-numeric:tabular-nums" }, f.svg);
    const t = low + 8, b = t + 30, right = x + side - 4; p.curve = steps.map((_, k) => [(x + (right - x) * (last ? k / last : 1)).toFixed(1), (b - 28 * entropy(frames[a][k]) / high).toFixed(1)]);
    node("line", { x1: x, x2: x + side, y1: b, y2: b, stroke: "var(--edge)", "stroke-width": .8 }, f.svg);
    node("polyline", { class: "dr-curve", points: p.curve.map((c) => c.join(",")).join(" "), fill: "none", stroke: "var(--blue)", "stroke-width": 1.8, "stroke-linejoin": "round" }, f.svg);
    p.dot = node("circle", { r: 4, fill: "var(--blue)", stroke: "var(--back)", "stroke-width": 1.5 }, f.svg);
    [p.kinds, p.front] = ["dr-kinds", "dr-front"].map((c, i) => node("text", { class: c, x, y: b + 16 + 15 * i, style: "font-size:12px;font-variant-numeric:tabular-nums" }, f.svg));
    return p;
  }
  // What the letters stand for: swatch, letter, then the shares of gold, diamonds and lava that the route passes.
  function legend(k, x, y) {
    const i = named[k], v = routes[i][1], g = node("g", { class: "dr-key", style: "cursor:pointer" }, f.svg);
    node("rect", { x, y: y - 11, width: 124, height: 17, fill: "transparent" }, g); node("rect", { x, y: y - 10, width: 15, height: 14, fill: fill(i) }, g);
    node("text", { x: x + 20, y: y + 1.5, style: "font-weight:600" }, g, LETTERS[k]);
    [["gold", v[1]], ["diamond", v[2]], ["lava", 1 - v[3]]].forEach(([kind, o], d) => { glyph(g, kind, x + 40 + 28 * d, y - 3, 4); node("text", { x: x + 47 + 28 * d, y: y + 1.5, style: "font-size:12px" }, g, short(o)); });
    if (routes[i][2] >= 0) node("rect", { x, y: y + 6, width: 15, height: 3, fill: "var(--ink)" }, g);
    g.addEventListener("pointerenter", () => pick(i)); g.addEventListener("pointerleave", () => pick(-1));
  }
  function build(w, h, narrow) {
    f.svg.replaceChildren(); line.style.minHeight = narrow ? "72px" : "36px"; const n = arms.length, cols = narrow ? 2 : n, each = w / cols, rows = Math.ceil(n / cols), deep = narrow ? 296 : 0;
    stripes = node("g", {}, f.svg);
    for (let c = 0; c < 5; c++) {                          // a pattern needs its own element names
      const pat = document.createElementNS("http://www.w3.org/2000/svg", "pattern"); put(pat, { id: id + c, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }); stripes.append(pat);
      node("rect", { width: 5, height: 5, fill: COLORS[c], opacity: .45 }, pat); node("rect", { width: 2.6, height: 5, fill: COLORS[c] }, pat);
    }
    const side = narrow ? 134 : Math.min(each - 16, 150);
    panels = arms.map((_, a) => panel(a, (a % cols) * each + (each - side) / 2, Math.floor(a / cols) * deep, side));
    if (!narrow) { const from = h - 40; named.forEach((_, k) => legend(k, (k % 5) * (w / 5) + (w / 5 - 124) / 2, from + 22 * Math.floor(k / 5))); }
    else if (n % 2) named.forEach((_, k) => legend(k, each + (each - 124) / 2, (rows - 1) * deep + 36 + 23 * k));
    else named.forEach((_, k) => legend(k, (k % 2) * each + (each - 124) / 2, rows * deep + 14 + 22 * Math.floor(k / 2)));
    draw();
  }
  const to = (k) => model.set("frame", Math.max(0, Math.min(last, k))), told = () => f.say(`Step ${steps[model.get("frame")]}: ` + arms.map((_, a) => summary(a)).join("; "));
  let count = 0;
  const run = player(f, ["Play", "Pause"], () => { if (++count % 14) return; to(model.get("frame") + 1); return model.get("frame") < last; }, () => to(last), () => { model.save_changes(); told(); });
  run.button.addEventListener("click", () => { if (model.get("frame") === last && run.button.textContent === "Pause") { count = 0; to(0); } });
  const time = slider(f, model, "frame", "step", { min: 0, max: last, step: 1, grow: true, show: (k) => String(steps[Math.round(k)]) });
  time.setAttribute("aria-label", "training step"); time.addEventListener("change", told);
  const line = node("div", { class: "dr-line dr-read", style: "color:var(--ink)" }, f.panel);
  node("div", { class: "dr-line" }, f.panel, `The same maze in every column, ${total(frames[0][0])} answers; a route is as thick as its share. Letters: the commonest routes, with the share of gold, diamonds and lava they pass. Grey: other routes. Hollow: no way out. Underlined: on the exact front; below the curve of entropy: how many of its vectors are reached, by what share of the answers.`);
  model.on("change:frame", draw); model.on("change:pick", mark);
  const ends = [fit(f, build), follow(f, () => {})];
  return () => { run.stop(); ends.forEach((e) => e()); };
}
