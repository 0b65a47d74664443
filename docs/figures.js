// Loads the site's own plotly.js where a page has a figure, and keeps figures readable in light and dark.
(() => {
  const lib = document.currentScript.dataset.lib;
  const load = (done) => addEventListener("DOMContentLoaded", () => {
    if (!document.querySelector(".plotly-graph-div")) return;
    const s = document.createElement("script"); s.src = lib; s.onload = done; document.head.append(s);
  });
  window.plotlyReady = new Promise(load);

  const clear = "rgba(0,0,0,0)", faint = "rgba(128,128,128,.28)";
  const own = (o, path) => path.split(".").reduce((v, k) => v == null ? v : v[k], o);
  const wanted = (l, ink) => {
    const u = { paper_bgcolor: clear, plot_bgcolor: clear, "font.color": ink };
    for (const k of Object.keys(l)) {
      if (/^[xy]axis\d*$/.test(k)) for (const c of ["gridcolor", "zerolinecolor", "linecolor"]) u[`${k}.${c}`] = faint;
      if (/^(ternary|polar|scene)\d*$/.test(k)) u[`${k}.bgcolor`] = clear;
      if (/^ternary\d*$/.test(k)) for (const a of "abc") { u[`${k}.${a}axis.gridcolor`] = faint; u[`${k}.${a}axis.linecolor`] = faint; }
    }
    (l.updatemenus || []).forEach((_, i) => { u[`updatemenus[${i}].bgcolor`] = faint; });
    return u;
  };
  const wrap = (text, n) => text.split("<br>").map((line) => line.split(" ").reduce((out, w) =>
    (out.length && (out[out.length - 1] + " " + w).length <= n ? out[out.length - 1] += " " + w : out.push(w), out), []).join("<br>")).join("<br>");
  // On a phone: legend under the axes, narrow margins, the title in several lines.
  const narrow = (l, width) => {
    const title = (l.title || {}).text || "", lines = wrap(title, Math.floor(width / 7.5));
    const u = { "margin.l": Math.min(l.margin.l, 52), "margin.r": Math.min(l.margin.r, 12) };
    if (l.showlegend) Object.assign(u, { "legend.orientation": "h", "legend.x": 0, "legend.xanchor": "left", "legend.y": -64 / l._size.h, "legend.yanchor": "top" });
    if (title) Object.assign(u, { "title.text": lines, "title.font.size": 14, "title.x": .02, "title.xanchor": "left" });
    (l.annotations || []).forEach((a, i) => { if (a.font.size > 12) u[`annotations[${i}].font.size`] = 12; });
    return u;
  };
  const paint = (el) => {
    if (!el._fullLayout) return;                       // still being drawn: it paints itself when it is done
    el.given ||= JSON.parse(JSON.stringify(el.layout, (k, v) => k === "template" ? undefined : v));
    const u = wanted(el._fullLayout, getComputedStyle(document.body).color);
    for (const k of Object.keys(u)) if (own(el.given, k) !== undefined) delete u[k];   // what a figure sets itself stays
    if (el.clientWidth < 520) Object.assign(u, narrow(el._fullLayout, el.clientWidth));
    if (!el.hasAttribute("aria-label")) {               // a figure is one thing with a name
      const title = ((el.given.title || {}).text || "").replace(/<[^>]+>/g, " ").trim();
      el.setAttribute("role", "group"); el.setAttribute("aria-label", title ? `Figure: ${title}` : "Figure");
    }
    Plotly.relayout(el, u);
  };
  window.followTheme = paint;
  new MutationObserver(() => document.querySelectorAll(".js-plotly-plot").forEach(paint))
    .observe(document.documentElement, { attributes: true, attributeFilter: ["class", "data-scheme"] });
})();
