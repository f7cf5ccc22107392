"use strict";
// Says at once what PushHub would refuse about an endpoint: asks the server when its field has changed.

document.addEventListener("DOMContentLoaded", () => {
  for (const field of document.querySelectorAll("input[data-check]")) watch(field);
});

function watch(field) {
  const note = document.createElement("p");
  note.className = "field-note";
  note.setAttribute("role", "status");
  field.closest(".form-row").append(note);
  let asked = 0;

  field.addEventListener("change", async () => {
    const number = ++asked;
    note.textContent = "";
    if (!field.value.trim()) return;
    try {
      const query = new URLSearchParams({ url: field.value.trim() });
      const answer = await fetch(`${field.dataset.check}?${query}`, { headers: { Accept: "application/json" } });
      if (answer.ok && number === asked) note.textContent = (await answer.json()).text;
    } catch {
      // Without an answer, saving the form tells the same.
    }
  });
}
