// Whether a page is up to date, and what its run is doing. Both change with time alone, so they are told here and not by
// the server: `runState` is a function of the facts of the panel `activity` and the time.
"use strict";

(() => {
  // A page hears from the dashboard every second, also when nothing has changed.
  const SILENT_MS = 4500;
  // The dashboard asks ClickHouse every second, and the sink gives a sign of life there every second.
  const CLICKHOUSE_SILENT_MS = 3500;
  const SINK_SILENT_MS = 3500;

  const seconds = (ms) => Math.max(0, Math.round(ms / 1000));
  const duration = (ms) => {
    const s = seconds(ms);
    if (s < 120) return `${s} s`;
    return s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
  };

  // Returns [state, sentence]: finished, paused, stuck, starving, busy, or quiet if the run has no trainer.
  function runState(facts, now) {
    const sinceStep = facts.last_step_ms ? now - facts.last_step_ms : Infinity;
    const sinceTrajectory = facts.last_trajectory_ms ? now - facts.last_trajectory_ms : Infinity;
    const started = Boolean(facts.step) || facts.groups_granted != null;
    if (!started) return ["quiet", sinceTrajectory === Infinity ? "no trajectories yet" : `no trainer; last trajectory ${duration(sinceTrajectory)} ago`];
    if (facts.groups_granted === 0) return ["finished", `the last step is trained, ${duration(sinceStep)} ago`];
    if (facts.outage) return ["paused", `the trainer waits: ${facts.outage}`];
    const expected = 1000 * Math.max(30, 3 * (facts.step_s ?? 0));
    if (sinceStep > 2 * expected && facts.groups_ready >= Math.max(1, facts.groups_per_step ?? 1)) {
      return ["stuck", `${facts.groups_ready} groups are ready${sinceStep === Infinity ? "" : ` and no step was made for ${duration(sinceStep)}`}: does the trainer run? headrace status`];
    }
    if (sinceStep > expected) {
      const silent = sinceTrajectory > 2 * expected;
      const since = sinceStep === Infinity ? "no step yet" : `no step for ${duration(sinceStep)}`;
      if (silent) return ["starving", `${since}: no trajectory ${sinceTrajectory === Infinity ? "yet" : `for ${duration(sinceTrajectory)}`}; do the samplers run?`];
      return ["starving", `${since}: ${facts.groups_ready} of ${facts.groups_per_step ?? "?"} groups of the next step are ready`];
    }
    if (facts.wait_share != null && facts.wait_share >= 0.5) {
      return ["starving", `${Math.round(100 * facts.wait_share)} % of the last steps' time was spent waiting for groups`];
    }
    return ["busy", `step ${facts.step}, ${duration(sinceStep)} ago`];
  }

  // Milliseconds that pass evenly, also when the machine's clock is set.
  const steady = () => performance.timeOrigin + performance.now();

  // Returns [state, text, stale] of the page's feed: connecting, live, slow or lost; stale if the sink writes nothing.
  // `still`: the page shows a record as it was read, and does not change. `now`, `seenAt` and `pulse.at` are steady times,
  // `seenClock` is what the clock said at `seenAt`.
  function feedState({ seenAt, seenClock, slowS, closed, expired, refused, pulse, still }, now) {
    const at = seenAt ? (still ? `; read at ${clock(seenClock)}` : `; the figures are of ${clock(seenClock)}`) : "";
    const heardAt = Math.max(seenAt && !still ? seenAt : 0, pulse?.at ?? 0);
    if (expired) return ["lost", `this link has expired${at}`];
    if (refused) return ["lost", "refused"];
    if (closed) return ["lost", `the dashboard does not answer, retrying${at}`];
    if (slowS) return ["slow", `ClickHouse has not answered for ${Math.round(slowS)} s${at}`];
    if (!heardAt) return ["connecting", "connecting"];
    if (now - heardAt > SILENT_MS) return ["lost", `nothing from the dashboard for ${seconds(now - heardAt)} s${at}`];
    const since = (s) => (pulse && s != null ? 1000 * s + now - pulse.at : 0);
    const [clickhouseMs, sinkMs] = [since(pulse?.clickhouse_s), since(pulse?.sink_s)];
    if (clickhouseMs > CLICKHOUSE_SILENT_MS) return ["slow", `ClickHouse has not answered for ${seconds(clickhouseMs)} s${at}`];
    const live = still ? "read" : "live";
    if (sinkMs > SINK_SILENT_MS) {
      return ["live", `${live}, but the sink has written nothing to ClickHouse for ${duration(sinkMs)}: does it run, and does Kafka answer? headrace status`, true];
    }
    return seenAt ? ["live", `${live}, ${clock(seenClock)} ${ZONE}`] : ["connecting", "connecting"];
  }

  // Shows the feed's state in #state and the run's after it, and keeps both true while nothing arrives.
  function watchFeed({ still = false } = {}) {
    const feed = { seenAt: 0, seenClock: 0, slowS: 0, closed: false, expired: false, refused: false, pulse: null, facts: null, still };
    const chip = element("p", { className: "doing", id: "doing", hidden: true });
    chip.setAttribute("role", "status");
    byId("state").after(chip);

    function show() {
      const [state, text, isStale] = feedState(feed, steady());
      if (byId("state").textContent !== text) {
        byId("state").dataset.state = state;
        byId("state").toggleAttribute("data-stale", Boolean(isStale));
        byId("state").textContent = text;
      }
      chip.hidden = !feed.facts;
      if (!feed.facts) return;
      const [doing, sentence] = runState(feed.facts, Date.now());
      const words = `${doing}: ${sentence}`;
      if (chip.textContent !== words) {
        chip.dataset.doing = doing;
        chip.replaceChildren(element("strong", {}, doing), `: ${sentence}`);
      }
    }

    setInterval(show, 500);
    return {
      seen() {
        Object.assign(feed, { seenAt: steady(), seenClock: Date.now(), slowS: 0, closed: false, refused: false });
        show();
      },
      // `told`: seconds since ClickHouse answered, and since the sink wrote to it (null: it never did).
      pulse(told) {
        Object.assign(feed, { pulse: { ...told, at: steady() }, closed: false });
        show();
      },
      slow(waited) {
        Object.assign(feed, { slowS: waited, closed: false });
        show();
      },
      lost() {
        feed.closed = true;
        show();
      },
      refused() {
        feed.refused = true;
        show();
      },
      expired() {
        feed.expired = true;
        show();
      },
      // A hidden page hears nothing, and begins anew.
      hidden() {
        Object.assign(feed, { seenAt: still ? feed.seenAt : 0, slowS: 0, closed: false, pulse: null });
      },
      // `found`: the facts of the panel activity; null while no single run is shown.
      facts(found) {
        feed.facts = found;
        show();
      },
    };
  }

  // The feed of a page that is read once: it hears the pulse only.
  function watchPulse() {
    const feed = watchFeed({ still: true });
    let stream = null;

    function connect() {
      stream?.close();
      stream = new EventSource("/api/pulse/stream");
      stream.addEventListener("pulse", (event) => feed.pulse(JSON.parse(event.data)));
      stream.addEventListener("error", () => {
        feed.lost();
        if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
      });
    }

    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        stream?.close();
        feed.hidden();
      } else connect();
    });
    if (!document.hidden) connect();
    return feed;
  }

  Object.assign(window, { runState, feedState, watchFeed, watchPulse });
})();
