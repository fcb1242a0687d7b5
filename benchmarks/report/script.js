for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const numeric = head.className === "number";
    const key = row => row.cells[place].dataset.key;
    const number = text => text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
    const missing = text => text === "" || text === "nan";
    const rows = [...table.tBodies[0].rows].sort((first, second) => {
      const [a, b] = [key(first), key(second)];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const [x, y] = [number(a), number(b)];
      const order = numeric ? (x < y ? -1 : x > y ? 1 : 0) : a.localeCompare(b, undefined, {numeric: true});
      return down ? -order : order;
    });
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  }));
}
for (const bar of document.querySelectorAll(".filters")) {
  const table = bar.parentElement.querySelector("table.sorts");
  const names = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
  const menus = [...bar.querySelectorAll("select")];
  const count = bar.querySelector(".count");
  const act = () => {
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      row.hidden = menus.some(menu => menu.value && row.cells[names.indexOf(menu.dataset.column)].dataset.key !== menu.value);
    }
    count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} rows`;
  };
  menus.forEach(menu => menu.addEventListener("change", act));
  act();
}
const unfold = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", unfold);
unfold();
