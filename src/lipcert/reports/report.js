"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Theme: what the system says, until the button says otherwise.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  label();

  // Everything is printed, also what is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));

  // A table sorts by the column whose heading is pressed.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const press = document.createElement("button");
      press.type = "button";
      press.textContent = heading.textContent;
      heading.replaceChildren(press);
      press.addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const text = (row) => row.cells[column].textContent;
        const number = (row) => (text(row) === "∞" ? Infinity : Number(text(row)));
        const numeric = column > 0 && original.every((row) => !Number.isNaN(number(row)));
        const order = (a, b) => (numeric ? number(a) - number(b) : column ? text(a).localeCompare(text(b)) : 0);
        const sorted = [...original].sort(order);
        body.append(...(up ? sorted : sorted.reverse()));
      });
    });
  }

  // The readout: what is known at the chosen radius.
  const slider = document.getElementById("radius");
  if (!slider) return;
  const { steps, widths, runs } = JSON.parse(document.getElementById("curves").textContent);
  const percent = (share) => `${(100 * share).toFixed(2)} %`;
  const cursors = Object.entries(widths).flatMap(([size, width]) => {
    const line = document.querySelector(`#figure-certified .${size} [class*="cursor_marks"] line`);
    return line ? [{ line, width, height: line.getAttribute("transform").split(",")[1] }] : [];
  });
  const show = () => {
    const step = Number(slider.value);
    const radius = step / 255;
    const words = `${step}/255 = ${radius.toFixed(3)}`;
    document.getElementById("chosen").textContent = words;
    slider.setAttribute("aria-valuetext", words);
    for (const { line, width, height } of cursors) line.setAttribute("transform", `translate(${(step / steps) * width},${height}`);
    runs.forEach(({ curve, attacks }, index) => {
      const below = attacks.filter(([eps]) => eps <= radius + 1e-12).at(-1);
      document.querySelector(`[data-certified="${index}"]`).textContent = curve.length ? percent(curve[step]) : "–";
      const small = document.createElement("small");
      if (below) small.textContent = `at ${below[2]}, ${below[3].toLocaleString("en")} images`;
      document.querySelector(`[data-attacked="${index}"]`).replaceChildren(below ? percent(below[1]) : "–", small);
    });
  };
  slider.addEventListener("input", show);
  const follow = (event) => {
    const cursor = cursors.find(({ line }) => line.ownerSVGElement.contains(event.target) || line.ownerSVGElement === event.target);
    if (!cursor || (event.type === "pointermove" && !event.buttons && event.pointerType !== "mouse")) return;
    const matrix = cursor.line.parentNode.getScreenCTM();
    const x = (event.clientX - matrix.e) / matrix.a;
    if (x < 0 || x > cursor.width) return;
    slider.value = String(Math.round((x / cursor.width) * steps));
    show();
  };
  for (const { line } of cursors) {
    line.ownerSVGElement.addEventListener("pointermove", follow);
    line.ownerSVGElement.addEventListener("pointerdown", follow);
  }
  document.querySelector(".readout").hidden = false;
  show();
})();
