"""`sccvfl export`: a finished run in the formats of MLflow, in-toto and Hugging Face."""

from __future__ import annotations

import argparse
from pathlib import Path

from secure_sccvfl.launch.arguments import answer, argument, program
from secure_sccvfl.protocols.config import ConfigError

FILES = {"mlflow": "mlruns", "intoto": "run.intoto.json", "modelcard": "MODEL_CARD.md"}
"""What each format writes, unless --out says otherwise."""


@program(
    "export",
    argument("format", choices=tuple(FILES), help="the format"),
    argument("run", type=Path, help="the folder of a finished run"),
    argument("--certs", type=Path, help="intoto: folder with this party's certificate and key"),
    argument("--rank", type=int, help="intoto: this party's rank, from 0"),
    argument("--out", type=Path, help="the new file (mlflow: the folder of its store)"),
)
def export(options: argparse.Namespace) -> int:
    """Export a finished run: figures with intervals, epsilon, limits, digests. No record, share or model.

        sccvfl export modelcard runs/a                        writes MODEL_CARD.md
        sccvfl export intoto out --certs certs --rank 0       writes run.intoto.json
        sccvfl export mlflow runs/a                           adds a run to mlruns/

    modelcard: a Hugging Face model card (YAML header and text). intoto: an in-toto statement about report.json, the
    policy card and the run's seal, in a DSSE envelope signed with the key of this party's certificate: its keyid is
    the certificate's fingerprint, and cert.pem verifies it. mlflow (extra `mlflow`): parameters, metrics, report.json
    and report.html in a local file store; telemetry is off. The run's folder is not changed. Export only runs that
    `sccvfl audit verify` trusts; a run whose log or report does not fit its seal is refused.
    """
    from secure_sccvfl.reports import exports

    out = options.out or Path(FILES[options.format])
    signing = (options.certs, options.rank)
    if (options.format == "intoto") != all(value is not None for value in signing) or signing.count(None) == 1:
        raise ConfigError("intoto needs --certs FOLDER and --rank N; other formats take neither")
    if options.format != "mlflow" and out.exists():
        raise ConfigError(f"{out} is there already; remove it, or name another file with --out")
    finished = exports.Finished.of(options.run)
    if options.format == "mlflow":
        name = exports.to_mlflow(finished, out)
        return answer(options, {"store": str(out), "run": name}, f"added run {name} to {out}")
    if options.format == "intoto":
        text = exports.envelope(finished, options.certs, options.rank)
    else:
        text = exports.model_card(finished)
    out.write_text(text, encoding="utf-8")
    return answer(options, {"written": str(out)}, f"wrote {out}")
