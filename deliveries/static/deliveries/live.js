"use strict";
// Keeps the texts of a page up to date: asks for them every two seconds while somebody looks at the page.

const PERIOD_MS = 2000;
const page = document.querySelector("[data-live-source]");

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(page.dataset.liveSource, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    show(await answer.json());
  } catch {
    // The server is away for a moment; the next round asks again.
  }
}

function show(texts) {
  const all = { sentence: texts.sentence, ...texts.figures };
  for (const [name, text] of Object.entries(all)) {
    const place = page.querySelector(`[data-live="${CSS.escape(name)}"]`);
    if (place && place.textContent !== text) place.textContent = text;
  }
  const status = page.querySelector("[data-live-level]");
  if (status && texts.level) status.className = `status ${texts.level}`;
}

setInterval(refresh, PERIOD_MS);
document.addEventListener("visibilitychange", refresh);
