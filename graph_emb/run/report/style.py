"""Style and script of the pages; the script shows marks' texts, finds nodes and hides classes, and loads nothing."""

from __future__ import annotations

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#22252b;background:#f6f7f9;margin:0}
header{background:#22252b;color:#fff;padding:14px 24px;display:flex;align-items:baseline;gap:16px}
h1{font-size:22px;margin:0}h2{font-size:18px;margin:0 0 10px}h3{font-size:15px;margin:16px 0 6px}
main{max-width:1060px;margin:0 auto;padding:18px}
section{background:#fff;border:1px solid #e2e5ea;border-radius:8px;padding:16px 20px;margin:0 0 16px;overflow-x:auto}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:0 0 12px}
.tiles div{background:#fff;border:1px solid #e2e5ea;border-radius:8px;padding:10px 16px;color:#5b6270}
.tiles b{display:block;font-size:20px;color:#22252b}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:14px}
figure{margin:0}figcaption{font-weight:600;margin:0 0 4px}
svg.chart{width:100%;max-width:520px;height:auto}svg text{font-size:12px;fill:#5b6270}
svg .grid{stroke:#e8eaee}svg.map{width:100%;max-width:720px;height:auto;background:#fcfcfd;border:1px solid #e2e5ea}
svg.map circle{fill-opacity:.8}svg.map circle.found{stroke:#000;stroke-width:3;r:8px}svg.map .off{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 12px;margin:6px 0}.key{font:inherit;border:0;background:none;padding:2px}
button.key{cursor:pointer}.key.off{opacity:.35}
.key i{display:inline-block;width:11px;height:11px;border-radius:50%;margin-right:5px}
table{border-collapse:collapse}table.narrow{min-width:300px}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid #eceef2;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#a12622}tr.differs td{background:#fff6e0}
pre{background:#f6f7f9;padding:10px;overflow-x:auto;margin:8px 0}.command{white-space:pre-wrap;background:#fff}
#tip{position:fixed;pointer-events:none;background:#22252b;color:#fff;padding:3px 8px;border-radius:4px;max-width:420px}
"""

SCRIPT = """
const tip = document.getElementById("tip");
document.addEventListener("mousemove", event => {
  const text = event.target.dataset && event.target.dataset.tip;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = event.clientY + 14 + "px";
});
for (const key of document.querySelectorAll("button.key")) key.addEventListener("click", () => {
  const off = key.classList.toggle("off");
  for (const mark of document.querySelectorAll("#map .c" + key.dataset.class)) mark.classList.toggle("off", off);
});
const find = document.getElementById("find");
if (find) find.addEventListener("input", () => {
  const asked = find.value.trim().toLowerCase();
  for (const mark of document.querySelectorAll("#map circle"))
    mark.classList.toggle("found", asked !== "" && mark.dataset.name.toLowerCase().includes(asked));
});
"""
