/* What furo leaves open for readers who use a keyboard or a screen reader (found with axe-core). */

function label(selector, attributes) {
  for (const element of document.querySelectorAll(selector))
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

/* Boxes that scroll can be reached with the Tab key; others are not in its way. */
function reachable() {
  for (const box of document.querySelectorAll(".table-wrapper, div.highlight pre, math[display=block]")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
}

/* Sphinx breaks signatures into lines with lists of definitions that define nothing. */
function plain(selector, name) {
  for (const element of document.querySelectorAll(selector)) {
    const box = document.createElement("div");
    box.className = name;
    box.append(...element.childNodes);
    element.replaceWith(box);
  }
}

/* Markdown has no table without a row of headings, and no heading that is a plain cell. */
function headings() {
  for (const row of document.querySelectorAll("thead tr")) {
    const empty = [...row.cells].filter((cell) => !cell.textContent.trim());
    if (empty.length === row.cells.length) row.remove();
    else for (const cell of empty) cell.replaceWith(document.createElement("td"));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  label(".sidebar-tree .caption[role=heading]", { "aria-level": "2" });
  label(".sidebar-drawer", { "aria-label": "Pages" });
  label(".toc-drawer", { "aria-label": "On this page" });
  label(".content-icon-container", { role: "navigation", "aria-label": "This page" });
  headings();
  plain(".sig dl", "signature-lines");
  plain(".sig dd", "signature-line");
  reachable();
});
window.addEventListener("resize", reachable);
