(function () {
  "use strict";

  // Tables: a click on a heading sorts the rows; cells without a number go last.
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      head.querySelector("button").addEventListener("click", function () {
        var first = head.dataset.better === "higher" ? "descending" : "ascending";
        var other = first === "ascending" ? "descending" : "ascending";
        var way = head.getAttribute("aria-sort") === first ? other : first;
        var sign = way === "ascending" ? 1 : -1;
        var body = table.tBodies[0];
        var rows = Array.from(body.rows);
        rows.sort(function (a, b) {
          var x = a.cells[column].dataset.value, y = b.cells[column].dataset.value;
          if (x === "" || y === "") return (x === "" ? 1 : 0) - (y === "" ? 1 : 0);
          var less = head.classList.contains("text") ? x.localeCompare(y) : Number(x) - Number(y);
          return sign * less;
        });
        rows.forEach(function (row) { body.appendChild(row); });
        heads.forEach(function (each) { each.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", way);
      });
    });
  });

  // Figures: the data are next to each figure as JSON; a select box chooses one of its views.
  document.querySelectorAll("figure[data-plot]").forEach(function (figure) {
    var given = JSON.parse(figure.querySelector("script").textContent);
    var plot = figure.querySelector(".plot");
    var touch = window.matchMedia("(pointer: coarse), (max-width: 40rem)").matches;
    var config = {
      responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]
    };
    if (touch) given.layout.dragmode = false; // on touch screens, scrolling must not zoom
    Plotly.newPlot(plot, given.data, given.layout, config);
    var select = figure.querySelector("select");
    if (select) {
      select.addEventListener("change", function () {
        var args = given.views[select.selectedIndex];
        Plotly.update(plot, args[0], args[1]);
      });
    }
  });

  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (each) { each.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (each) { each.open = false; });
  });
})();
