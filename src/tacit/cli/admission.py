"""``tacit collaborate keys|admit|revoke``: certificates, and who may take part in a collaboration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import show
from tacit.cli.shared import Json

State = Annotated[Path, typer.Option("--state", help="The folder with the server's state.")]


def keys(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("keys"),
    server: Annotated[
        list[str] | None, typer.Option(help="Host name or address under which participants reach a server.")
    ] = None,
    participant: Annotated[list[str] | None, typer.Option(help="Name of a participant; can be given often.")] = None,
    renew: Annotated[
        list[str] | None,
        typer.Option(help="Make another key and certificate for this participant (or server); the old files stay."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an authority and certificates; existing files stay.

    \b
    Give each participant its own NAME.pem and NAME.key, and ca.pem; keep ca.key to yourself. A participant whose key
    was lost or whose certificate expires goes on with a renewed one: the same name, folder, ledger and budget.

    \b
    Examples:
      tacit collaborate keys --server training.example.org --participant north --participant south
      tacit collaborate keys --participant east
      tacit collaborate keys --renew north
    """
    from tacit.collaboration.network import make_keys
    from tacit.collaboration.network.keys import renew as renewed

    written = [] if renew and not (server or participant) else make_keys(
        out, servers=server or (), participants=participant or ()
    )  # fmt: skip
    again = [renewed(out, name) for name in renew or ()]
    paths = [str(path) for path in written]
    lines = list(paths)
    for each in again:
        lines += [
            f"{out / each.name}.pem has the serial number {each.serial}; the one before is {each.kept}",
            "if its key was lost, on the server: tacit collaborate revoke --serial " + f"{each.before} --state STATE",
        ]
    facts = {
        "written": paths,
        "renewed": [{"name": each.name, "serial": each.serial, "before": each.before} for each in again],
    }
    show(facts, lines or [f"nothing to do: {out} has them all"], as_json=as_json)


def admit(
    name: Annotated[str, typer.Argument(help="The participant, by the common name of its certificate.")],
    state: State,
    as_json: Json = False,
) -> None:
    """Let a participant take part; a server that is running notices.

    \b
    Example: tacit collaborate admit east --state run
    """
    from tacit.collaboration.network import Store
    from tacit.collaboration.network.certificates import check_name

    store = Store(state, sole=False)
    store.admit(check_name(name))
    revoked = store.people()[name]
    store.close()
    if revoked:
        raise ValueError(f"{name!r} was revoked, for good; admit another name, with a certificate of its own.")
    show({"admitted": name}, [f"{name} can take part"], as_json=as_json)


def backup(
    state: State,
    out: Annotated[Path, typer.Option(help="The file to write; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Write a server's state to one file, while it runs too.

    \b
    Example: tacit collaborate backup --state run --out backups/2026-11-18.sqlite
    """
    from tacit.collaboration.network import Store

    if out.exists():
        raise ValueError(f"{out} exists; choose another name, so that a backup is never lost to a newer one.")
    store = Store(state, sole=False)
    uploads = sum(store.server().participants.values())
    store.backup(out)
    store.close()
    facts = {"written": str(out), "bytes": out.stat().st_size, "uploads": uploads}
    show(facts, [f"{out}: {uploads} uploads, {facts['bytes']:,} bytes"], as_json=as_json)


def restore(
    state: Annotated[Path, typer.Option("--state", help="The folder to restore to; it must have no state yet.")],
    backup: Annotated[Path, typer.Option("--backup", help="A file that `tacit collaborate backup` wrote.")],
    as_json: Json = False,
) -> None:
    """Put a server's state back from a backup, into a new folder.

    Serve the new folder, and never the old one again.

    \b
    Uploads that the backup lacks are lost to the model and stay charged to their participants. Tell all participants:
    those who made some go on with `join --older-server`, the others with the same command as before.

    \b
    Example: tacit collaborate restore --state run2 --backup backups/2026-11-18.sqlite
    """
    import shutil

    from tacit._files import sync
    from tacit.collaboration.network import Store

    path = state / "server.sqlite"
    if path.exists():
        raise ValueError(f"{state} has a server's state already; restore to a new folder, and keep the old one aside.")
    if not backup.is_file():
        raise ValueError(f"there is no {backup}.")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = state / "server.restoring"
    shutil.copyfile(backup, draft)
    draft.chmod(0o600)
    sync(draft)
    draft.rename(path)
    sync(state)
    try:
        store = Store(state)
        uploads = store.server().participants
        store.close()
    except Exception:
        path.unlink()
        raise
    lines = [f"{name}: the next upload is number {number}" for name, number in uploads.items()]
    show({"restored": str(state), "uploads": dict(uploads)}, lines or ["no uploads yet"], as_json=as_json)


def revoke(
    state: State,
    name: Annotated[str | None, typer.Argument(help="The participant to refuse for good.")] = None,
    serial: Annotated[
        str | None,
        typer.Option(help="A certificate's serial number instead, whose key was lost: its participant can go on."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Refuse a participant, or a certificate, from now on.

    A running server notices. Earlier uploads stay in the model.

    \b
    Examples:
      tacit collaborate revoke east --state run
      tacit collaborate revoke --serial 5A3F09… --state run
    """
    from tacit.collaboration.network import Store
    from tacit.collaboration.network.certificates import serial_number, serial_text

    if (name is None) == (serial is None):
        raise ValueError("name a participant, or give --serial; one of them.")
    number = None if serial is None else serial_number(serial)
    store = Store(state, sole=False)
    try:
        if number is not None:
            store.revoke_certificate(number)
        else:
            store.revoke(str(name))
    finally:
        store.close()
    if number is not None:
        text = f"nothing more is taken with the certificate {serial_text(number)}; its participant needs another one"
        show({"revoked_serial": serial_text(number)}, [text], as_json=as_json)
    else:
        show({"revoked": name}, [f"nothing more is taken from {name}"], as_json=as_json)
