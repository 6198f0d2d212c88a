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

  // A table sorts by the column whose heading is pressed.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (heading.classList.contains("plain")) return;
      const press = document.createElement("button");
      press.type = "button";
      press.textContent = heading.textContent;
      heading.replaceChildren(press);
      press.addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const text = (row) => row.cells[column].textContent;
        const number = (row) => (text(row) === "∞" ? Infinity : Number(text(row).replace(/[\s%,]/g, "").replace("–", "-1")));
        const numeric = column > 0 && original.every((row) => !Number.isNaN(number(row)));
        const order = (a, b) => (numeric ? number(a) - number(b) : column ? text(a).localeCompare(text(b)) : 0);
        const sorted = [...original].sort(order);
        body.append(...(up ? sorted : sorted.reverse()));
      });
    });
  }

  // What the pointer is on: the nearest mark of a figure, or any element with a text of its own.
  const tip = document.getElementById("tip");
  const tell = (event, text) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - width - 8);
    const above = event.clientY - height - 14;
    tip.style.transform = `translate(${Math.max(8, left)}px, ${above > 8 ? above : event.clientY + 22}px)`;
  };
  const nearest = (svg, event) => {
    let best = { far: 18 };
    for (const mark of svg.querySelectorAll("[data-tip]")) {
      const box = mark.getBoundingClientRect();
      const beside = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const below = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const far = Math.hypot(beside, below / 3);
      if (far < best.far) best = { far, mark };
    }
    return best.mark;
  };
  addEventListener("pointermove", (event) => {
    const svg = event.target.closest("figure svg[role=img]");
    const mark = svg ? nearest(svg, event) : event.target.closest("[data-tip]");
    tell(event, mark ? mark.dataset.tip : svg && svg.dataset.tip);
  });
  addEventListener("pointerleave", () => { tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // The sliders move together, and everything with data-show follows them.
  const sliders = [...document.querySelectorAll("input.radius")];
  if (!sliders.length) return;
  const { steps, widths, runs } = JSON.parse(document.getElementById("curves").textContent);
  const percent = (share, digits = 2) => `${(100 * share).toFixed(digits)}\u00a0%`;
  const count = (number) => number.toLocaleString("en");
  for (const run of runs) {
    run.images = run.classes.reduce((sum, one) => sum + one.images, 0);
    run.levels = run.classes.flatMap((one) => one.levels);
  }
  const cursors = Object.entries(widths).flatMap(([size, width]) => {
    const line = document.querySelector(`#figure-certified .${size} [class*="cursor_marks"] line`);
    return line ? [{ line, width, height: line.getAttribute("transform").split(",")[1] }] : [];
  });
  const draw = {
    share: (element, one, n) => { element.textContent = percent(n / one.images, element.dataset.digits); },
    of: (element, one, n) => { element.textContent = `${count(n)} of ${count(one.images)} images`; },
    count: (element, one, n) => { element.textContent = n; element.style.setProperty("--share", n / one.images); },
    open: (element, one, n) => { element.textContent = one.correct - n; },
    bar: (element, one, n) => {
      [n, one.correct - n].forEach((part, index) => { element.children[index].style.width = `${(100 * part) / one.images}%`; });
      element.dataset.tip = `${count(n)} of ${count(one.images)} certified, ${count(one.correct - n)} correct but not certified, ${count(one.images - one.correct)} wrong`;
    },
  };
  const show = (step) => {
    const radius = step / 255;
    const words = `${step}/255 ≈ ${(Math.floor((1000 * step) / 255) / 1000).toFixed(3)}`; // rounded down
    for (const slider of sliders) { slider.value = String(step); slider.setAttribute("aria-valuetext", words); }
    for (const element of document.querySelectorAll(".chosen")) element.textContent = words;
    for (const { line, width, height } of cursors) line.setAttribute("transform", `translate(${(step / steps) * width},${height}`);
    const certified = (one) => one.levels.reduce((sum, level) => sum + (level > step), 0);
    for (const element of document.querySelectorAll("[data-show]")) {
      const run = runs[element.dataset.run];
      const one = element.dataset.class === undefined ? run : run.classes[element.dataset.class];
      draw[element.dataset.show](element, one, certified(one));
    }
    runs.forEach(({ attacks }, index) => {
      const cell = document.querySelector(`[data-attacked="${index}"]`);
      const row = attacks.filter(([eps]) => eps <= radius + 1e-12).at(-1);
      if (!cell) return;
      const small = document.createElement("small");
      if (row) small.textContent = `at ${row[1]}, ${count(row[2])} images`;
      cell.replaceChildren(row ? `${percent(row[3])} to ${percent(row[4])}` : "–", small);
    });
    const told = runs.filter((run) => run.images).map((run) => `${run.name} ${percent(certified(run) / run.images)}`);
    for (const { line } of cursors) line.ownerSVGElement.dataset.tip = `certified within ${words}: ${told.join(", ")}`;
  };
  const follow = (event) => {
    const cursor = cursors.find(({ line }) => line.ownerSVGElement.contains(event.target));
    if (!cursor || (event.type === "pointermove" && !event.buttons && event.pointerType !== "mouse")) return;
    const matrix = cursor.line.parentNode.getScreenCTM();
    const x = (event.clientX - matrix.e) / matrix.a;
    if (x >= 0 && x <= cursor.width) show(Math.round((x / cursor.width) * steps));
  };
  for (const { line } of cursors) {
    line.ownerSVGElement.addEventListener("pointermove", follow);
    line.ownerSVGElement.addEventListener("pointerdown", follow);
  }
  for (const slider of sliders) {
    slider.addEventListener("input", () => show(Number(slider.value)));
    slider.parentNode.hidden = false;
  }
  show(36);
})();
