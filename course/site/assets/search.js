// Search in an index made beforehand: one entry a section, [page, heading, address, text].
"use strict";
{
  const box = document.getElementById("search-words");
  const list = document.getElementById("found");
  const count = document.getElementById("count");
  const index = window.courseIndex.map(([page, heading, address, text]) => ({
    page, heading, address, text,
    low: text.toLowerCase(), head: `${page} ${heading}`.toLowerCase(),
  }));
  const plain = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  const find = (words) => index
    .map((entry) => {
      let points = 0;
      for (const word of words) {
        const begins = new RegExp(`(^|[^\\p{L}\\p{N}])${escaped(word)}`, "gu");
        const here = (entry.low.match(begins) || []).length;
        const above = (entry.head.match(begins) || []).length;
        if (!here && !above) return null;
        points += Math.min(here, 5) + 8 * above;
      }
      if (entry.heading.toLowerCase() === words.join(" ")) points += 20;
      return { entry, points };
    })
    .filter(Boolean)
    .sort((a, b) => b.points - a.points);

  const excerpt = (entry, words) => {
    const at = Math.max(0, Math.min(...words.map((w) => {
      const place = entry.low.indexOf(w);
      return place < 0 ? Infinity : place;
    }).concat(entry.low.length)) - 60);
    const start = at ? entry.text.indexOf(" ", at) + 1 : 0;
    const piece = entry.text.slice(start, start + 220);
    const pattern = new RegExp(`(${words.map((w) => escaped(plain(w))).join("|")})`, "gi");
    return (start ? "… " : "") + plain(piece).replace(pattern, "<mark>$1</mark>") +
      (start + 220 < entry.text.length ? " …" : "");
  };

  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { list.innerHTML = ""; count.textContent = ""; return; }
    const found = find(words);
    count.textContent = found.length === 1 ? "1 place" : `${found.length} places`;
    if (found.length > 40) count.textContent += ", the first 40 of them here";
    list.innerHTML = found.slice(0, 40).map(({ entry }) => `<li>
      <a href="${entry.address}">${plain(entry.heading || entry.page)}</a>
      <p class="from">${plain(entry.page)}</p><p>${excerpt(entry, words)}</p></li>`).join("");
  };

  box.value = new URLSearchParams(location.search).get("q") || "";
  let wait;
  box.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(show, 120); });
  document.getElementById("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
  show();
}
