// What makes the pages pleasant: true times, live lists, keys. Every page works without it.

const page = document.body.dataset.page;
const root = document.body.dataset.root;
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- times: relative and kept true; the absolute one, in the viewer's zone, on hover --------------------------------

const STEPS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "long", timeStyle: "long" });

function span(seconds) {
  for (const [size, name] of STEPS) {
    if (seconds >= size) {
      const count = Math.floor(seconds / size);
      return `${count} ${name}${count === 1 ? "" : "s"}`;
    }
  }
  return "a moment";
}

// The server's clock counts, not the viewer's: what is off between them is taken from the time the page was made.
const made = Number(document.body.dataset.now) * 1000;
const skew = made ? made - Date.now() : 0;

function tick(within = document) {
  const now = Date.now() + skew;
  for (const time of $$("time[data-form]", within)) {
    const at = new Date(time.dateTime);
    const gone = (now - at) / 1000;
    let text;
    if (time.dataset.form !== "ago") {
      text = gone >= 0 ? "overdue" : `${time.dataset.form === "until" ? "expires " : ""}in ${span(-gone)}`;
      time.classList.toggle("soon", gone > -600);
    } else {
      text = gone < 5 ? "just now" : `${span(gone)} ago`;
    }
    const shown = $(".rel", time);
    if (shown.textContent !== text) shown.textContent = text;
    if (!time.dataset.local) {
      time.title = absolute.format(at);
      time.dataset.local = "yes";
    }
  }
}
tick();
setInterval(tick, 1000);

// -- buttons say that something is on its way, and are not pressed twice --------------------------------------------

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  const button = event.submitter;
  if (form.method === "post") {
    form.dataset.sent = "yes";
    if (button) {
      button.setAttribute("aria-busy", "true");
      if (button.dataset.busy) button.textContent = button.dataset.busy;
    }
  }
});
// Coming back with the browser's Back button shows the page as it was left: it can be sent again.
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});
$("[data-focus]")?.focus();

// -- fragments ------------------------------------------------------------------------------------------------------

async function fragment(address) {
  const url = new URL(address, location.href);
  if (!url.searchParams.has("fragment")) url.searchParams.set("fragment", "yes");
  const reply = await fetch(url, { headers: { accept: "text/html" }, redirect: "manual" });
  if (!reply.ok) throw new Error(String(reply.status));
  const template = document.createElement("template");
  template.innerHTML = await reply.text();
  return template.content;
}

// Calls `look` when the server says that something happened, and now and then in any case. Where there are no live
// events, now and then is all there is, and more often.
function follow(address, kinds, look, matters = () => true) {
  const live = $("#live");
  let waiting = false;
  let again = false;
  let timer;
  let source;

  function say(state, text) {
    if (live && live.dataset.state !== state) {
      live.dataset.state = state;
      live.textContent = text;
    }
  }
  async function go() {
    if (waiting) {
      again = true;
      return;
    }
    waiting = true;
    try {
      await look();
      say("live", "Live");
    } catch {
      say("off", "Offline, trying again");
    }
    waiting = false;
    plan();
    if (again) {
      again = false;
      setTimeout(go, 800); // a burst of events is one look
    }
  }
  function plan() {
    clearTimeout(timer);
    const open = source && source.readyState === EventSource.OPEN;
    timer = setTimeout(go, document.hidden ? 60000 : open ? 30000 : 3000);
  }
  function listen() {
    if (source && source.readyState !== EventSource.CLOSED) return;
    source = new EventSource(address);
    source.onopen = () => {
      say("live", "Live");
      go(); // what happened before it was open is in no event
    };
    for (const kind of kinds) source.addEventListener(kind, (event) => matters(event) && go());
    source.onerror = plan;
  }
  listen();
  document.addEventListener("visibilitychange", () => {
    // Browsers keep few connections to one server. The list needs its own for the count in the title, also in the background.
    if (document.hidden && page !== "list") source.close();
    else if (!document.hidden) {
      listen();
      go();
    }
  });
  addEventListener("pagehide", () => source?.close());
  go();
}

// -- the list -------------------------------------------------------------------------------------------------------

function inbox() {
  const items = $("#items");
  const bulk = $(".bulk");
  if (bulk) {
    const count = () => {
      const picked = $$(".pick input:checked").length;
      $("#picked").textContent = picked ? `${picked} selected:` : "With the selected items:";
    };
    document.addEventListener("change", count);
    addEventListener("pageshow", count);
  }
  const known = new Set($$(".item", items).map((row) => row.dataset.id));

  async function look() {
    const found = await fragment(items.dataset.fragment);
    const list = $("#items", found);
    $("#count").textContent = list.dataset.countText;
    if (/^\(/.test(document.title)) document.title = document.title.replace(/^\([^)]*\)/, `(${list.dataset.countText})`);
    const rows = new Map($$(".item", list).map((row) => [row.dataset.id, row]));
    // What was decided stays where it was, marked, so that nothing moves under a finger.
    for (const row of $$(".item:not(.settled)", items)) {
      const now = rows.get(row.dataset.id);
      if (now && now.dataset.version === row.dataset.version) continue;
      let fresh = now;
      if (!now) {
        try {
          fresh = $(".item", await fragment(`${root}/inbox/${encodeURIComponent(row.dataset.id)}?fragment=row`));
        } catch {
          fresh = null;
        }
      }
      if (fresh && !fresh.classList.contains("settled") && !now) continue; // it is on another page now
      settle(row, fresh);
    }
    const added = [...rows.values()].filter((row) => !known.has(row.dataset.id));
    if (added.length && items.tagName === "OL") {
      for (const row of added) {
        known.add(row.dataset.id);
        row.classList.add("fresh");
        items.append(row);
      }
      tick(items);
    } else if (added.length) {
      location.reload(); // there was nothing before, so there is no place to lose
    }
  }
  function settle(row, fresh) {
    const focused = row.contains(document.activeElement);
    if (fresh) {
      row.replaceChildren(...fresh.children);
      row.className = fresh.className;
      row.dataset.version = fresh.dataset.version;
      tick(row);
    } else {
      row.classList.add("settled");
      $(".pick input", row)?.remove();
      const chip = document.createElement("span");
      chip.className = "chip cancelled";
      chip.textContent = "Gone";
      $(".what", row).insertBefore(chip, $(".line", row));
    }
    if (focused) $(".what a", row)?.focus();
    document.dispatchEvent(new Event("change"));
  }
  // For j and k on the pages of the items.
  try {
    sessionStorage.setItem("adjourn.order", JSON.stringify([...known]));
  } catch { /* storage is switched off */ }
  follow(`${root}/api/events`, ["opened", "settled", "reopened", "reset"], look);
}

// -- one item -------------------------------------------------------------------------------------------------------

function item() {
  const jump = $(".jump");
  if (jump) new IntersectionObserver(([seen]) => jump.classList.toggle("away", seen.isIntersecting)).observe($("#decide"));
  const { id, status } = document.body.dataset;
  const link = $("body[data-linked]");
  if (link) return;
  const here = `${root}/inbox/${encodeURIComponent(id)}`;
  if (status === "open") {
    // Somebody else may decide meanwhile. What is being typed is left alone.
    const buttons = $$("#decide button");
    let note = null;
    follow(`${root}/api/events`, ["settled", "reopened"], async () => {
      const row = $(".item", await fragment(`${here}?fragment=row`));
      const settled = row.classList.contains("settled");
      if (settled === Boolean(note)) return;
      const chip = settled ? $(".chip", row) : null;
      const status = $("#status");
      status.dataset.was ??= status.textContent;
      status.textContent = chip ? chip.textContent : status.dataset.was;
      status.className = chip ? chip.className : "chip open";
      for (const button of buttons) button.disabled = settled;
      if (!settled) {
        note.remove();
        note = null;
        return;
      }
      note = document.createElement("div");
      note.className = "note warn meanwhile";
      note.innerHTML = "<h2></h2><p><a></a></p>";
      $("h2", note).textContent = "This has been settled meanwhile. Nothing you do here counts any more.";
      $("a", note).textContent = "See what became of it";
      $("a", note).href = here;
      $("#notices").append(note);
    }, (event) => event.data.includes(id)); // of the many that happen, those about this one
    return;
  }
  const after = $("#after");
  if (!after?.dataset.live) return;
  let timer;
  const look = async () => {
    try {
      const found = await fragment(`${here}?fragment=after`);
      const running = $("#state [data-running]", found);
      const text = (node) => node.textContent.replace(/\s+/g, " ");
      if (text(found) !== text(after)) {
        after.replaceChildren(found);
        tick(after);
      }
      if (!running) return;
    } catch { /* tried again below */ }
    timer = setTimeout(look, document.hidden ? 10000 : 1000);
  };
  timer = setTimeout(look, 400);
  addEventListener("pagehide", () => clearTimeout(timer));
}

// -- a session ------------------------------------------------------------------------------------------------------

function session() {
  const place = $("#session");
  const id = encodeURIComponent(document.body.dataset.id);
  follow(`${root}/api/sessions/${id}/events`, ["batch", "deleted"], async () => {
    const found = await fragment(place.dataset.fragment);
    const steps = $$(".timeline > li", place);
    const fresh = $$(".timeline > li", found);
    // What is unfolded stays unfolded: only what is new is added, and what stands above is renewed.
    const same = steps.length && steps.every((step, i) => fresh[i] && $("h3", fresh[i]).textContent === $("h3", step).textContent);
    if (!same) {
      if (!steps.length && !fresh.length) return;
      place.replaceChildren(found);
    } else {
      $(".timeline", place).append(...fresh.slice(steps.length));
      $(".totals", place).replaceWith($(".totals", found));
      const note = $(".note", found);
      $(".note", place)?.remove();
      if (note) place.prepend(note);
    }
    tick(place);
  });
}

// -- keys -----------------------------------------------------------------------------------------------------------

const keysOn = $("#keys-on");
const help = $("#help");
function stored() {
  try {
    return localStorage.getItem("adjourn.keys") !== "off";
  } catch {
    return true;
  }
}
if (keysOn) {
  keysOn.checked = stored();
  keysOn.addEventListener("change", () => {
    try {
      localStorage.setItem("adjourn.keys", keysOn.checked ? "on" : "off");
    } catch { /* then it holds for this page */ }
  });
}
$("[data-help]")?.addEventListener("click", () => help.showModal());

function step(by) {
  if (page === "list") {
    const links = $$(".item .what a");
    if (!links.length) return;
    const at = links.findIndex((link) => link.closest(".item").contains(document.activeElement));
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1)];
    next.focus();
    next.closest(".item").scrollIntoView({ block: "nearest" });
  } else if (page === "item") {
    let order = [];
    try {
      order = JSON.parse(sessionStorage.getItem("adjourn.order") ?? "[]");
    } catch { /* none */ }
    const next = order[order.indexOf(document.body.dataset.id) + by];
    if (next && order.includes(document.body.dataset.id)) location.assign(`${root}/inbox/${encodeURIComponent(next)}`);
    else if (by > 0) $("a[rel=next]")?.click();
  }
}
function reveal(place) {
  if (place instanceof HTMLDetailsElement) place.open = true;
  const first = $("textarea, input:not([type=hidden]), select, button:not(.hide)", place) ?? place;
  first.focus();
  place.scrollIntoView({ block: "nearest" });
}
function act(key) {
  const names = { a: "approve", r: "respond", d: "decline" };
  if (page === "list") {
    const row = document.activeElement?.closest?.(".item");
    if (row) location.assign(`${$(".what a", row).href}#${names[key]}`);
  } else if (page === "item") {
    const place = document.getElementById(names[key]);
    if (place) key === "a" ? place.focus() : reveal(place);
  }
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !keysOn?.checked) return;
  if (event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, dialog")) return;
  const key = event.key;
  if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "a" || key === "r" || key === "d") act(key);
  else if (key === "x") document.activeElement?.closest?.(".item")?.querySelector(".pick input")?.click();
  else if (key === "?") help.showModal();
  else return;
  event.preventDefault();
});

// A link to #respond or #decline opens that part.
function opened() {
  const place = location.hash && document.getElementById(location.hash.slice(1));
  if (place && place.closest("aside")) place.id === "approve" ? place.focus() : reveal(place);
}
addEventListener("hashchange", opened);
// Browsers look for the target themselves once the page is there, and take the focus away from what is inside it.
if (document.readyState === "complete") opened();
else addEventListener("load", () => setTimeout(opened));

({ list: inbox, item, session })[page]?.();
