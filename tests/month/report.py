"""One page on a month: bytes per day, every deletion with its proof, every alarm that was due or raised."""

import dataclasses
import html

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 260, 70, 30

STYLE = """body{font:14px system-ui,sans-serif;max-width:900px;margin:2em auto;color:#222}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ddd;padding:3px 8px;text-align:left;vertical-align:top}.bad{color:#b00}svg{background:#fafafa}
summary{cursor:pointer}pre{font-size:12px;white-space:pre-wrap}"""


@dataclasses.dataclass
class Facts:
    seed: int
    days: int
    starts: int
    history: list
    deletions: list
    alarms: list
    log: list
    failure: str | None

    @staticmethod
    def of(month, failure):
        world, oracle = month.world, month.oracle
        return Facts(world.seed, month.days, world.starts, month.history, oracle.deletions, oracle.alarms, world.log, failure)


def _line(points, top, days, color):
    at = lambda day, value: (LEFT + (WIDTH - LEFT - 20) * day / max(1, days - 1),
                             HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 15) * value / max(1, top))
    path = " ".join("%.1f,%.1f" % at(day, value) for day, value in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'


def _day_of(stamp):
    return int(stamp.split()[1])


def chart(facts):
    """Bytes on scratch and in the store; below, a mark for each deletion by Cairn and each alarm."""
    top = max((max(scratch, store) for _, scratch, store in facts.history), default=1)
    x = lambda day: LEFT + (WIDTH - LEFT - 20) * day / max(1, facts.days - 1)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 50}" role="img" aria-label="bytes a day">']
    for part in range(5):
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 15) * part / 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.0f}" font-size="11" text-anchor="end">{top * part / 4e6:.0f} MB</text>')
    for day in range(0, facts.days, max(1, facts.days // 10)):
        parts.append(f'<text x="{x(day):.0f}" y="{HEIGHT - 12}" font-size="11" text-anchor="middle">day {day}</text>')
    parts.append(_line([(d, s) for d, s, _ in facts.history], top, facts.days, "#1f6fb4"))
    parts.append(_line([(d, s) for d, _, s in facts.history], top, facts.days, "#c46a12"))
    parts.append(f'<text x="{LEFT + 10}" y="24" font-size="12" fill="#1f6fb4">scratch</text>'
                 f'<text x="{LEFT + 70}" y="24" font-size="12" fill="#c46a12">store (on disk)</text>')
    for row, (label, stamps, color) in enumerate([
            ("deletions", [s for s, _, proof in facts.deletions if not proof.startswith("not by Cairn")], "#444"),
            ("alarms", [s for s, *_ in facts.alarms], "#b00020")]):
        y = HEIGHT + 10 + 22 * row
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" font-size="11" text-anchor="end">{label}</text>')
        counts = {}
        for stamp in stamps:
            counts[_day_of(stamp)] = counts.get(_day_of(stamp), 0) + 1
        parts += [f'<circle cx="{x(day):.0f}" cy="{y}" r="{min(9, 2 + count ** 0.5 * 1.6):.1f}" fill="{color}"/>' for day, count in counts.items()]
    return "".join([*parts, "</svg>"])


def _table(head, rows):
    cells = lambda row, tag: "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row)
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>"


def section(facts):
    said = [(stamp, "due" if due else "not due", "raised" if raised else "not raised", text) for stamp, due, raised, text in facts.alarms]
    verdict = f'<p class="bad"><b>{html.escape(facts.failure)}</b></p>' if facts.failure else \
        "<p>Nothing that was asked for is lost, nothing was deleted without proof, no alarm was missing or false.</p>"
    return (f"<h2>Seed {facts.seed}: {facts.days} days, {facts.starts} programs started</h2>{verdict}{chart(facts)}"
            f"<h3>Deletions and their proofs ({len(facts.deletions)})</h3>{_table(['when', 'what', 'proof'], facts.deletions)}"
            f"<h3>Alarms ({len(facts.alarms)})</h3>{_table(['when', 'due', 'raised', 'what'], said)}"
            f"<details><summary>Everything that happened</summary><pre>{html.escape(chr(10).join(facts.log))}</pre></details>")


def write(path, months):
    body = "".join(section(facts) for facts in months)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<!doctype html><html lang=en><meta charset=utf-8><title>A month in a minute</title><style>{STYLE}</style>"
                    f"<h1>A month in a minute</h1>{body}</html>\n")
