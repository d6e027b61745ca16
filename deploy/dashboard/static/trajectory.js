// A trajectory: what the model read and said, coloured, and what became of it.
"use strict";

// Bands of log-probabilities by their lower bounds, as `headrace show` has them.
const BANDS = [
  { floor: -0.1, name: "sure", about: "at least 0.9" },
  { floor: -1, name: "likely", about: "at least 0.37" },
  { floor: -3, name: "unlikely", about: "at least 0.05" },
  { floor: -1e9, name: "surprising", about: "below 0.05" },
];
const COLOURINGS = { version: "Policy version", logprob: "Log-probability", advantage: "Advantage", none: "None" };

const chip = (className, text) => element("span", { className: `sampled ${className}` }, text);
const versionClass = (version, versions) => (version == null ? "unknown" : `version-${versions.indexOf(version) % 8}`);
const bandOf = (floor) => BANDS.find((band) => floor >= band.floor) ?? BANDS[BANDS.length - 1];
const advantageClass = (advantage) => (advantage == null || advantage === 0 ? "even" : advantage > 0 ? "better" : "worse");

function drawTrajectory(record) {
  const labels = record.labels ?? {};
  document.title = `headrace: trajectory ${shortId(record.id)}`;
  byId("id").textContent = record.id;
  const about = [
    labels.agent, labels.task_id && `task ${labels.task_id}`, labels.task_source && `source ${labels.task_source}`,
    record.run && `run ${record.run}`, labels.purpose === "evaluate" && `evaluation ${labels.evaluation ?? ""}`,
    labels.role === "frozen" && "frozen", record.is_open && "not ended yet",
  ].filter(Boolean).join(" · ");
  byId("about").replaceChildren(about);
  if (labels.parent_trajectory_id) byId("about").append(" · works for ", trajectoryLink(labels.parent_trajectory_id));
  drawFigures(record, labels);
  drawReward(record);
  drawGroup(record);
  drawAside(record);
  drawLabels(labels);
  drawText(record);
}

function drawFigures(record, labels) {
  const reward = record.reward;
  const fate = element("div", { className: "tile" }, element("h3", {}, "Fate"), element("strong", {}, words(record.fate.fate)), element("span", {}));
  if (record.fate.fate === "trained") fate.lastChild.append(`step ${record.fate.step}, made `, versionLink(record.fate.version, record.run));
  else fate.lastChild.append(words(record.fate.reason ?? ""));
  const version = element("div", { className: "tile" }, element("h3", {}, "Sampled by"), element("strong", {}), element("span", {}, "oldest to newest version"));
  const { oldest_version: oldest, newest_version: newest } = labels;
  if (oldest == null) version.children[1].append("–");
  else version.children[1].append(versionLink(oldest, record.run), ...(newest === oldest ? [] : [" to ", versionLink(newest, record.run)]));
  byId("tiles").replaceChildren(
    tile("Reward", minus(figure(reward?.total)), reward?.maximum ? `of ${figure(reward.maximum)}, by ${reward.spec}` : reward?.spec ?? words(reward?.unscored ?? "not scored yet")),
    tile("Advantage", signed(record.advantage), record.baseline ? `baseline ${minus(figure(record.baseline.value))}, ${words(record.baseline.name)}` : "in no training group"),
    fate, version,
    tile("Length", figure(labels.turns), `turns, ${figure(labels.sampled_tokens)} sampled tokens`),
    tile("Ended", words(labels.status) || "–", labels.outcome == null ? "no outcome reported" : `outcome ${figure(labels.outcome)}`),
  );
}

function drawReward(record) {
  const reward = record.reward;
  if (!reward) return fill("reward", element("p", { className: "about" }, "It has no reward yet."));
  const terms = Object.keys(reward.components);
  const term = (name) => reward.components[name] * (reward.weights[name] ?? 0);
  const rows = terms.map((name) => ({ name, value: reward.components[name], weight: reward.weights[name] ?? 0, term: term(name) }));
  const table = recordTable("Terms of the reward", [
    ["Component", (row) => row.name], ["Value", (row) => minus(figure(row.value)), "number"],
    ["Weight", (row) => minus(figure(row.weight)), "number"], ["Term", (row) => signed(row.term), "number"],
  ], rows);
  const parts = Object.entries(reward.details);
  const details = parts.length ? [element("details", {}, element("summary", {}, `${parts.length} details`),
    recordTable("Details of components", [["Part", ([name]) => name], ["Value", ([, value]) => minus(figure(value)), "number"]], parts))] : [];
  const earlier = record.rewards.length > 1 ? [element("p", { className: "about" }, `Revision ${reward.revision}; ${record.rewards.length - 1} other reward${record.rewards.length > 2 ? "s" : ""}: ` +
    record.rewards.filter((each) => each !== reward && each.offset !== reward.offset).map((each) => `${each.spec} revision ${each.revision}: ${minus(figure(each.total))}`).join(", "))] : [];
  fill("reward", element("p", { className: "about" }, `${reward.spec}: ${minus(figure(reward.total))}${reward.unscored ? `, ${words(reward.unscored)}` : ""}`), table, ...details, ...earlier);
}

function drawGroup(record) {
  const group = record.group;
  if (!group) return fill("group", element("p", { className: "about" }, "It is in no group."));
  fill("group", element("p", { className: "about" }, `${group.members.length} attempts at the same task. `, groupLink(group.id, "Side by side")),
    recordTable("Attempts of the group", [
      ["Attempt", (row) => (row.id === record.id ? element("strong", {}, "this one") : trajectoryLink(row.id))],
      ["Reward", (row) => minus(figure(row.reward)), "number"], ["Advantage", (row) => signed(row.advantage), "number"],
      ["Fate", (row) => fateText(row, null)],
    ], group.members, (row) => row.id === record.id));
}

function drawAside(record) {
  fill("feedback", record.feedback.length
    ? recordTable("Feedback", [["Signal", (row) => words(row.signal)], ["Value", (row) => minus(figure(row.value)), "number"],
      ["When", (row) => instant(row.ms)], ["Comment", (row) => row.comment]], record.feedback)
    : element("p", { className: "about" }, "None yet."));
  byId("alerts").hidden = !record.alerts.length;
  fill("alerts", element("ul", { className: "plain" }, ...record.alerts.map((alert) => element("li", {}, "An example of ",
    link(`/watch#${encodeURIComponent(alert.episode)}`, words(alert.monitor)), alert.spec && ` of ${alert.spec}`, alert.is_open ? ", open" : ", resolved"))));
  byId("subagents").hidden = !record.children.length;
  fill("subagents", recordTable("Sub-agents and continuations", [["Trajectory", (row) => trajectoryLink(row.trajectory_id)],
    ["Agent", (row) => `${row.agent}${row.role === "frozen" ? ", frozen" : ""}`], ["Ended", (row) => words(row.status) || "–"],
    ["Turns", (row) => figure(row.turns), "number"]], record.children));
}

function drawLabels(labels) {
  const shown = {
    "group": labels.group_id, "harness": labels.harness_version, "tenant": labels.tenant, "difficulty": labels.difficulty,
    "channel": labels.channel,
    "answer": labels.answer, "defects": (labels.defects ?? []).map(words).join(", "), "missing events": labels.missing || "",
    [`started (${zone})`]: instant(labels.started_ms), [`last event (${zone})`]: instant(labels.ended_ms),
  };
  const list = element("dl", { className: "labels" });
  for (const [name, value] of Object.entries(shown)) {
    if (value) list.append(element("dt", {}, name), element("dd", {}, String(value)));
  }
  fill("labels", list);
}

function drawText(record) {
  byId("note").textContent = record.note || (record.tokenizer ? `Text of the tokens, by the tokenizer ${record.tokenizer}. What the model sampled is coloured.` : "");
  byId("note").classList.toggle("warning", Boolean(record.note));
  const text = record.text;
  if (!text) return byId("pieces").replaceChildren();
  // Of tokens, and of turns of which the messages are shown instead.
  const named = [...text.pieces.flatMap((piece) => piece.fragments.map((each) => each.version)), ...text.turns.flatMap((turn) => turn.versions)];
  const versions = [...new Set(named.filter((each) => each != null))].sort((a, b) => a - b);
  const turns = new Map(text.turns.map((turn) => [turn.turn, turn]));
  const nodes = [];
  let segment = -1;
  const shown = new Set();
  let body = null;
  const begin = (turn, title) => {
    body = element("section", { className: "turn", ...(turn == null ? {} : { id: `turn-${turn}` }) }, element("h3", {}, title));
    nodes.push(body);
  };
  for (const piece of text.pieces) {
    if (piece.segment !== segment && text.segments.length > 1) {
      const { tokens, sampled } = text.segments[piece.segment];
      nodes.push(element("h3", { className: "segment" }, `Segment ${piece.segment}: ${figure(tokens)} tokens, ${figure(sampled)} of them sampled`));
    }
    segment = piece.segment;
    const isContext = !("logprob" in piece);
    if (isContext) {
      nodes.push(contextBlock(piece));
      continue;
    }
    if (piece.turn == null || !shown.has(piece.turn)) begin(piece.turn, turnTitle(piece));
    body.append(element("p", { className: "text" }, ...piece.fragments.map((each) => saidPart(each, versions, record.advantage)),
      ...(piece.cut ? [element("em", {}, ` ${figure(piece.cut)} tokens are not shown`)] : [])));
    if (piece.turn != null && !shown.has(piece.turn)) body.append(...happened(turns.get(piece.turn)));
    if (piece.turn != null) shown.add(piece.turn);
  }
  // Turns of which no tokens are shown: calls of a closed model, turns that only called a tool, all without a tokenizer.
  for (const turn of text.turns) {
    if (shown.has(turn.turn)) continue;
    const said = `${versionClass(turn.versions.length === 1 ? turn.versions[0] : null, versions)} ${advantageClass(record.advantage)}`;
    const content = [...turn.messages.map((each) => message(each, said)), ...happened(turn)];
    if (!content.length) continue;
    begin(turn.turn, [`Turn ${turn.turn}`, turn.versions.map((each) => `v${each}`).join(", ")].filter(Boolean).join(" · "));
    body.append(...content);
    shown.add(turn.turn);
  }
  byId("pieces").replaceChildren(...nodes);
  byId("turns").replaceChildren("Turns ", ...[...shown].sort((a, b) => a - b).slice(0, 200).map((turn) => link(`#turn-${turn}`, String(turn))));
  const isCut = text.pieces.some((piece) => piece.cut);
  if (isCut && !location.search.includes("full=1")) byId("note").append(" ", link(`${location.pathname}?full=1`, "Show the whole texts"));
  offerColours(text.pieces, versions, record.advantage);
  document.querySelector(location.hash ? `[id="${CSS.escape(decodeURIComponent(location.hash.slice(1)))}"]` : "[id='']")?.scrollIntoView();
}

function turnTitle(piece) {
  const versions = [...new Set(piece.fragments.map((each) => each.version))].filter((each) => each != null);
  return [piece.turn == null ? "Sampled" : `Turn ${piece.turn}`, versions.length ? versions.map((each) => `v${each}`).join(", ") : "version unknown",
    `${figure(piece.tokens)} token${piece.tokens === 1 ? "" : "s"}`, piece.logprob == null ? "" : `mean log-probability ${minus(piece.logprob.toFixed(2))}`].filter(Boolean).join(" · ");
}

function contextBlock(piece) {
  const [head, tail] = piece.fragments;
  const gap = piece.cut ? [element("em", {}, ` … ${figure(piece.cut)} tokens are not shown … `)] : [];
  const block = element("p", { className: "text context" }, head?.text ?? "", ...gap, tail?.text ?? "");
  block.title = `Context: ${piece.tokens} tokens that the model read`;
  return block;
}

function saidPart(each, versions, advantage) {
  const band = each.band == null ? null : bandOf(each.band);
  const part = element("span", { className: `sampled ${versionClass(each.version, versions)} band-${band?.name ?? "unknown"} ${advantageClass(advantage)}` }, each.text);
  part.title = `${each.version == null ? "version unknown" : `v${each.version}`}, ${band ? `${band.name}: probability ${band.about}` : "probability unknown"}`;
  return part;
}

const message = ({ role, text }, said) => element("div", { className: role === "assistant" ? "message assistant" : "message" },
  element("span", { className: "role" }, role), element("p", { className: "text" }, role === "assistant" ? element("span", { className: `sampled ${said}` }, text) : text));

// Tools, sub-agents, summaries and prunes of a turn.
function happened(turn) {
  if (!turn) return [];
  const parts = turn.tools.map((use) => {
    const status = use.status == null ? "no return" : `${use.status}${use.error ? `, ${words(use.error)}` : ""}`;
    const took = use.seconds == null ? "" : ` in ${figure(use.seconds)} s`;
    const line = element("p", {}, element("strong", {}, use.tool), element("code", { className: "arguments" }, use.arguments || "no arguments"), ` → ${status}${took}`);
    const box = element("div", { className: "event tool" }, line);
    box.dataset.status = use.status ?? "none";
    if (use.result != null) box.append(folded("Result", use.result));
    return box;
  });
  for (const note of turn.notes) {
    const box = element("div", { className: `event ${note.kind}` });
    if (note.kind === "subagent") box.append(element("p", {}, element("strong", {}, "Sub-agent "), note.text, " ", trajectoryLink(note.trajectory_id)));
    if (note.kind === "prune") box.append(element("p", {}, element("strong", {}, "Pruned "), note.text));
    if (note.kind === "summary") {
      const [counts, ...rest] = note.text.split("\n");
      box.append(element("p", {}, element("strong", {}, "Summarised "), counts), folded("Summary", rest.join("\n")));
    }
    parts.push(box);
  }
  if (turn.snapshot) parts.push(element("div", { className: "event" }, element("p", {}, element("strong", {}, "Snapshot "), element("code", {}, turn.snapshot))));
  if (turn.finish_reason && !["stop", "tool_calls"].includes(turn.finish_reason)) {
    parts.push(element("div", { className: "event" }, element("p", {}, `Finished by ${words(turn.finish_reason)}.`)));
  }
  return parts;
}

function folded(name, text) {
  if (text.length <= 240 && !text.includes("\n")) return element("p", { className: "result" }, text);
  return element("details", { open: text.length <= 1200 }, element("summary", {}, name), element("pre", {}, text));
}

function offerColours(pieces, versions, advantage) {
  const box = byId("colours");
  const legends = {
    version: versions.length ? versions.slice(0, 24).map((version) => chip(versionClass(version, versions), `v${version}`)) : [chip("unknown", "version unknown")],
    logprob: BANDS.map((band) => chip(`band-${band.name}`, `${band.name}: ${band.about}`)),
    advantage: [advantage == null ? "In no training group: it has no advantage." : chip(advantageClass(advantage), `${signed(advantage)}, the same for all its tokens`)],
    none: [],
  };
  const choose = (colouring) => {
    byId("pieces").dataset.colour = colouring;
    byId("legend").dataset.colour = colouring;
    byId("legend").replaceChildren(...legends[colouring].flatMap((each) => [each, " "]));
  };
  // Messages have no log-probabilities, and those of closed models no version either.
  const hasTokens = pieces.some((piece) => "logprob" in piece);
  const offered = Object.keys(COLOURINGS).filter((name) => hasTokens || name === "none" || (name !== "logprob" && versions.length));
  const wanted = localStorage.getItem("headrace.colour");
  const chosen = offered.includes(wanted) ? wanted : offered[0];
  box.append(...offered.map((name) => {
    const input = element("input", { type: "radio", name: "colour", value: name, checked: name === chosen });
    input.addEventListener("change", () => {
      choose(name);
      localStorage.setItem("headrace.colour", name);
    });
    return element("label", {}, input, ` ${COLOURINGS[name]} `);
  }));
  box.hidden = offered.length < 2;
  choose(chosen);
}

const whole = new URLSearchParams(location.search).get("full") === "1";
showRecord(`/api/trajectory?id=${encodeURIComponent(idOfPage())}${whole ? "&full=1" : ""}`, drawTrajectory);
