"""The page at /docs, made of the OpenAPI description: plain HTML that needs no script."""

from collections.abc import Mapping
from html import escape
from typing import Any

import msgspec

Schema = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: light-dark(#0b57d0, #8ab4f8); }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: light-dark(#1b1b1f, #e6e6ea);
  background: light-dark(#fff, #16161a); display: grid; grid-template-columns: minmax(12rem, 18rem) minmax(0, 1fr); }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 1.5rem 1rem; border-right: 1px solid var(--line); }
nav ul { list-style: none; margin: 0 0 1rem; padding: 0; } nav h2 { font-size: 1rem; margin: 1rem 0 .25rem; }
main { padding: 1.5rem 2rem 6rem; max-width: 60rem; }
a { color: var(--link); } a:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
code, pre { font: .9em/1.45 ui-monospace, monospace; } pre { background: var(--soft); padding: .75rem; overflow: auto; }
section { border-top: 1px solid var(--line); padding-top: 1rem; margin-top: 2rem; scroll-margin-top: 1rem; }
h3 { margin: 0; font-size: 1.15rem; } .call { overflow-wrap: anywhere; margin: .25rem 0 .75rem; }
.verb { display: inline-block; min-width: 4.5em; font-weight: 700; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: .25rem 0; }
@media (max-width: 50rem) { body { display: block; } nav { position: static; height: auto; border: 0; } main { padding: 1rem; } }
"""


def page(schema: Schema, root: str) -> str:
    """The whole page."""
    groups: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, item in schema["paths"].items():
        for verb in item:
            operation: Schema = item[verb]
            if "responses" in operation:
                groups.setdefault((operation.get("tags") or ["Other"])[0], []).append((verb, path, operation))
    links = "".join(
        f"<h2>{escape(tag)}</h2><ul>{''.join(_link(o) for _, _, o in operations)}</ul>"
        for tag, operations in sorted(groups.items())
    )
    body = "".join(
        f"<h2>{escape(tag)}</h2>{''.join(_operation(v, p, o, schema) for v, p, o in operations)}"
        for tag, operations in sorted(groups.items())
    )
    info = schema["info"]
    text = "".join(f"<p>{_words(p)}</p>" for p in info.get("description", "").split("\n\n"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(info["title"])} API</title><link rel="icon" href="{escape(root)}/static/icon.svg">'
        f'<link rel="stylesheet" href="{escape(root)}/docs/style.css"></head>'
        f'<body><nav aria-label="Operations"><strong>{escape(info["title"])} {escape(info["version"])}</strong>{links}</nav>'
        f"<main><h1>{escape(info['title'])} API</h1>{text}"
        f'<p>For programs: <a href="{escape(root)}/openapi.json">openapi.json</a></p>{body}'
        f"{_schemas(schema)}</main></body></html>"
    )


def _link(operation: Schema) -> str:
    return f'<li><a href="#{escape(operation["operationId"])}">{escape(operation.get("summary", ""))}</a></li>'


def _operation(verb: str, path: str, operation: Schema, schema: Schema) -> str:
    name = escape(operation["operationId"])
    open_to_all = operation.get("security") == []
    parts = [
        f'<section id="{name}"><h3>{escape(operation.get("summary", name))}</h3>',
        f'<p class="call"><span class="verb">{escape(verb.upper())}</span> <code>{escape(path)}</code></p>',
        f"<p>{_words(operation.get('description', ''))}{' Open to everybody.' if open_to_all else ''}</p>",
    ]
    if operation.get("parameters"):
        parts.append(
            "<table><thead><tr><th>Parameter</th><th>In</th><th>Type</th><th>Meaning</th></tr></thead><tbody>"
            + "".join(_parameter(p) for p in operation["parameters"])
            + "</tbody></table>"
        )
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: <code>{escape(media)}</code>, {_type(content.get('schema', {}))}</p>")
        if "example" in content:
            parts.append(f"<pre><code>{_json(content['example'])}</code></pre>")
    rows = "".join(_response(s, r) for s, r in sorted(operation["responses"].items()))
    parts.append(f"<details><summary>Replies</summary><table><tbody>{rows}</tbody></table></details></section>")
    return "".join(parts)


def _parameter(p: Schema) -> str:
    needed = " (required)" if p.get("required") else ""
    return (
        f"<tr><td><code>{escape(p['name'])}</code>{needed}</td><td>{escape(p['in'])}</td>"
        f"<td>{_type(p.get('schema', {}))}</td><td>{_words(p.get('description') or '')}</td></tr>"
    )


def _response(status: str, response: Schema) -> str:
    shapes = ", ".join(
        f"<code>{escape(media)}</code> {_type(content.get('schema', {}))}"
        for media, content in response.get("content", {}).items()
    )
    return f"<tr><th>{escape(status)}</th><td>{_words(response.get('description', ''))}</td><td>{shapes}</td></tr>"


def _schemas(schema: Schema) -> str:
    shown: list[str] = ["<h2>Shapes</h2>"]
    for name, shape in sorted(schema["components"].get("schemas", {}).items()):
        required = set(shape.get("required", ()))
        fields = "".join(
            f"<tr><td><code>{escape(field)}</code>{' (required)' if field in required else ''}</td><td>{_type(kind)}</td></tr>"
            for field, kind in shape.get("properties", {}).items()
        )
        shown.append(
            f'<section id="shape-{escape(name)}"><h3>{escape(shape.get("title", name))}</h3>'
            f"<p>{_words(shape.get('description', ''))}</p><table><tbody>{fields}</tbody></table></section>"
        )
    return "".join(shown)


def _type(kind: Schema) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rsplit("/", 1)[-1]
        return f'<a href="#shape-{escape(name)}">{escape(name.rsplit("_", 1)[-1])}</a>'
    for several in ("oneOf", "anyOf"):
        if several in kind:
            return " or ".join(_type(k) for k in kind[several])
    if "enum" in kind:
        return " or ".join(f"<code>{_json(v)}</code>" for v in kind["enum"])
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    named = kind.get("type") or "any JSON"
    return escape(" or ".join(named) if isinstance(named, list) else str(named))  # pyright: ignore[reportUnknownArgumentType]


def _json(value: Any) -> str:
    return escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _words(text: str) -> str:
    pieces = escape(" ".join(text.split())).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))
