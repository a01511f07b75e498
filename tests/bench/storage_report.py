"""The tables and the plots of storage.py, only from its figures: storage_report.py FILE.json [DIR] makes them again."""

import json
import math
import os
import subprocess
import sys

RAW = "raw O_DIRECT"
STEPS = {"plan": "plan of all ranks", "seal": "seal", "open": "open", "verify": "verify --structure", "reshape": "reshape --virtual"}


def table(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] + ["---:"] * (len(head) - 1), *rows])


def spread(middle, low, high):
    return f"{middle:.2f} ({low:.2f} – {high:.2f})"


def real_table(report, what, did):
    saves, rows = what == "save", []
    for row in report["real"]:
        of, raw = row[what], row["by"] == RAW
        share = "moved" if of["moved"] else f"{of['of_raw']:.2f}"
        rows.append([row["by"], f"{of['seconds']:.2f}", spread(of["rate"], of["from"], of["to"]), share,
                     *(["" if raw else f"{row['stall']:.2f}"] if saves else []), f"{of['cpu_per_gb']:.2f}", "" if raw else f"{of['memory']:.2f}"])
    return table([did, "s", "GB/s (from – to)", "of raw", *(["stall s"] if saves else []), "CPU s a GB", "memory × state"], rows)


def reshape_table(report):
    rate = lambda seconds: report["bytes"] / seconds / 1e9
    rows = []
    for i, row in enumerate(report["reshape"]):  # the first is the limit
        cells = [row["by"], f"{row['seconds']:.2f}", spread(*(rate(row["seconds" + end]) for end in ("", "_to", "_from")))]
        if i == 0:
            cells += ["moved" if row["limit_moved"] else "1.00", "", ""]
        else:
            cells += [f"{1 / row['ratio']:.2f}", f"{row['cpu_seconds'] / report['bytes'] * 1e9:.2f}", f"{row['peak_memory_bytes'] / 1e6:.0f} MB"]
        rows.append(cells)
    return table(["reshaped by", "s", "GB/s (from – to)", "of raw", "CPU s a GB", "memory"], rows)


def metadata_table(report):
    rows = [[row["model"], f"{row['ranks']:.0f}", f"{row['bytes'] / 1e9:,.0f} GB", f"{row['pieces']:,.0f}", f"{row['metadata'] / 1e6:.1f} MB",
             *(f"{1e3 * row[key]:.0f} ms" for key in STEPS), f"{row['reshape_memory'] / 1e6:.0f} MB"] for row in report["metadata"]]
    return table(["model", "ranks", "state", "pieces", "metadata", *STEPS.values(), "memory"], rows)


def tables(report):
    return "\n\n".join([f"Llama 8B, {report['share']}: {report['bytes'] / 1e9:.2f} GB, median of {report['rounds']} rounds; all loaded and equal",
                        real_table(report, "save", "saved by"), real_table(report, "load", "loaded by"),
                        "Reshaped from DP 8 with ZeRO 3 to TP 8; every tensor of the result equal", reshape_table(report),
                        "Only metadata, one process for all ranks", metadata_table(report)])


def gnuplot(path, size, *lines):
    head = [f'set terminal svg size {size} noenhanced background "white" font "sans-serif,13"', f'set output "{path}"', "set grid", "set border 3",
            "set tics nomirror"]
    subprocess.run(["gnuplot"], input="\n".join([*head, *lines]), text=True, check=True)


def data(rows):
    return ["$data << END", *(" ".join(f'"{cell}"' if isinstance(cell, str) else f"{cell:.6g}" for cell in row) for row in rows), "END"]


def of_tools(report, value):
    """One line per tool, the first on top: its place, its name, and value(row) of saves and of loads."""
    return [(-i, row["by"], *value(row["save"]), *value(row["load"])) for i, row in enumerate(report["real"])]


def draw_tools(rows, label, curves, title):
    """Data and a panel: tools on the y axis, `curves` over it."""
    tics = ", ".join(f'"{name}" {place}' for place, name, *_ in rows)
    return [*data(rows), f'set title "{title}"', f'set xlabel "{label}"', f"set ytics ({tics})", f"set yrange [{0.5 - len(rows)}:0.5]",
            "set xrange [0:*]", "set bmargin 6", "set key at graph 0.5, screen 0.05 center horizontal samplen 1 width -2", f"plot {curves}"]


def plot_rates(report, path):
    rows = of_tools(report, lambda of: (of["rate"], of["from"], of["to"]))
    curves = ('$data using 3:($1+0.12):4:5 with xerrorbars pt 7 ps 0.8 lw 2 lc rgb "#1f6fb4" title "durable save", '
              '$data using 6:($1-0.12):7:8 with xerrorbars pt 5 ps 0.8 lw 2 lc rgb "#c46a12" title "cold load"')
    title = f"Llama 8B, {report['share']}: {report['bytes'] / 1e9:.2f} GB"
    gnuplot(path, "760,460", *draw_tools(rows, f"GB/s: median of {report['rounds']} rounds, from the slowest to the fastest", curves, title))


def plot_costs(report, path):
    curves = ('$data using 3:($1+0.12) with points pt 7 ps 0.8 lc rgb "#1f6fb4" title "durable save", '
              '$data using 4:($1-0.12) with points pt 5 ps 0.8 lc rgb "#c46a12" title "cold load"')
    cpu, memory = of_tools(report, lambda of: (of["cpu_per_gb"],)), of_tools(report, lambda of: (math.nan if of["memory"] is None else of["memory"],))
    gnuplot(path, "980,460", "set multiplot layout 1,2", *draw_tools(cpu, "seconds of the processor for each GB", curves, "Processor"),
            *draw_tools(memory, "memory beyond the state, × state", curves, "Memory"))


def plot_metadata(report, path):
    rows = [(i, f"{row['model']}, {row['ranks']:.0f}", *(row[key] for key in STEPS)) for i, row in enumerate(report["metadata"])]
    colors = ("#1f6fb4", "#c46a12", "#2a8a3e", "#8a3ea8", "#444444")
    curves = ", ".join(f'$data using 1:{i + 3}:xtic(2) with linespoints pt 7 ps 0.7 lw 2 lc rgb "{color}" title "{name}"'
                       for i, (name, color) in enumerate(zip(STEPS.values(), colors)))
    gnuplot(path, "760,460", *data(rows), 'set title "Llama on the ranks of MLPerf Storage: metadata alone, by one process"', "set logscale y",
            "set xrange [-0.2:3.2]", 'set xlabel "model, ranks"', 'set ylabel "seconds"', "set key outside right Left reverse", f"plot {curves}")


def plot(report, directory):
    os.makedirs(directory, exist_ok=True)
    for name, draw in (("rates", plot_rates), ("costs", plot_costs), ("metadata", plot_metadata)):
        draw(report, os.path.join(directory, name + ".svg"))


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        figures = json.load(file)
    print(tables(figures))
    if len(sys.argv) > 2:
        plot(figures, sys.argv[2])
