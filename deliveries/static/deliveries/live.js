"use strict";
// Keeps a page up to date while somebody looks at it: the texts that it names, and the part that it loads anew.

const page = document.querySelector("[data-live-source]");
const part = document.querySelector("[data-live-part]");

const shownHtml = new Map();

async function refresh() {
  if (page) show(JSON.parse(await load(page.dataset.liveSource, "application/json")));
  if (part) {
    const html = await load(part.dataset.livePart, "text/html");
    if (!isInUse(part)) part.innerHTML = html;
  }
}

// What somebody has chosen with the keyboard or marked to copy stays where it is.
function isInUse(element) {
  const marked = getSelection();
  return element.contains(document.activeElement) || (!marked.isCollapsed && element.contains(marked.anchorNode));
}

function show(texts) {
  const all = { sentence: texts.sentence, ...texts.figures };
  for (const [name, text] of Object.entries(all)) {
    const place = page.querySelector(`[data-live="${CSS.escape(name)}"]`);
    if (place && place.textContent !== text) place.textContent = text;
  }
  for (const [name, html] of Object.entries(texts.parts ?? {})) {
    const place = page.querySelector(`[data-live-html="${CSS.escape(name)}"]`);
    // What the browser makes of it may be written in another way, so texts are compared with those shown before.
    if (place && html !== shownHtml.get(name) && !isInUse(place)) {
      place.innerHTML = html;
      shownHtml.set(name, html);
    }
  }
  const status = page.querySelector("[data-live-level]");
  if (status && texts.level) status.className = `status ${texts.level}`;
}

keepUpToDate(refresh);
