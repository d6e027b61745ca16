// A shared page (/shared/TOKEN/…) shows one run: its links stay within the token, and there is nothing to choose.
"use strict";

(() => {
  const shared = location.pathname.match(/^\/shared\/[^/]+/)?.[0];
  if (!shared) return;
  document.documentElement.dataset.shared = shared;
  window.explore = () => {}; // Single trajectories are not shared.
  for (const link of document.querySelectorAll("nav a")) {
    const path = new URL(link.href).pathname;
    if (path === "/" || path === "/trainer") link.href = shared + path;
    else link.remove();
  }
})();
