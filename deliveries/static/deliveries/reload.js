"use strict";
// Renews a part of the page every two seconds while somebody looks at it.

const RELOAD_MS = 2000;

async function reload() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const renewed = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-reload]");
    const part = document.querySelector("[data-reload]");
    if (renewed && renewed.innerHTML !== part.innerHTML) part.replaceWith(renewed);
  } catch {
    // The server is away for a moment; the next round asks again.
  }
}

setInterval(reload, RELOAD_MS);
