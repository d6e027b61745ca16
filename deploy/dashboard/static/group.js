// A group: its attempts beside one another, and where they part.
"use strict";

function drawGroup(group) {
  document.title = `headrace: group ${shortId(group.id)}`;
  byId("id").textContent = group.id;
  const baseline = group.baseline ? ` · baseline ${minus(figure(group.baseline.value))}, ${words(group.baseline.name)}` : "";
  byId("about").textContent = [group.task_id && `task ${group.task_id}`, group.run && `run ${group.run}`].filter(Boolean).join(" · ") + baseline;
  const components = [...new Set(group.members.flatMap((each) => Object.keys(each.components)))].sort();
  fill("members", recordTable("Attempts", [
    ["Attempt", (row) => trajectoryLink(row.id)],
    ["Reward", (row) => minus(figure(row.reward)), "number"],
    ["Advantage", (row) => signed(row.advantage), "number"],
    ...components.map((name) => [name, (row) => (name in row.components ? `${minus(figure(row.components[name]))} × ${minus(figure(row.weights[name] ?? 0))}` : "–"), "number"]),
    ["Turns", (row) => figure(row.turns), "number"],
    ["Tokens", (row) => figure(row.tokens), "number"],
    ["Parts from the best", (row, at) => (row.parts_at == null ? "–" : link(`#turn-${row.parts_at}`, `at turn ${row.parts_at}`))],
    ["Ended", (row) => words(row.status) || "–"],
    ["Fate", (row) => fateText(row, group.run)],
  ], group.members), element("p", { className: "about" }, components.length ? "Components are value × weight." : ""));
  drawTexts(group);
}

function drawTexts(group) {
  const shown = group.members.filter((each) => each.text);
  const parting = group.parts_at == null
    ? shown.length > 1 ? "They said and did the same in every turn." : ""
    : `They part at turn ${group.parts_at}.`;
  const some = shown.length < group.members.length ? ` ${shown.length} of ${group.members.length} attempts are shown: the best and the worst whose events are still stored.` : "";
  byId("note").textContent = [parting + some, group.note].filter(Boolean).join(" ");
  if (!shown.length) return;
  const turns = Math.max(...shown.map((each) => each.text.length));
  const head = element("tr", {}, element("th", { scope: "col" }, "Turn"), ...shown.map((each) =>
    element("th", { scope: "col" }, trajectoryLink(each.id), ` reward ${minus(figure(each.reward))}${each.advantage == null ? "" : `, advantage ${signed(each.advantage)}`}`)));
  const rows = Array.from({ length: turns }, (_, turn) => {
    const parts = turn === group.parts_at;
    const line = element("tr", { id: `turn-${turn}` }, element("th", { scope: "row" }, String(turn), ...(parts ? [element("span", { className: "parting" }, "they part")] : [])),
      ...shown.map((each) => cell(each.text[turn])));
    if (parts) line.dataset.parting = "true";
    return line;
  });
  const table = element("table", { className: "beside" }, element("thead", {}, head), element("tbody", {}, ...rows));
  const box = element("div", { className: "scroll", tabIndex: 0 }, table);
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Attempts side by side, turn by turn");
  fill("texts", box);
}

function cell(said) {
  if (!said) return element("td", { className: "nothing" }, "–");
  return element("td", {}, element("p", { className: "text" }, said.text), ...said.tools.map((call) => element("p", { className: "event" }, element("code", {}, call))));
}

showRecord(`/api/group?id=${encodeURIComponent(idOfPage())}`, drawGroup);
