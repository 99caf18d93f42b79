"""The command line: `mamba-replay-check`."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import engines_command
from .baseline import BaselineError
from .config import Choices, Config, ConfigError, engine_of, load
from .errors import say as _say
from .files import DocumentError, OutputError, read_document
from .outputs import Outputs
from .settings import SettingsError, read_settings

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"max_content_width": 100},
)

app.add_typer(engines_command.app, name="engines")

_UsageError = typer.BadParameter.__base__
"""What typer raises for a command line that it cannot read. It has the class from click, or has made it its own."""

GRID, TESTED, PROMPTS, RUNNING, OUTPUT = "Grid", "Under test", "Prompts", "How it runs", "Output"
GATE = "Gate"


class DType(StrEnum):
    """Number formats that a model can be run in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Device(StrEnum):
    """Devices, as on the command line."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Payload(StrEnum):
    """What travels to an engine in a process of its own."""

    TAG = "tag"
    TENSORS = "tensors"


class ExecutorName(StrEnum):
    """Executors, as on the command line."""

    BATCHED = "batched"
    STOCK = "stock"
    COMPILED = "compiled"


def _grid(what: str, default: str) -> object:
    return typer.Option(help=what, rich_help_panel=GRID, metavar="SIZES", show_default=default or None)


def _file(what: str) -> object:
    return typer.Option(help=what, rich_help_panel=OUTPUT, metavar="FILE")


BASELINE = "mamba-replay-baseline.json"
"""Where a baseline is written when nobody says where."""

SOURCE = "mamba_replay_check.source"
"""Where the context keeps file and line of the settings."""


def _settings(context: typer.Context, path: Path | None) -> Path | None:
    """What the settings file says becomes the default of its options: the command line wins."""
    try:
        settings = read_settings(path)
    except SettingsError as error:
        _say(str(error))
        raise typer.Exit(2) from None
    if settings is not None:
        names = {"baseline": "baseline_file"}
        context.default_map = {names.get(key, key.replace("-", "_")): value for key, value in settings.values.items()}
        context.meta[SOURCE] = (str(settings.path), settings.line)
    return path


def _said(context: typer.Context, name: str) -> bool:
    """Was this option given on the command line, and not by the settings?"""
    return context.get_parameter_source(name).name == "COMMANDLINE"


def _prompts(
    context: typer.Context, prompt: list[str] | None, prompts: str | None, tokenizer: Path | None
) -> tuple[list[str] | None, str | None, Path | None]:
    """Which prompts to replay is one choice: whoever names some on the command line does not want the settings'."""
    if _said(context, "prompt") or _said(context, "prompts"):
        prompt = prompt if _said(context, "prompt") else None
        prompts = prompts if _said(context, "prompts") else None
    if prompts is None and not _said(context, "tokenizer"):
        tokenizer = None
    return prompt, prompts, tokenizer


def _engine(context: typer.Context, engine: str | None, command: str | None) -> tuple[str | None, str | None]:
    """Which engine is under test is one choice, too."""
    if _said(context, "engine") or _said(context, "engine_cmd"):
        engine = engine if _said(context, "engine") else None
        command = command if _said(context, "engine_cmd") else None
    return engine, command


def _refuse_options_of_a_check(context: typer.Context) -> None:
    """Options before a command would go unheard."""
    if any(_said(context, name) for name in context.params):
        command = context.invoked_subcommand
        _say(f"options go behind the command: mamba-replay-check {command} [OPTIONS]")
        raise typer.Exit(2)


@app.callback(invoke_without_command=True)
def check(
    context: typer.Context,
    page: Annotated[str, _grid("Tokens per KV page.", "64")] = "64",
    dcp: Annotated[str, _grid("Ranks of decode context parallelism; page x dcp is the radix tree's page.", "1")] = "1",
    chunk: Annotated[str, _grid("Tokens per chunk of the linear-attention kernel.", "64")] = "64",
    interval: Annotated[
        str | None, _grid("Decode steps between snapshots.", "256, or the next multiple of chunk and page")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="The engine under test: a release such as sglang==0.5.18, which is installed on first use; "
            "python:MODULE:CLASS; or a model of one. Default: the newest modelled SGLang.",
            rich_help_panel=TESTED,
            metavar="NAME",
        ),
    ] = None,
    engine_cmd: Annotated[
        str | None,
        typer.Option(
            help="An engine behind a driver of your own, by the command line that starts it (docs/engine-protocol.md).",
            rich_help_panel=TESTED,
            metavar="CMD",
        ),
    ] = None,
    engine_python: Annotated[
        Path | None,
        typer.Option(
            help="The Python that has the engine, for --engine sglang or vllm without a release.",
            rich_help_panel=TESTED,
            metavar="PATH",
        ),
    ] = None,
    payload: Annotated[
        Payload | None,
        typer.Option(
            help="What an engine in a process of its own moves: the number of a snapshot, or the state's tensors. "
            "Default: tag.",
            rich_help_panel=TESTED,
        ),
    ] = None,
    engine_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that an engine in a process of its own may take for an answer.",
            rich_help_panel=TESTED,
            metavar="SECONDS",
        ),
    ] = 120.0,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Add the insert-time check of SGLang PRs 34760 and 34780.",
            rich_help_panel=TESTED,
        ),
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            help="The model whose layers compute: kimi-linear or qwen3-next.", rich_help_panel=TESTED, metavar="NAME"
        ),
    ] = "kimi-linear",
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="A prompt by its prefill chunks, e.g. 16384+4066. Add d300 for 300 decode steps, n64 to resume with a "
            "prompt that is 64 tokens longer, b1600n64 with one that shares only the "
            "first 1600 tokens. Repeatable. Default: the case of SGLang PR 34808, and the prompts that "
            "sit on each geometry's edges.",
            rich_help_panel=PROMPTS,
            metavar="SIZES",
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help='Prompts from a file of JSON lines, {"tokens": [...]} or {"text": "..."}. FILE:3 takes line 3 only.',
            rich_help_panel=PROMPTS,
            metavar="FILE",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A tokenizer.json for the text prompts. Default: bytes.", rich_help_panel=PROMPTS, metavar="FILE"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and tokens.", rich_help_panel=RUNNING, min=0)] = 0,
    dtype: Annotated[DType, typer.Option(help="Number format of the model.", rich_help_panel=RUNNING)] = DType.FLOAT32,
    device: Annotated[Device, typer.Option(help="Where to run.", rich_help_panel=RUNNING)] = Device.AUTO,
    executor: Annotated[
        ExecutorName | None,
        typer.Option(
            help="How Triton kernels are run. Default: compiled on a GPU, batched (interpreted, all programs of a grid "
            "at once) on a CPU. stock is Triton's own interpreter: the yardstick, and very slow.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    no_share: Annotated[
        bool,
        typer.Option(
            "--no-share/--share",
            help="Run every prompt by itself, cold and donor included.",
            rich_help_panel=RUNNING,
        ),
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write the run as JSON.", rich_help_panel=OUTPUT, metavar="FILE")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Write one row per cell: .csv or .parquet.", rich_help_panel=OUTPUT, metavar="FILE"),
    ] = None,
    html: Annotated[Path | None, _file("Write the report as one HTML page.")] = None,
    junit: Annotated[Path | None, _file("Write JUnit XML, one case per cell.")] = None,
    sarif: Annotated[Path | None, _file("Write SARIF 2.1.0.")] = None,
    github: Annotated[
        bool,
        typer.Option(
            "--github/--no-github",
            help="Print annotations for GitHub, and add to the job's summary.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Leave out the table of cells.", rich_help_panel=OUTPUT)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Every finding in full. The default where CI is set.", rich_help_panel=OUTPUT
        ),
    ] = False,
    baseline_file: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="Fail only on what is new or worse than this baseline.",
            rich_help_panel=GATE,
            metavar="FILE",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict/--no-strict", help="Fail on stale entries of the baseline, too.", rich_help_panel=GATE),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with choices. Default: \\[tool.mamba-replay-check] of ./pyproject.toml, if it has one.",
            rich_help_panel=GATE,
            metavar="FILE",
            is_eager=True,
            callback=_settings,
        ),
    ] = None,
    write_baseline: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Check that an engine which reuses cached prefixes of a hybrid model computes what a cold run computes.

    Every prompt runs twice through flash-linear-attention's kernels, cold and
    resumed from the state that the engine under test hands back, over a grid of
    sizes. SIZES is one value (64), a list (1,16,64), a range (1..8 or
    64..512..64) or a geometric range (1..128..x2).

    Exit status: 0 every checked cell is right, 1 discrepancies, 2 bad input,
    3 inconclusive: nothing was resumed.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_of_a_check(context)
        return
    prompt, prompts, tokenizer = _prompts(context, prompt, prompts, tokenizer)
    engine, engine_cmd = _engine(context, engine, engine_cmd)
    written = None if write_baseline is None else Path(write_baseline or baseline_file or BASELINE)
    choices = Choices(
        chunk=chunk,
        page=page,
        dcp=dcp,
        interval=interval,
        engine=engine,
        engine_cmd=engine_cmd,
        engine_python=engine_python,
        engine_timeout=engine_timeout,
        payload=str(payload) if payload else None,
        guard=guard,
        model=model,
        prompts=tuple(prompt or ()),
        prompts_file=prompts,
        tokenizer=tokenizer,
        seed=seed,
        dtype=str(dtype),
        device=str(device),
        executor=str(executor) if executor else None,
        share=not no_share,
        outputs=Outputs(json, table, html, junit, sarif, github),
        baseline=None if written else baseline_file,
        strict=strict and not written,
        write_baseline=written,
        source=context.meta.get(SOURCE),
    )
    raise typer.Exit(_answering(lambda: _run(load(choices), quiet, verbose)))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run that --json wrote.", metavar="RUN")],
    table: Annotated[Path | None, _file("Write one row per cell: .csv or .parquet.")] = None,
    html: Annotated[Path | None, _file("Write the report as one HTML page.")] = None,
    junit: Annotated[Path | None, _file("Write JUnit XML, one case per cell.")] = None,
    sarif: Annotated[Path | None, _file("Write SARIF 2.1.0.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations for GitHub, and add to the job's summary.")
    ] = False,
) -> None:
    """Render reports from a saved run. The exit status is the run's."""

    def render() -> int:
        outputs = Outputs(None, table, html, junit, sarif, github)
        outputs.check()
        if not outputs.paths and not github:
            raise ConfigError("nothing to render: name a report, e.g. --html FILE")
        if run.resolve() in {path.resolve() for path in outputs.paths.values()}:
            raise ConfigError(f"{run} holds the run, and would be overwritten: write to another file")
        document = read_document(run)
        outputs.write(document, None, lambda line: print(line))
        return document["exit_status"]

    raise typer.Exit(_answering(render))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def baseline(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where to write it.",
            metavar="FILE",
            show_default=f"the baseline that the settings name, or {BASELINE}",
        ),
    ] = None,
) -> None:
    """Check, and write what was found as the baseline of later runs. Takes every option of a check as well."""
    raise typer.Exit(app([*context.args, "--write-baseline", str(output or "")], standalone_mode=False))


@app.command()
def conform(
    engine_cmd: Annotated[
        str | None, typer.Option(help="The command line that starts the driver.", metavar="CMD")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="A real engine, whose driver is to be tried, e.g. sglang==0.5.23.", metavar="NAME"),
    ] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="The Python that has the engine that --engine names.", metavar="FILE")
    ] = None,
    engine_timeout: Annotated[float, typer.Option(help="Seconds for each answer.", metavar="SECONDS")] = 120.0,
) -> None:
    """Try a driver against the engine protocol (docs/engine-protocol.md), rule by rule.

    Exit status: 0 it keeps all rules, 1 it does not, 2 it cannot be started.
    """

    def talk() -> int:
        from ..engines.base import EngineFailure
        from ..engines.catalog import EngineError, driver_command, is_external
        from .conform_command import run

        choices = Choices(
            engine=engine, engine_cmd=engine_cmd, engine_python=engine_python, engine_timeout=engine_timeout
        )
        try:
            name = engine_of(choices)
            if not is_external(name):
                raise EngineError('conform tries a driver: give --engine-cmd "CMD", or --engine sglang==VERSION')
            return run(driver_command(name, engine_python), engine_timeout, _Screen(emoji=False))
        except (EngineError, EngineFailure) as error:
            raise ConfigError(str(error)) from error

    raise typer.Exit(_answering(talk))


@app.command()
def server(
    url: Annotated[str, typer.Option(help="Where the server answers, e.g. http://127.0.0.1:8000.", metavar="URL")],
    kind: Annotated[str, typer.Option(help="auto, sglang or vllm.", metavar="KIND")] = "auto",
    model: Annotated[
        str | None, typer.Option(help="The model to ask for. Default: the first that the server names.", metavar="NAME")
    ] = None,
    page: Annotated[int | None, typer.Option(help="Tokens per KV page, if known. Default: probed.", min=1)] = None,
    dcp: Annotated[int | None, typer.Option(help="Ranks of decode context parallelism, if known.", min=1)] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens per kernel chunk, if known.", min=1)] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="resend:3000, turn:3000 or sibling:3000: how the prompt is related to its donor, and the donor's "
            "tokens. Repeatable. Default: cases around the edges of the server's grid.",
            metavar="CASE",
        ),
    ] = None,
    vocab: Annotated[int, typer.Option(help="Token ids below this are used: any model has 256.", min=1)] = 256,
    longest: Annotated[int, typer.Option(help="No default case is longer than this many tokens.", min=256)] = 8192,
    repeats: Annotated[int, typer.Option(help="Cold runs of each prompt, for the noise floor.", min=3)] = 3,
    sends: Annotated[int, typer.Option(help="Donors at most: some servers keep nothing at first sight.", min=1)] = 4,
    cold: Annotated[
        str, typer.Option(help="What keeps cold runs cold: a salt, or reset of the cache.", metavar="salt|reset")
    ] = "salt",
    seed: Annotated[int, typer.Option(help="Seed of the tokens.", min=0)] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.", min=0.1)] = 60,
    json: Annotated[Path | None, typer.Option(help="Write the run as JSON.", metavar="FILE")] = None,
) -> None:
    """Check a running vLLM or SGLang from outside: prompts cold and resumed, log-probabilities behind the boundary.

    Exit status: 0 every case is right, 1 discrepancies, 2 bad input or no such
    server, 3 inconclusive: nothing was reused, or the server failed.
    """

    def ask() -> int:
        from .server_command import ServerChoices, run

        console = _Screen(emoji=False)
        choices = ServerChoices(
            url,
            kind,
            model,
            page,
            dcp,
            chunk,
            tuple(case or ()),
            vocab,
            longest,
            repeats,
            sends,
            cold,
            seed,
            timeout,
            json,
        )
        return run(choices, console, bars=console.is_terminal and not os.environ.get("CI"))

    raise typer.Exit(_answering(ask))


def _answering(do: Callable[[], int]) -> int:
    """The exit status of `do`; a mistake of the user's is said on one line, and so is why a run makes no baseline."""
    try:
        return do()
    except (ConfigError, OutputError, DocumentError) as error:
        _say(str(error))
        return 2
    except BaselineError as error:
        _say(str(error))
        return 3


class _Screen(Console):
    """A console whose reader may leave early, as `head` does: files and exit status are owed all the same."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(config: Config, quiet: bool, verbose: bool) -> int:
    """Check and report. A first Ctrl-C or SIGTERM ends the check and reports what is finished."""
    from .session import Session
    from .terminal import Terminal

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = _Screen(emoji=False)
    # Where CI is set nothing moves on the screen, and nothing is left out.
    in_ci = bool(os.environ.get("CI"))
    terminal = Terminal(console, table=not quiet, everything=verbose or in_ci, bars=console.is_terminal and not in_ci)
    return Session(config, terminal, console).run()


def _where_it_stands(error: Exception) -> str:
    """The settings file, for a value that stands there and not on the command line."""
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or param is None or SOURCE not in context.meta or _said(context, param.name):
        return ""
    return f"{context.meta[SOURCE][0]}: "


def main() -> None:
    """The console script. Status 1 says that an engine is wrong, so a crash of the program's own ends with another."""
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        _say(_where_it_stands(error) + error.format_message())
        sys.exit(2)
    except Exception:
        traceback.print_exc()
        sys.exit(3)


if __name__ == "__main__":
    sys.exit(main())
