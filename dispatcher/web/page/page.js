// Shows what is new every two seconds, without losing the focus, the place on the page, or what is open or typed.
// What is new waits, with a sign, only while text is selected. Without scripts the page is loaded again by hand.
"use strict";

const EVERY_MS = 2000;
const ANSWER_MS = 5000; // an answer comes within 2.5 s: what takes longer is a process that hangs, or no network
const live = document.getElementById("live");
const age = document.getElementById("age");
const why = document.getElementById("why");
const NOT_REACHED = why.textContent;
const FINAL = [401, 403, 404]; // asking again changes nothing
let tag = "";
let shownMs = Date.now();

// Whether the cursor is in a form that the node is, or holds: that one stays as it is.
function isInHand(node) {
  const focused = document.activeElement;
  return focused.matches("input, select") && node.contains(focused.closest("form"));
}

// Whether one node can become the other; rows of lists have a key, by which they are found again in another place.
function isAlike(here, there) {
  return here.nodeName === there.nodeName && here.id === there.id && here.dataset?.key === there.dataset?.key;
}

// Makes `here` like `there`, and leaves alone what is alike already. Nothing is moved: that would take the focus away.
function follow(here, there) {
  if (here.isEqualNode(there) || (here.nodeName === "FORM" && isInHand(here))) return;
  if (here.nodeType !== Node.ELEMENT_NODE) {
    here.nodeValue = there.nodeValue;
    return;
  }
  followAttributes(here, there);
  followChildren(here, there);
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
  let at = here.firstChild;
  for (const child of [...there.childNodes]) {
    let match = at;
    // no form is passed over, and so removed: something may be typed in it
    while (match && !isAlike(match, child)) match = match.nodeName === "FORM" ? null : match.nextSibling;
    if (!match) {
      here.insertBefore(child, at);
      continue;
    }
    removeUntil(at, match);
    at = match.nextSibling;
    follow(match, child);
  }
  removeUntil(at, null);
}

function removeUntil(at, end) {
  while (at !== end) {
    const next = at.nextSibling;
    if (!isInHand(at)) at.remove();
    at = next;
  }
}

// Shows the new part, and gives the focus back to what had it, if that was made anew.
function show(text) {
  const page = new DOMParser().parseFromString(`<div id="live">${text}</div>`, "text/html");
  const focused = document.activeElement;
  const said = focused.outerHTML;
  followChildren(live, page.getElementById("live"));
  if (!focused.isConnected) [...live.querySelectorAll("a, button")].find(each => each.outerHTML === said)?.focus();
}

// Whether text of the view is selected: it may not change before it is copied.
function isSelected() {
  const selected = document.getSelection();
  return selected && !selected.isCollapsed && live.contains(selected.anchorNode);
}

// What a page about a problem says of it; an answer of somebody between may say nothing.
async function told(answer) {
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return page.querySelector("main .said")?.textContent || NOT_REACHED;
}

function tell(words) {
  if (why.textContent !== words) why.textContent = words; // a screen reader says it once
}

async function refresh() {
  if (document.hidden) return;
  try {
    const headers = { "X-Live": "1" };
    if (tag) headers["If-None-Match"] = tag;
    const signal = AbortSignal.timeout(ANSWER_MS);
    const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "error", signal });
    if (FINAL.includes(answer.status)) location.reload(); // the page says what is wrong, and has no script
    const isShown = answer.status === 200 || answer.status === 304;
    if (!isShown) tell(await told(answer));
    const text = answer.status === 200 ? await answer.text() : "";
    const isHeld = text !== "" && isSelected();
    if (text && !isHeld) {
      tag = answer.headers.get("ETag") || "";
      show(text);
    }
    if (isHeld) age.textContent = Math.round((Date.now() - shownMs) / 1000);
    else if (isShown) shownMs = Date.now();
    document.body.classList.toggle("is-held", isHeld);
    document.body.classList.toggle("is-away", !isShown);
  } catch {
    tell(NOT_REACHED);
    document.body.classList.add("is-away");
  }
}

async function again() {
  await refresh();
  setTimeout(again, EVERY_MS);
}

document.addEventListener("visibilitychange", refresh);
setTimeout(again, EVERY_MS);
