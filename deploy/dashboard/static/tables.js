// Tables of a panel's rows: columns as in its specification, sorted by a click on a heading, searched as one types.
"use strict";

const SHOWN_ROWS = 200;

class DataTable {
  // options: columns (axes of a specification), search (label of a search box, or none), links (column → function from
  // a row to an address), sorter (function (column) → function called for a click on its heading, null if it does not
  // sort; without it rows are sorted here), shown (most rows on the page), note (function of (shown, all) → text)
  constructor(box, options) {
    this.box = box;
    this.options = options;
    this.sort = null;
    this.rows = [];
    this.words = "";
    this.status = element("p", { className: "note", role: "status" });
    this.table = element("div", { className: "scroll", tabIndex: 0, role: "region" });
    this.table.setAttribute("aria-label", options.title ?? "Table");
    const parts = [this.table, this.status];
    if (options.search) {
      const input = element("input", { type: "search", autocomplete: "off" });
      input.addEventListener("input", () => { this.words = input.value.trim().toLowerCase(); this.show(); });
      parts.unshift(element("label", { className: "search" }, options.search + " ", input));
    }
    box.append(...parts);
  }

  draw(rows) {
    this.rows = rows;
    this.show();
  }

  show() {
    const { columns, links = {}, shown = SHOWN_ROWS, note } = this.options;
    let rows = this.rows;
    if (this.words) {
      rows = rows.filter((row) => columns.some(({ column, unit }) => unit === "text" && String(row[column]).toLowerCase().includes(this.words)));
    }
    if (this.sort) {
      const [key, way] = this.sort;
      // Rows without a value come last in both orders.
      rows = [...rows].sort((a, b) => (a[key] == null) - (b[key] == null)
        || (typeof a[key] === "string" ? way * a[key].localeCompare(b[key]) : way * (a[key] - b[key])));
    }
    const visible = rows.slice(0, shown);
    const head = columns.map((axis) => this.heading(axis));
    const body = visible.map((row) => element("tr", {}, ...columns.map(({ column, unit }) => {
      const text = row[column] === "" ? "" : formatOf(unit)(row[column]);
      const cell = element("td", { className: unit === "text" ? "" : "value" });
      const address = links[column]?.(row);
      cell.append(address ? element("a", { href: address }, text || "(none)") : text);
      return cell;
    })));
    this.table.replaceChildren(element("table", { className: "list" },
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)));
    const all = this.rows.length;
    this.status.textContent = note ? note(visible.length, all)
      : visible.length < all ? `${visible.length.toLocaleString("en-US")} of ${all.toLocaleString("en-US")} rows` : "";
  }

  heading({ column, label, unit }) {
    const title = unit === "ms" ? `${label}, ${ZONE}` : label;
    const [sorted, act] = this.options.sorter ? this.options.sorter(column) ?? [null, null]
      : [this.sort?.[0] === column ? this.sort[1] : null, () => {
        const first = unit === "text" ? 1 : -1;
        this.sort = [column, this.sort?.[0] === column ? -this.sort[1] : first];
        this.show();
        this.table.querySelector(`th[data-column="${CSS.escape(column)}"] button`).focus();
      }];
    const cell = element("th", { scope: "col", className: unit === "text" ? "" : "value" });
    cell.dataset.column = column;
    if (sorted) cell.setAttribute("aria-sort", sorted > 0 ? "ascending" : "descending");
    if (!act) cell.append(title);
    else {
      const button = element("button", { type: "button" }, title + (sorted ? (sorted > 0 ? " ▲" : " ▼") : ""));
      button.addEventListener("click", act);
      cell.append(button);
    }
    return cell;
  }
}
