// What a page does beyond what the server has rendered: times in the reader's zone, news by server-sent events, search
// while typing, and zooming into a trend. Without this file the page is complete, and still.
"use strict";
const STALE_MS = 5000;
const main = document.getElementById("main");
let heardAt = Date.now();
let source = null;

function localTimes(root) {
  for (const time of root.querySelectorAll("time[data-ms], time[data-iso]")) {
    const at = new Date(time.dataset.ms ? Number(time.dataset.ms) : time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const isToday = at.toDateString() === new Date().toDateString();
    const clock = at.toLocaleTimeString([], { hour12: false });
    time.textContent = isToday ? clock : `${at.toLocaleDateString("sv")} ${clock}`; // 2026-11-28
    time.title ||= at.toISOString();
  }
}

// Replaces what has changed and keeps the reader's place: focus, selection and scrolling.
function show(html) {
  const next = document.createElement("main");
  next.innerHTML = html;
  localTimes(next);
  const now = [...main.children];
  const then = [...next.children];
  then.forEach((element, place) => {
    const old = now[place];
    if (!old) main.append(element);
    else if (old.outerHTML !== element.outerHTML && !old.querySelector("[data-dragging]")) {
      const field = old.contains(document.activeElement) && document.activeElement.matches("[data-search]");
      if (field) mend(old, element);
      else old.replaceWith(element);
    }
  });
  now.slice(then.length).forEach((element) => element.remove());
  drawn();
}

// Around a field that is being typed into, only what follows its form changes.
function mend(old, element) {
  const table = old.querySelector(".scroll");
  const fresh = element.querySelector(".scroll");
  if (table && fresh) table.replaceWith(fresh);
}

function listen() {
  source?.close();
  source = new EventSource(`/live?page=${encodeURIComponent(location.pathname + location.search)}`);
  source.onmessage = (event) => {
    const news = JSON.parse(event.data);
    heardAt = Date.now();
    document.title = news.title;
    const time = document.querySelector("#asof time");
    time.dataset.ms = news.at;
    localTimes(document.getElementById("asof"));
    if (news.main !== undefined) show(news.main);
  };
}

function checkAge() {
  const age = Date.now() - heardAt;
  const banner = document.getElementById("stale");
  const isOld = age > STALE_MS;
  if (isOld) banner.textContent = `This page hears nothing from its server for ${Math.round(age / 1000)} s. What you see is old.`;
  if (banner.hidden === isOld) banner.hidden = !isOld;
  if (isOld && source && source.readyState === EventSource.CLOSED) listen();
}

let typing = 0;
document.addEventListener("input", (event) => {
  const field = event.target;
  if (!field.matches("[data-search]")) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const query = new URLSearchParams(new FormData(field.form));
    history.replaceState(null, "", `${location.pathname}?${query}`);
    listen();
  }, 120);
});
document.addEventListener("submit", (event) => event.preventDefault());

function zoomTo(first, last) {
  const query = new URLSearchParams(location.search);
  query.set("from", Math.round(first));
  query.set("to", Math.round(last));
  history.pushState({ isZoomed: true }, "", `${location.pathname}?${query}`);
  listen();
}

function drawn() {
  const figure = document.querySelector(".trend");
  if (!figure || figure.dataset.ready) return;
  figure.dataset.ready = "1";
  const svg = figure.querySelector("svg");
  const first = Number(figure.dataset.first);
  const span = Number(figure.dataset.last) - first;
  const share = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  let from = null;
  const pick = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  pick.setAttribute("class", "pick");
  pick.setAttribute("y", 0);
  pick.setAttribute("height", "100%");
  svg.addEventListener("pointerdown", (event) => {
    from = share(event);
    svg.setPointerCapture(event.pointerId);
    figure.dataset.dragging = "1";
    svg.append(pick);
  });
  svg.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = share(event);
    pick.setAttribute("x", `${Math.min(from, to) * 100}%`);
    pick.setAttribute("width", `${Math.abs(to - from) * 100}%`);
  });
  svg.addEventListener("pointerup", (event) => {
    const [a, b] = [from, share(event)].sort();
    from = null;
    delete figure.dataset.dragging;
    pick.remove();
    if (b - a > 0.01) zoomTo(first + a * span, first + b * span);
  });
  svg.addEventListener("dblclick", () => history.state?.isZoomed && history.back()); // never out of this page
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25], "+": [0.25, -0.25], "-": [-0.5, 0.5] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    zoomTo(first + move[0] * span, first + span + move[1] * span);
  });
}

window.addEventListener("popstate", listen);
document.getElementById("clock").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone.replaceAll("_", " ");
localTimes(document);
drawn();
listen();
setInterval(checkAge, 1000);
