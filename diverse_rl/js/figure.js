// What every figure shares: colours, light and dark, controls, and a model for pages that have no kernel.
// It is put before the figure's own file; the two are one module, which imports nothing.
export const COLORS = ["#d1495b", "#2e86ab", "#3a9d5d", "#b8860b", "#8a5fbf", "#6c757d"];
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// A model without a kernel: the part of anywidget's that figures use.
export function localModel(state) {
  const heard = {};
  return {
    get: (k) => state[k],
    set: (k, v) => { if (JSON.stringify(state[k]) === JSON.stringify(v)) return; state[k] = v; (heard["change:" + k] || []).forEach((f) => f()); },
    save_changes: () => {},
    on: (e, f) => { (heard[e] ||= []).push(f); },
    off: (e, f) => { heard[e] = (heard[e] || []).filter((o) => f && o !== f); },
    send: () => {},
  };
}
// Fill the first box of this kind that is still empty (the same figure may stand on a page twice).
export function mount(render, id, state) {
  const el = [...document.querySelectorAll(`.dr-figure[data-figure="${id}"]`)].find((o) => !o.model);
  if (!el) return;
  el.model = localModel(state); render({ model: el.model, el });
}
// ---- building blocks
export function node(name, attrs = {}, parent = null, text = null) {
  const svg = /^(svg|g|circle|line|path|rect|text|title|polyline|ellipse|polygon)$/.test(name);
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const k in attrs) e.setAttribute(k, attrs[k]);
  if (text !== null) e.textContent = text;
  if (parent) parent.append(e);
  return e;
}
const channel = (h, i) => { const v = parseInt(h.slice(1 + 2 * i, 3 + 2 * i), 16) / 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
// Black or white, whichever reads better on a colour.
export const inkOn = (h) => .2126 * channel(h, 0) + .7152 * channel(h, 1) + .0722 * channel(h, 2) > .179 ? "#111" : "#fff";
export function put(e, attrs) { for (const k in attrs) e.setAttribute(k, attrs[k]); return e; }

// The box of a figure: a stage with an SVG, a panel for controls, a line that screen readers hear.
export function frame(el, model) {
  const look = model.get("look"), [ww, wh, wp] = look.wide, [nw, nh, np] = look.narrow;
  el.replaceChildren(); el.classList.add("dr-figure"); el.setAttribute("role", "group"); el.setAttribute("aria-label", look.label);
  for (const [k, v] of Object.entries({ ww, wh, wp, nw, nh, np })) el.style.setProperty("--" + k, v);
  const stage = node("div", { class: "dr-stage" }, el), panel = node("div", { class: "dr-panel" }, el);
  const svg = node("svg", { role: "group", "aria-label": look.drawing }, stage);
  const live = node("div", { class: "dr-hidden", role: "status", "aria-live": "polite" }, el);
  return { el, stage, panel, svg, say: (t) => { live.textContent = t; }, look };
}
// Call draw(width, height, narrow) now and when the figure changes between its wide and its narrow shape.
export function fit(f, draw) {
  let was = null;
  const go = () => {
    if (!f.el.clientWidth) return;
    const narrow = f.el.clientWidth < 560;
    if (narrow === was) return;
    was = narrow; const [w, h] = narrow ? f.look.narrow : f.look.wide;
    f.svg.setAttribute("viewBox", `0 0 ${w} ${h}`); draw(w, h, narrow);
  };
  const o = new ResizeObserver(go); o.observe(f.el); go();
  return () => o.disconnect();
}
// Follow the page: dark where the ground under the figure is dark, whoever made it so.
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor, n = (c.match(/[\d.]+/g) || []).map(Number);
    if (n.length >= 3 && (n.length < 4 || n[3] > .5)) return [c, (.299 * n[0] + .587 * n[1] + .114 * n[2]) / (c.startsWith("color(") ? 1 : 255)];
  }
  return matchMedia("(prefers-color-scheme: dark)").matches && getComputedStyle(document.documentElement).colorScheme.includes("dark") ? ["#181818", 0] : ["#fff", 1];
};
export function follow(f, redraw) {
  const check = () => {
    const [colour, light] = ground(f.el.parentElement), dark = String(light < .5);
    f.el.style.setProperty("--back", colour);
    if (f.el.dataset.dark !== dark) { f.el.dataset.dark = dark; redraw(); }
  };
  const later = () => { check(); setTimeout(check, 80); setTimeout(check, 500); };
  const o = new MutationObserver(later), m = matchMedia("(prefers-color-scheme: dark)");
  for (const e of [document.documentElement, document.body]) o.observe(e, { attributes: true, attributeFilter: ["class", "style", "theme", "data-scheme", "data-jp-theme-light", "data-vscode-theme-kind"] });
  m.addEventListener("change", later); later();
  return () => { o.disconnect(); m.removeEventListener("change", later); };
}
// ---- controls, each bound to one value of the model
const send = (model, key, v) => { model.set(key, v); model.save_changes(); };
const bound = (model, key, sync) => { model.on("change:" + key, sync); sync(); };
export function button(f, text, act, hint) {
  const b = node("button", { type: "button", ...(hint ? { title: hint } : {}) }, f.panel, text); b.addEventListener("click", act); return b;
}
export function select(f, model, key, label, options) {
  const l = node("label", {}, f.panel, label), s = node("select", {}, l);
  for (const [v, t] of Object.entries(options)) node("option", { value: v }, s, t);
  s.addEventListener("change", () => send(model, key, s.value)); bound(model, key, () => { s.value = model.get(key); });
  return s;
}
export function check(f, model, key, label) {
  const l = node("label", {}, f.panel), c = node("input", { type: "checkbox" }, l); l.append(label);
  c.addEventListener("change", () => send(model, key, c.checked)); bound(model, key, () => { c.checked = model.get(key); });
  return c;
}
export function slider(f, model, key, label, { min, max, step, log = false, show = (v) => v.toFixed(2), grow = false }) {
  const to = log ? Math.log10 : (v) => v, from = log ? (v) => 10 ** v : (v) => v;
  const l = node("label", grow ? { class: "dr-grow" } : {}, f.panel, label), s = node("input", { type: "range", min: to(min), max: to(max), step }, l), o = node("output", {}, l);
  const name = () => { o.value = show(from(+s.value)); s.setAttribute("aria-valuetext", o.value); };
  s.addEventListener("input", () => { send(model, key, Math.min(max, Math.max(min, +from(+s.value).toPrecision(6)))); name(); });
  s.shown = (v) => { s.value = to(v); o.value = show(v); s.setAttribute("aria-valuetext", o.value); };
  bound(model, key, () => s.shown(model.get(key)));
  return s;
}
// A button that calls tick() again and again until tick returns false; with reduced motion it calls jump() once.
export function player(f, names, tick, jump, stopped = () => {}) {
  let timer = null;
  const stop = () => { if (timer === null) return; clearInterval(timer); timer = null; b.textContent = names[0]; stopped(); };
  const b = button(f, names[0], () => {
    if (timer !== null) return stop();
    if (still()) { jump(); return stopped(); }
    b.textContent = names[1]; timer = setInterval(() => { if (!f.el.isConnected || tick() === false) stop(); }, 40);
  });
  return { button: b, stop };
}
// Pointer drags on e: move(dx, dy, x, y) in units of the SVG's viewBox.
export function drag(f, e, move, done = () => {}) {
  const at = (ev) => { const p = new DOMPoint(ev.clientX, ev.clientY).matrixTransform(f.svg.getScreenCTM().inverse()); return [p.x, p.y]; };
  let last = null;
  e.style.touchAction = "none";
  e.addEventListener("pointerdown", (ev) => { last = at(ev); e.setPointerCapture(ev.pointerId); e.focus({ preventScroll: true }); ev.preventDefault(); });
  e.addEventListener("pointermove", (ev) => { if (!last) return; const p = at(ev); move(p[0] - last[0], p[1] - last[1], p[0], p[1]); last = p; });
  for (const n of ["pointerup", "pointercancel"]) e.addEventListener(n, () => { if (last) { last = null; done(); } });
}
export const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
export function keys(e, move, done = () => {}) {
  e.addEventListener("keydown", (ev) => {
    const d = ARROWS[ev.key]; if (!d || ev.ctrlKey || ev.metaKey || ev.altKey) return;
    ev.preventDefault(); move(d[0], d[1], ev.shiftKey); done();
  });
}
