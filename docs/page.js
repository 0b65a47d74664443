// What scrolls sideways or up and down can be reached with the keyboard, and has a name; nothing else becomes a stop for the Tab key.
(() => {
  const name = (e) => e.closest("details")?.querySelector("summary")?.textContent || (e.matches(".cell-output, .cell-output pre, .cell-output *") ? "Output" : e.matches("table, .sd-table") ? "Table" : e.matches(".katex-display, .math") ? "Formula" : e.matches("nav") ? null : "Code");
  const mark = () => document.querySelectorAll("main pre, main table, main .katex-display, main .math.display, main .sd-table, main .cell-output, #quarto-sidebar, #quarto-margin-sidebar, .dr-panel").forEach((e) => {
    const style = getComputedStyle(e), scrolls = (o, a, b) => /auto|scroll/.test(o) && a > b + 1;
    if (!scrolls(style.overflowX, e.scrollWidth, e.clientWidth) && !scrolls(style.overflowY, e.scrollHeight, e.clientHeight)) { if (e.dataset.reach) { e.removeAttribute("tabindex"); e.removeAttribute("aria-label"); if (e.dataset.reach === "role") e.removeAttribute("role"); delete e.dataset.reach; } return; }
    if (e.hasAttribute("tabindex")) return;
    e.tabIndex = 0; e.dataset.reach = "yes";
    const n = name(e);
    if (n && !e.hasAttribute("aria-label")) { if (!e.matches("table") && !e.hasAttribute("role")) { e.setAttribute("role", "group"); e.dataset.reach = "role"; } e.setAttribute("aria-label", n); }
  });
  let wait; const soon = () => { clearTimeout(wait); wait = setTimeout(mark, 100); };
  addEventListener("load", mark); addEventListener("resize", soon); document.addEventListener("toggle", soon, true);
  mark(); document.fonts.ready.then(mark);
})();
