// A policy version: the step that made it, the trajectories that it sampled, and those on which it was trained.
"use strict";

function drawVersion(found) {
  const name = found.run ? ` of run ${found.run}` : ", all runs";
  document.title = `headrace: version ${found.version}`;
  byId("title").textContent = `Version ${found.version}${name}`;
  const before = found.version ? [versionLink(found.version - 1, found.run, `← v${found.version - 1}`), " · "] : [];
  byId("about").replaceChildren(...before, versionLink(found.version + 1, found.run, `v${found.version + 1} →`),
    ...(found.version && found.run ? [" · ", link(comparison(found), `Compare ${span(found.version - SPAN, found.version - 1)} with ${span(found.version, found.version + SPAN - 1)}`)] : []),
    " · ", link(listOf(found), "Its trajectories, lowest reward first"));
  drawStep(found);
  drawList("sampled", found.sampled, found.sampled_of, "ClickHouse has no reward of a trajectory whose oldest tokens this version sampled.", found.run);
  drawList("trained", found.trained, found.trained_of, found.version ? "No step made it, or its record is not in ClickHouse." : "Version 0 is the base model: no step made it.", found.run);
}

// Versions on each side of the comparison: a single one has few attempts.
const SPAN = 5;
const span = (from, to) => `v${Math.max(0, from)} to v${to}`;

const comparison = ({ run, version }) => "/compare?" + new URLSearchParams({ a_run: run, a_from: Math.max(0, version - SPAN), a_to: version - 1,
  b_run: run, b_from: version, b_to: version + SPAN - 1 });
const listOf = ({ run, version }) => "/explore?" + new URLSearchParams({ run, from: version, to: version, sort: "reward", order: "rising" });

function drawStep({ run, version, step }) {
  byId("made").hidden = !run || !version;
  if (!step) return fill("made", element("p", { className: "about" }, "No step made it, or its record is not in ClickHouse."));
  fill("made", element("p", { className: "about" }, `Step ${step.step}, ${instant(step.ms)} ${zone}: ${figure(step.trajectories)} trajectories of ${figure(step.groups)} groups. `,
    link("/trainer?" + new URLSearchParams({ run }), "All steps")),
    recordTable("Measures of the step", [["Measure", (row) => row.label], ["This step", (row) => minus(figure(row.value)), "number"],
      ["Step before", (row) => minus(figure(row.before)), "number"]], step.measures));
}

// On the scale of all pages: the share of the largest possible reward.
const share = (row) => (row.reward == null || !row.maximum ? row.reward : row.reward / row.maximum);

const COLUMNS = {
  Reward: { of: (row) => share(row) ?? -Infinity, text: (row) => minus(figure(share(row))), kind: "number" },
  Trajectory: { of: (row) => row.id, text: (row) => trajectoryLink(row.id) },
  Task: { of: (row) => row.task_id, text: (row) => row.task_id },
  Source: { of: (row) => row.task_source, text: (row) => row.task_source },
  Agent: { of: (row) => row.agent, text: (row) => row.agent },
  Purpose: { of: (row) => row.purpose, text: (row) => row.purpose },
  Turns: { of: (row) => row.turns ?? -1, text: (row) => figure(row.turns), kind: "number" },
  Tokens: { of: (row) => row.tokens ?? -1, text: (row) => figure(row.tokens), kind: "number" },
  Group: { of: (row) => row.group_id, text: (row) => (row.group_id ? groupLink(row.group_id) : "–") },
  Fate: { of: (row) => `${row.fate}${row.reason ?? ""}`, text: (row) => fateText(row, null) },
};

function drawList(id, rows, total, empty, run) {
  if (!rows.length) return fill(id, element("p", { className: "about" }, empty));
  let [sorted, down] = ["Reward", true];
  const draw = () => {
    const by = COLUMNS[sorted].of;
    const ordered = [...rows].sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0) * (down ? -1 : 1));
    const box = recordTable(id, Object.entries(COLUMNS).map(([name, column]) => [name, column.text, column.kind]), ordered);
    box.querySelectorAll("th").forEach((cell, at) => {
      const name = Object.keys(COLUMNS)[at];
      const button = element("button", { type: "button", className: "sort" }, name, element("span", {}, name === sorted ? (down ? " ▼" : " ▲") : ""));
      button.addEventListener("click", () => {
        [sorted, down] = [name, name === sorted ? !down : true];
        draw();
        byId(id).querySelectorAll("th button")[at].focus();
      });
      cell.setAttribute("aria-sort", name === sorted ? (down ? "descending" : "ascending") : "none");
      cell.replaceChildren(button);
    });
    const more = total <= rows.length ? "" : id === "sampled" ? ` The ${rows.length} with the largest rewards are listed.` : ` ${rows.length} are listed.`;
    fill(id, element("p", { className: "about" }, `${figure(total)} trajectories.${more}`), box);
  };
  draw();
}

const run = new URLSearchParams(location.search).get("run") ?? "";
showRecord(`/api/version?version=${encodeURIComponent(idOfPage())}&run=${encodeURIComponent(run)}`, drawVersion);
