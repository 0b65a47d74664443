// Weights that sum to one, on a segment (two of them) or a triangle (three): places, corners and a handle to drag.
// A figure takes this part with the line `// uses: simplex` at the top of its file.
export const CORNERS = { 2: [[0, .5], [1, .5]], 3: [[0, .866], [1, .866], [.5, 0]] };   // in units of one side, y down

// The nearest weights to v among those that are not negative and sum to one.
export function onSimplex(v) {
  const u = [...v].sort((a, b) => b - a); let sum = 0, theta = 0;
  u.forEach((x, i) => { sum += x; const t = (sum - 1) / (i + 1); if (x > t) theta = t; });
  return v.map((x) => Math.max(0, x - theta));
}
// A map between weights and places; (x, y) is the upper left corner of its square, side its width in px.
export function simplexMap(x, y, side, size) {
  const c = CORNERS[size].map(([a, b]) => [x + a * side, y + b * side]);
  const place = (w) => [0, 1].map((k) => c.reduce((s, p, i) => s + p[k] * w[i], 0));
  const weights = (px, py) => {
    const [a, b] = c;
    if (size === 2) { const t = ((px - a[0]) * (b[0] - a[0]) + (py - a[1]) * (b[1] - a[1])) / ((b[0] - a[0]) ** 2 + (b[1] - a[1]) ** 2); return onSimplex([1 - t, t]); }
    const o = c[2], d = (b[1] - o[1]) * (a[0] - o[0]) + (o[0] - b[0]) * (a[1] - o[1]);
    const u = ((b[1] - o[1]) * (px - o[0]) + (o[0] - b[0]) * (py - o[1])) / d, v = ((o[1] - a[1]) * (px - o[0]) + (a[0] - o[0]) * (py - o[1])) / d;
    return onSimplex([u, v, 1 - u - v]);
  };
  return { corners: c, place, weights };
}
// Edge and corner names, each corner in its component's colour.
export function drawSimplex(parent, map, names, colours) {
  node("polygon", { points: map.corners.map((p) => p.join(",")).join(" "), fill: "var(--wash)", stroke: "var(--edge)" }, parent);
  const mid = [0, 1].map((k) => map.corners.reduce((s, p) => s + p[k], 0) / map.corners.length);
  map.corners.forEach((p, i) => {
    node("circle", { cx: p[0], cy: p[1], r: 5, fill: colours[i] }, parent);
    const low = p[1] >= mid[1];
    node("text", { x: p[0], y: p[1] + (low ? 20 : -11), "text-anchor": p[0] < mid[0] - 1 ? "start" : p[0] > mid[0] + 1 ? "end" : "middle" }, parent, names[i]);
  });
}
// A handle bound to the value `key` (a list of weights): dragged, or moved by arrow keys (with shift five times as far).
export function simplexHandle(f, parent, map, model, key, label) {
  const g = node("g", { tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": 0, style: "cursor:grab" }, parent);
  node("circle", { class: "dr-ring", r: 15 }, g); node("circle", { r: 10, fill: "var(--ink)", stroke: "var(--back)", "stroke-width": 2 }, g);
  const show = () => {
    const w = model.get(key), p = map.place(w);
    put(g, { transform: `translate(${p[0].toFixed(2)} ${p[1].toFixed(2)})`, "aria-valuenow": w[0].toFixed(2), "aria-valuetext": w.map((o) => o.toFixed(2)).join(", ") });
  };
  const to = (px, py) => { model.set(key, map.weights(px, py).map((o) => +o.toFixed(4))); model.save_changes(); };
  drag(f, g, (dx, dy, px, py) => to(px, py));
  keys(g, (dx, dy, far) => { const p = map.place(model.get(key)), s = .02 * (far ? 5 : 1) * Math.hypot(map.corners[1][0] - map.corners[0][0], 0); to(p[0] + dx * s, p[1] + dy * s); });
  model.on("change:" + key, show); show();
  return g;
}
