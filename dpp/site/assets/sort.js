// Tables of class "sortable": a click on a heading sorts by its column, a second one the other way.
function valueOf(cell) {
  const text = cell.textContent.trim();
  const number = parseFloat(text.replace(/[−–]/g, "-"));
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

function compare(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what has no number is last
  return a < b ? -1 : a > b ? 1 : 0;
}

function sortBy(table, column, heading) {
  const body = table.tBodies[0];
  const descending = heading.getAttribute("aria-sort") !== "descending";
  const rows = Array.from(body.rows, (row) => ({ row, value: valueOf(row.cells[column]) }));
  rows.sort((a, b) => {
    const order = compare(a.value, b.value);
    const numbers = typeof a.value === "number" && typeof b.value === "number";
    return numbers && descending ? -order : order;
  });
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.append(...rows.map((entry) => entry.row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((heading, column) => {
    heading.tabIndex = 0;
    heading.setAttribute("role", "columnheader");
    heading.addEventListener("click", () => sortBy(table, column, heading));
    heading.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sortBy(table, column, heading);
    });
  });
}
