"""Rows about how nodes meet."""

from __future__ import annotations

from phalanx.cli import convert
from phalanx.cli.options.option import Option

__all__ = ["RENDEZVOUS", "ROWS"]

RENDEZVOUS = "rendezvous"

ROWS: tuple[Option, ...] = (
    Option(
        name="rdzv-backend",
        metavar="NAME",
        read=convert.backend,
        default="static",
        group=RENDEZVOUS,
        help="how nodes meet: static, c10d, etcd, file, or the name of a plug-in; one node needs none",
    ),
    Option(
        name="rdzv-endpoint",
        metavar="HOST[:PORT],...",
        default="",
        group=RENDEZVOUS,
        help="where nodes meet; the same on each of them",
    ),
    Option(
        name="rdzv-id",
        field="run_id",
        metavar="ID",
        section="job",
        group=RENDEZVOUS,
        help="id of the job; without it one is made, but for etcd and file",
    ),
    Option(
        name="rdzv-conf",
        metavar="KEY=VALUE,...",
        read=convert.pairs,
        default="",
        group=RENDEZVOUS,
        help="further settings of the rendezvous; see the table of keys",
    ),
    Option(
        name="secret-file",
        field="secret",
        metavar="FILE",
        also=("PHALANX_SECRET_FILE",),
        read=convert.secret,
        torchrun=False,
        group=RENDEZVOUS,
        help="file with the secret that the job's agents prove to each other; or the secret itself in PHALANX_SECRET",
    ),
    Option(
        name="local-addr",
        metavar="ADDRESS",
        group=RENDEZVOUS,
        help="address of this node that the others can reach",
    ),
)
