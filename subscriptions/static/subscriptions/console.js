"use strict";
// Menus of the console: one is open at a time, and Escape or a click elsewhere closes it. "/" leads to the search, and
// "?" lists the keys.

const search = document.querySelector("#console-search input");
const keys = document.getElementById("keys");
const menus = () => document.querySelectorAll("details.menu[open]");

document.addEventListener("click", event => {
  for (const menu of menus()) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable]")) return;
  if (event.key === "/" && search) {
    event.preventDefault();
    setNavigation(true);
    search.focus();
    search.select();
  } else if (event.key === "?" && keys) {
    keys.showModal();
  }
});

document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  for (const menu of menus()) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
  setNavigation(false);
});

const menuButton = document.getElementById("menu-button");

function setNavigation(open) {
  if (!menuButton) return;
  menuButton.setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("nav-open", open);
}

if (menuButton) {
  menuButton.addEventListener("click", () => setNavigation(menuButton.getAttribute("aria-expanded") !== "true"));
}

// A wide table scrolls inside its frame; the keyboard reaches the frame.
for (const frame of document.querySelectorAll(".results, .module, .table-frame")) {
  if (frame.scrollWidth > frame.clientWidth) {
    frame.tabIndex = 0;
    if (!frame.hasAttribute("role")) {
      frame.setAttribute("role", "group");
      const name = frame.querySelector("caption, h2");
      frame.setAttribute("aria-label", name ? name.textContent.trim() : document.title);
    }
  }
}

// On a narrow screen the tabs scroll.
const tab = document.querySelector(".tabs [aria-current]");
if (tab) {
  const tabs = tab.parentElement;
  tabs.scrollLeft += tab.getBoundingClientRect().left - tabs.getBoundingClientRect().left;
}

const PERIOD_MS = 2000;
// After this time without an answer a page says that it is old.
const STALE_MS = 10000;

// Calls `renew` every two seconds while somebody looks at the page. It raises an error if it could not renew it.
function keepUpToDate(renew) {
  const note = document.getElementById("stale");
  let renewedAt = Date.now();
  // Since when no look was answered.
  let unansweredFrom = null;
  let isUnderWay = false;

  async function look() {
    if (document.hidden) return;
    unansweredFrom ??= Date.now();
    note.querySelector("time").textContent = `${new Date(renewedAt).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    note.hidden = Date.now() - unansweredFrom < STALE_MS;
    if (isUnderWay) return;
    isUnderWay = true;
    try {
      await renew();
      renewedAt = Date.now();
      unansweredFrom = null;
      note.hidden = true;
    } catch {
      // The server is away for a moment; the next look asks again.
    }
    isUnderWay = false;
  }

  setInterval(look, PERIOD_MS);
  document.addEventListener("visibilitychange", look);
}

async function load(url, type) {
  const answer = await fetch(url, { headers: { Accept: type } });
  // A redirection leads to the login.
  if (!answer.ok || answer.redirected) throw new Error(answer.status);
  return answer.text();
}
