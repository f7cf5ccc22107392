"use strict";
// Renews a part of the page every two seconds while somebody looks at it.

async function reload() {
  const page = new DOMParser().parseFromString(await load(location.href, "text/html"), "text/html");
  const renewed = page.querySelector("[data-reload]");
  const part = document.querySelector("[data-reload]");
  if (renewed.innerHTML !== part.innerHTML) part.replaceWith(renewed);
}

keepUpToDate(reload);
