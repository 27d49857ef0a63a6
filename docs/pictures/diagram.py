"""The path of a run as a diagram: boxes in rows, and arrows between them. Used by make.py."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT, GAP_X, GAP_Y = 250, 52, 24, 40
BOXES = {  # name: (column, row, what one calls it, where it is)
    "user": (0, 0, "isonomy run CONFIG", "cli/run.py, api.py"),
    "serve": (1, 0, "isonomy serve CONFIG", "cli/serve.py, federation/organiser.py"),
    "config": (0.5, 1, "read and check the config", "config/"),
    "build": (0.5, 2, "build everything: a Setting", "runs/build.py"),
    "train": (0.5, 3, "rounds, evaluation, checkpoints", "runs/training.py"),
    "round": (0, 4, "Algorithm.round(server, cohort)", "algorithms/FAMILY/NAME.py"),
    "folder": (1.7, 4, "the run's folder", "runs/folder.py, runs/saved_model.py"),
    "cohort": (0, 5, "checks the phase's declaration", "core/cohort.py"),
    "report": (1.2, 5, "tables, figures, page", "report/"),
    "deploy": (2.2, 5, "predict, export", "deploy/"),
    "server": (0, 6, "server side: screening, dropout, defence", "runs/middleware.py"),
    "loop": (0, 7, "engine: loop or batched", "engines/"),
    "ranks": (2, 7, "engine: distributed, shares of the clients", "engines/distributed/"),
    "network": (1, 7, "engine: flower, one message per client", "federation/flower/"),
    "participant": (1, 8, "isonomy join, at the participant", "federation/participant.py"),
    "client": (0, 9, "client side: attacks, noise", "runs/middleware.py"),
    "phase": (0, 10, "phase(task, message, client)", "-> (reply, state)"),
}
ARROWS = (
    "user config, serve config, config build, build train, train round, train folder, "
    "round cohort, folder report, folder deploy, cohort server, server loop, server network, "
    "server ranks, loop client, network participant, participant client, ranks client, client phase"
)


def drawn() -> str:
    """The diagram as SVG."""
    place = {
        name: (12 + column * (WIDTH + GAP_X), 12 + row * (HEIGHT + GAP_Y))
        for name, (column, row, *_) in BOXES.items()
    }
    width = max(x for x, _ in place.values()) + WIDTH + 12
    height = max(y for _, y in place.values()) + HEIGHT + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">',
        "<title>The path of a run</title>",
        "<style>text{font:13px Helvetica,Arial,sans-serif;text-anchor:middle;fill:#1c1f24}"
        ".where{font-size:11px;fill:#5b636e}rect{fill:#f4f6f8;stroke:#8a8f98}"
        "path{fill:none;stroke:#5b636e;marker-end:url(#head)}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" '
        'style="fill:#5b636e;stroke:none;marker-end:none"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" style="fill:#fff;stroke:none"/>',
    ]
    for arrow in ARROWS.split(", "):
        (x1, y1), (x2, y2) = (place[name] for name in arrow.split())
        start, end = (x1 + WIDTH / 2, y1 + HEIGHT), (x2 + WIDTH / 2, y2)
        middle = end[1] - GAP_Y / 2
        out.append(
            f'<path d="M{start[0]:.0f} {start[1]:.0f}V{middle:.0f}H{end[0]:.0f}V{end[1]:.0f}"/>'
        )
    for name, (_, _, what, where) in BOXES.items():
        x, y = place[name]
        out.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 22:.0f}">{escape(what)}</text>'
            f'<text class="where" x="{x + WIDTH / 2:.0f}" y="{y + 40:.0f}">{escape(where)}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"
