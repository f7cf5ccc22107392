"use strict";
// Charts: the values of a time below the pointer, a finger or the arrow keys, in all charts of the page at once.
// A range that is dragged, or chosen with Shift, becomes the range of the page, in its address.

const holder = document.querySelector(".charts");
const plots = [...document.querySelectorAll(".charts .plot")].map(prepared);

function prepared(element) {
  const svg = element.querySelector("svg");
  const slots = [...element.querySelectorAll(".slots rect")];
  const texts = slots.map(slot => slot.querySelector("title").textContent.split("\n"));
  // The values stand below the chart, so the browser's own box would say them twice.
  for (const slot of slots) slot.querySelector("title").remove();
  const readout = document.createElement("p");
  readout.className = "readout";
  readout.setAttribute("aria-hidden", "true");
  element.after(readout);
  const plot = { element, svg, slots, texts, readout };
  makeSlider(plot);
  return plot;
}

function makeSlider({ element, svg, slots }) {
  element.tabIndex = 0;
  element.setAttribute("role", "slider");
  element.setAttribute("aria-label", svg.getAttribute("aria-label"));
  element.setAttribute("aria-describedby", holder.dataset.help);
  element.setAttribute("aria-valuemin", "0");
  element.setAttribute("aria-valuemax", String(slots.length - 1));
  element.setAttribute("aria-valuenow", String(slots.length - 1));
}

// The chosen places: `at` is where the pointer is, `from` where a range began.
let chosen = null;

function choose(places) {
  chosen = places;
  for (const plot of plots) {
    const [first, last] = places ? ordered(places) : [-1, -2];
    plot.slots.forEach((slot, place) => slot.classList.toggle("chosen", place >= first && place <= last));
    const text = places && plot.texts[places.at];
    plot.readout.textContent = text ? text.join(" · ") : "";
    if (!text) continue;
    plot.element.setAttribute("aria-valuenow", String(places.at));
    plot.element.setAttribute("aria-valuetext", text.join(", "));
  }
}

function ordered({ from, at }) {
  return [Math.min(from, at), Math.max(from, at)];
}

function placeOf(plot, event) {
  const box = plot.slots[0].getBoundingClientRect();
  const place = Math.floor((event.clientX - box.left) / box.width);
  return Math.min(Math.max(place, 0), plot.slots.length - 1);
}

function zoom(plot) {
  const [first, last] = ordered(chosen);
  const address = new URL(location.href);
  const time = seconds => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");
  address.searchParams.delete("range");
  address.searchParams.set("start", time(Number(plot.slots[first].dataset.at)));
  address.searchParams.set("end", time(Number(plot.slots[last].dataset.at) + Number(plot.element.dataset.step)));
  location.assign(address);
}

for (const plot of plots) {
  const { element } = plot;
  let isDragging = false;
  element.addEventListener("pointerdown", event => {
    if (event.button !== 0) return;
    isDragging = true;
    element.setPointerCapture(event.pointerId);
    const at = placeOf(plot, event);
    choose({ from: at, at });
  });
  element.addEventListener("pointermove", event => {
    const at = placeOf(plot, event);
    choose({ from: isDragging ? chosen.from : at, at });
  });
  element.addEventListener("pointerup", () => {
    if (isDragging && chosen && chosen.from !== chosen.at) zoom(plot);
    isDragging = false;
  });
  element.addEventListener("pointercancel", () => { isDragging = false; });
  element.addEventListener("pointerleave", event => {
    if (event.pointerType === "mouse" && !isDragging) choose(null);
  });
  element.addEventListener("keydown", event => { if (pressed(plot, event)) event.preventDefault(); });
}

function pressed(plot, event) {
  const last = plot.slots.length - 1;
  const at = chosen ? chosen.at : last;
  const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
  if (target !== undefined) {
    const to = Math.min(Math.max(chosen ? target : at, 0), last);
    choose({ from: event.shiftKey && chosen ? chosen.from : to, at: to });
  } else if (event.key === "Enter" && chosen) {
    zoom(plot);
  } else if (event.key === "Escape") {
    choose(null);
  } else {
    return false;
  }
  return true;
}
