// The chosen theme, before anything is drawn. Furo has this as an inline script, which the page's policy forbids.
document.body.dataset.theme = localStorage.getItem("theme") || "auto";
