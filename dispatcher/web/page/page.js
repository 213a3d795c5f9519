// Shows what is new every two seconds, without losing the focus, the place on the page, or what is open or typed.
// Without scripts the page is the same; it is loaded again by hand.
"use strict";

const EVERY_MS = 2000;
const live = document.getElementById("live");
let tag = "";

// Makes `here` like `there`, and leaves alone what is alike already.
function follow(here, there) {
  if (here.isEqualNode(there)) return;
  if (here.nodeName !== there.nodeName || here.id !== there.id) {
    here.replaceWith(there);
  } else if (here.nodeType !== Node.ELEMENT_NODE) {
    here.nodeValue = there.nodeValue;
  } else {
    followAttributes(here, there);
    followChildren(here, there);
  }
}

function followAttributes(here, there) {
  if (here.nodeName === "INPUT" || here.nodeName === "SELECT") return; // what a person has typed stays
  for (const { name } of [...here.attributes]) {
    if (!there.hasAttribute(name) && name !== "open") here.removeAttribute(name);
  }
  for (const { name, value } of [...there.attributes]) {
    if (here.getAttribute(name) !== value && name !== "open") here.setAttribute(name, value);
  }
}

function followChildren(here, there) {
  const old = [...here.childNodes];
  const fresh = [...there.childNodes];
  fresh.forEach((child, place) => {
    if (place < old.length) follow(old[place], child);
    else here.append(child);
  });
  old.slice(fresh.length).forEach(child => child.remove());
}

// A person selects text, or has a form in hand: nothing may move now.
function isBusy() {
  const selected = document.getSelection();
  if (selected && !selected.isCollapsed && live.contains(selected.anchorNode)) return true;
  return live.contains(document.activeElement) && document.activeElement.matches("input, select");
}

async function refresh() {
  if (document.hidden || isBusy()) return;
  try {
    const headers = { "X-Live": "1" };
    if (tag) headers["If-None-Match"] = tag;
    const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "error" });
    if (answer.status === 200) {
      const text = await answer.text();
      tag = answer.headers.get("ETag") || "";
      const page = new DOMParser().parseFromString(`<div id="live">${text}</div>`, "text/html");
      if (!isBusy()) followChildren(live, page.getElementById("live"));
    }
    document.body.classList.toggle("is-away", answer.status !== 200 && answer.status !== 304);
  } catch {
    document.body.classList.add("is-away");
  }
}

async function again() {
  await refresh();
  setTimeout(again, EVERY_MS);
}

document.addEventListener("visibilitychange", refresh);
setTimeout(again, EVERY_MS);
