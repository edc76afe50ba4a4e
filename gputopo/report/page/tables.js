// Long tables sort by their heads and get a filter. Without this file everything is there, in its order.
const textOf = (row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
for (const table of document.querySelectorAll("table[data-rows]")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    const isNumber = head.classList.contains("right");
    const value = (row) => {
      const text = row.cells[at].textContent.trim();
      return isNumber ? parseFloat(text.replaceAll(",", "")) : text.toLowerCase();
    };
    button.addEventListener("click", () => {
      const sorted = head.getAttribute("aria-sort");
      const isUp = isNumber ? sorted === "descending" : sorted !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      rows.map((row) => [value(row), row]).sort(([a], [b]) => {
        if (isNumber && (isNaN(a) || isNaN(b))) return isNaN(a) - isNaN(b);
        return a === b ? 0 : (a < b ? -1 : 1) * (isUp ? 1 : -1);
      }).forEach(([, row]) => body.append(row));
    });
  });
  if (rows.length <= 12) continue;
  const label = document.createElement("label"), input = document.createElement("input");
  const count = document.createElement("output"), texts = rows.map(textOf);
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    const kept = rows.filter((row, at) => !(row.hidden = !words.every((word) => texts[at].includes(word))));
    count.textContent = ` ${kept.length} of ${rows.length} rows`;
  };
  label.className = "filter note";
  input.type = "search";
  input.addEventListener("input", show);
  label.append("Rows with: ", input, count);
  table.parentElement.before(label);
  show();
}
