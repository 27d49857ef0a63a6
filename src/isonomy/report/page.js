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

  // Figures: a select box chooses one of the views.
  document.querySelectorAll("figure[data-figure]").forEach(function (figure) {
    var select = figure.querySelector("select");
    if (!select) return;
    var views = figure.querySelectorAll(".view");
    function choose() {
      views.forEach(function (view, i) { view.hidden = String(i) !== select.value; });
    }
    select.addEventListener("change", choose);
    choose(); // browsers may keep the choice when a page is loaded again
  });

  // A slider moves the ring of its chart, and shows the text of the point.
  document.querySelectorAll(".slider").forEach(function (slider) {
    var stops = JSON.parse(slider.dataset.stops);
    var ring = slider.parentNode.querySelector(".ring");
    var input = slider.querySelector("input"), output = slider.querySelector("output");
    function move() {
      var stop = stops[Number(input.value)];
      ring.setAttribute("x", stop[0]);
      ring.setAttribute("y", stop[1]);
      output.textContent = stop[2];
    }
    input.addEventListener("input", move);
    move();
  });

  // The text of a mark follows the pointer or a touch; without this script it is a tooltip.
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);
  document.querySelectorAll(".chart title").forEach(function (title) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  });
  function show(event) {
    var mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    var wide = document.documentElement.clientWidth;
    var left = Math.min(event.clientX + 12, wide - tip.offsetWidth - 8);
    tip.style.left = Math.max(8, left) + window.scrollX + "px";
    tip.style.top = event.clientY + window.scrollY + 14 + "px";
  }
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);

  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (each) { each.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (each) { each.open = false; });
  });
})();
