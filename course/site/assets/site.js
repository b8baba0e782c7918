// What a page does beyond being read. Without it everything is there and stands still.
"use strict";

// The theme: a button that says which one it brings.
{
  const root = document.documentElement;
  const button = document.querySelector(".theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const say = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("course-theme", root.dataset.theme); } catch (error) { /* as it is */ }
    say();
  });
  system.addEventListener("change", say);
  say();
}

// The contents: folded where the window is narrow, always open where it is wide.
{
  const fold = document.querySelector(".contents > details");
  const narrow = matchMedia("(max-width: 62rem)");
  const fit = () => { fold.open = !narrow.matches; };
  narrow.addEventListener("change", fit);
  fit();
  const here = fold.querySelector("[aria-current]");
  const list = document.querySelector(".contents");
  if (here && !narrow.matches) list.scrollTop = here.offsetTop - list.clientHeight / 3;
}

// What is wider than the page scrolls, and then the keyboard must reach it.
{
  const wide = document.querySelectorAll("pre, .scroll, .outputs > .output");
  const reach = () => {
    for (const part of wide) {
      if (part.scrollWidth > part.clientWidth + 1) {
        part.tabIndex = 0;
        part.setAttribute("role", "group");
        part.setAttribute("aria-label", "Wider than the page: scroll with the arrow keys");
      } else if (part.tabIndex === 0) {
        for (const name of ["tabindex", "role", "aria-label"]) part.removeAttribute(name);
      }
    }
  };
  reach();
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
}

// Figures that move: Back, a slider and Next, through pictures made beforehand.
for (const [page, films] of Object.entries(window.courseFilms || {})) {
  for (const [cell, film] of Object.entries(films)) {
    const figure = document.querySelector(`[data-film="${CSS.escape(cell)}"] .course-twin > figure`);
    if (!figure) continue;
    const place = figure.parentElement;
    const name = `move-${cell}`, last = film.frames.length - 1;
    const bar = document.createElement("div");
    bar.className = "mover";
    bar.innerHTML = `<label for="${name}"></label><button type="button">Back</button>
      <input type="range" id="${name}" min="0" max="${last}" step="1" value="${film.start}">
      <button type="button">Next</button><output for="${name}"></output>`;
    const [label, back, slider, next, told] = bar.children;
    label.textContent = film.label;
    const words = (at) => {
      const name = film.names[at];
      return name === String(at) ? `${name} of ${last}` : name;
    };
    const show = (at, first) => {
      back.disabled = at === 0;
      next.disabled = at === last;
      slider.value = at;
      told.textContent = words(at);
      slider.setAttribute("aria-valuetext", words(at));
      if (first) return;
      const old = place.querySelector("figure");
      const folds = [...old.querySelectorAll("details")].map((part) => part.open);
      const holder = document.createElement("template");
      holder.innerHTML = film.frames[at].map((part) => film.parts[part]).join("");
      const fresh = holder.content.querySelector("figure");
      fresh.querySelectorAll("details").forEach((part, i) => { part.open = folds[i] || false; });
      // The sentence stays the same element, so that a screen reader hears of its change.
      const said = old.querySelector("figcaption"), news = fresh.querySelector("figcaption");
      if (news) {
        news.removeAttribute("role"); // a caption may not be a status, and need not
        news.setAttribute("aria-live", "polite");
      }
      if (said && news) {
        said.setAttribute("aria-live", "polite");
        said.innerHTML = news.innerHTML;
        const kept = [...fresh.childNodes];
        for (const node of [...old.childNodes]) if (node !== said) node.remove();
        let before = true;
        for (const node of kept) {
          if (node === news) before = false;
          else if (before) said.before(node);
          else old.append(node);
        }
      } else {
        old.replaceWith(fresh);
      }
    };
    // A button that goes off keeps no focus: hand it to the other one.
    const step = (by, button, other) => {
      show(Number(slider.value) + by);
      if (button.disabled) other.focus();
    };
    back.addEventListener("click", () => step(-1, back, next));
    next.addEventListener("click", () => step(1, next, back));
    slider.addEventListener("input", () => show(Number(slider.value)));
    place.classList.add("moving");
    place.parentElement.classList.add("moving");
    figure.before(bar);
    show(film.start, true);
  }
}
