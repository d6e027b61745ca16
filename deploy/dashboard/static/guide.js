// The guide of the first run: shown on the overview while there is no data, with commands to copy.
"use strict";

(() => {
  let guide = null;

  function copyButton(text) {
    const button = element("button", { type: "button", className: "copy" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select and copy";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    return button;
  }

  function way({ name, title, about, command }) {
    const id = `guide-${name}`;
    const section = element("section", { className: "card way" }, element("h2", { id }, title), element("p", { className: "about" }, ...inCode(about)),
      element("div", { className: "command" }, element("pre", { tabIndex: 0 }, command), copyButton(command)));
    section.setAttribute("aria-labelledby", id);
    section.querySelector("pre").setAttribute("aria-label", `Commands: ${title}`);
    return section;
  }

  // Text in backquotes becomes code.
  const inCode = (text) => text.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));

  async function draw() {
    const answer = await fetch("/api/guide");
    if (!answer.ok) throw new Error(`/api/guide answered ${answer.status}`);
    guide = element("section", { id: "guide", className: "guide" }, element("h2", { className: "heading" }, "Nothing was recorded yet: three ways to send something"),
      element("div", { className: "ways" }, ...(await answer.json()).map(way)));
    guide.setAttribute("aria-label", "First run");
    document.querySelector("main").prepend(guide);
  }

  // Shows the guide if `isEmpty`, else removes it.
  let asked = false;
  window.showGuide = (isEmpty) => {
    if (guide) guide.hidden = !isEmpty;
    if (!isEmpty || asked) return;
    asked = true;
    draw().catch((error) => {
      asked = false;
      console.warn("the guide cannot be shown:", error);
    });
  };
})();
