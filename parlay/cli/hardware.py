"""`parlay hardware`: list and show devices, links and clusters."""

from __future__ import annotations

from typing import Annotated

import typer

from parlay.cli import flags, output


def list_(json: flags.Json = False) -> None:
    """List the clusters, devices and links of the catalog.

    Example: parlay hardware list
    """
    from parlay.hardware.load import (
        list_clusters,
        list_devices,
        list_links,
        load_cluster,
        load_device,
        load_link,
        user_catalog_directory,
    )
    from parlay.report.hardware import hardware_list_document, hardware_list_lines

    user = user_catalog_directory()
    clusters = [load_cluster(s.path) for s in list_clusters(user)]
    devices = [load_device(s.path) for s in list_devices(user)]
    links = [load_link(s.path) for s in list_links(user)]
    if json:
        output.say_json(hardware_list_document(clusters, devices, links))
    else:
        output.say(hardware_list_lines(clusters, devices, links, output.page()))


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A cluster, device or link, or a file.")], json: flags.Json = False
) -> None:
    """Show a cluster, a device or a link: every value with its source.

    Example: parlay hardware show dgx-h100
    """
    from parlay.hardware.load import find_any, user_catalog_directory
    from parlay.report.hardware import hardware_document, hardware_lines

    spec = find_any(name, user_catalog_directory())
    if json:
        output.say_json(hardware_document(spec))
    else:
        output.say(hardware_lines(spec, output.page()))


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    group = typer.Typer(help="List and show devices, links and clusters.", rich_markup_mode=None, no_args_is_help=True)
    group.command("list")(list_)
    group.command("show")(show)
    app.add_typer(group, name="hardware")
