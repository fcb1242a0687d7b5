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
