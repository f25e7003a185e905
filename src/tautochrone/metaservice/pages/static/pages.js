// What pages do beyond links and forms: a theme, and updates that can be paused and never pretend.
// Loaded before the body, so that a chosen theme shows no flash of the other one.
"use strict";
(() => {
  const themes = ["auto", "light", "dark"];
  const stored = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const store = (key, value) => { try { localStorage.setItem(key, value); } catch { /* a private window */ } };
  let theme = themes.includes(stored("tautochrone-theme")) ? stored("tautochrone-theme") : "auto";
  let paused = stored("tautochrone-paused") === "yes";

  const applyTheme = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  applyTheme();

  document.addEventListener("DOMContentLoaded", () => {
    const byId = (id) => document.getElementById(id);
    const status = byId("updates"), pause = byId("pause"), switcher = byId("theme");
    const say = (text) => { if (status.textContent !== text) status.textContent = text; };

    switcher.hidden = false;
    const showTheme = () => { switcher.textContent = `Theme: ${theme}`; };
    showTheme();
    switcher.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      store("tautochrone-theme", theme);
      applyTheme();
      showTheme();
    });

    if (!byId("live")) return;
    status.hidden = pause.hidden = false;
    const showPause = () => {
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Resume updates" : "Pause updates";
      say(paused ? "Paused" : "Live");
    };
    showPause();
    pause.addEventListener("click", () => {
      paused = !paused;
      store("tautochrone-paused", paused ? "yes" : "no");
      showPause();
    });

    // Replacing what somebody is in the middle of would take it from them.
    const busy = () => {
      const live = byId("live"), chosen = getSelection();
      if (live.contains(document.activeElement)) return "Waits: something here has the focus";
      if (chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode)) return "Waits: text is selected";
      if (live.querySelector("details[open]")) return "Waits: details are open";
      return "";
    };
    document.body.addEventListener("htmx:beforeRequest", (event) => {
      if (event.detail.elt.id !== "live") return;
      const why = paused ? "Paused" : busy();
      if (why || document.hidden) {
        if (why) say(why);
        event.preventDefault();
      }
    });
    const scrolled = {};
    const areas = () => document.querySelectorAll("#live .canvas, #live .scroll");
    document.body.addEventListener("htmx:beforeSwap", (event) => {
      if (event.detail.elt.id !== "live") return;
      // Somebody may have begun something while the answer was on its way.
      const why = paused ? "Paused" : busy();
      if (why) {
        say(why);
        event.detail.shouldSwap = false;
        return;
      }
      areas().forEach((area, at) => { scrolled[at] = [area.scrollLeft, area.scrollTop]; });
    });
    document.body.addEventListener("htmx:afterSettle", (event) => {
      if (event.detail.elt.id !== "live") return;
      areas().forEach((area, at) => { [area.scrollLeft, area.scrollTop] = scrolled[at] || [0, 0]; });
      say("Live");
    });
    const lost = (event) => {
      if (event.detail.elt.id === "live") say("No answer: this page is not up to date");
    };
    document.body.addEventListener("htmx:sendError", lost);
    document.body.addEventListener("htmx:responseError", lost);
  });
})();
