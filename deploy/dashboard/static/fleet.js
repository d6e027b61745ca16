// The fleet page: draws every panel from its specification, with the worst of each kind in a tile.
"use strict";

(() => {
  const number = (value) => value.toLocaleString("en-US");
  const most = (rows, name) => rows.reduce((worst, row) => ((row[name] ?? -Infinity) > (worst?.[name] ?? -Infinity) ? row : worst), null);
  const total = (rows, name) => rows.reduce((sum, row) => sum + row[name], 0);

  function warned(title, value, note, isWrong) {
    const box = tile(title, value, note);
    if (isWrong) box.dataset.warning = "yes";
    return box;
  }

  function drawTiles(panels) {
    const letters = rowsOf(panels.dead_letters);
    const sdks = rowsOf(panels.sdks);
    const groups = rowsOf(panels.groups);
    const gateways = rowsOf(panels.gateways);
    const engines = rowsOf(panels.engines);
    const slowest = most(groups, "behind_s");
    const oldest = most(engines, "behind");
    const topics = rowsOf(panels.topics);
    byId("tiles").replaceChildren(
      warned("Dead letters", number(total(letters, "records")), letters.length ? `newest from ${letters[0].producer || "an unknown producer"}` : "none open", letters.length),
      warned("Dropped by SDKs", number(total(sdks, "dropped_")), `${number(sdks.length)} sources`, total(sdks, "dropped_")),
      tile("On agents' disks", number(total(sdks, "spooled_")), "events that wait for Kafka"),
      warned("Gateways", number(gateways.length), gateways.length ? `${total(gateways, "calls_a_second").toFixed(1)} calls a second, ${total(gateways, "errors_a_second").toFixed(1)} errors` : "none reports", total(gateways, "holes_") || total(gateways, "spooled_")),
      warned("Largest lag", slowest ? `${slowest.behind_s.toFixed(1)} s` : "–", slowest ? slowest.consumer_group : "not measured", slowest?.behind_s > 60),
      warned("Engines", number(engines.length), oldest ? `at most ${number(oldest.behind)} versions behind` : "none", oldest?.behind > 2),
      tile("Events", number(topics.find((row) => row.topic === "events")?.records ?? 0), "in the last 15 minutes"),
    );
  }

  specifications("/fleet").then((specs) => {
    const cards = new Cards(byId("cards"), [...specs.values()].filter((spec) => ["line", "table"].includes(spec.form)));
    livePage(({ panels, run }) => {
      drawTiles(panels);
      cards.select({ run }, 0);
      cards.draw(panels);
    }, { every: "all runs" });
  }).catch(unreachable);
})();
