"""The page made from the results of the experiment: Markdown, one function per section."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["page"]

Entry = Mapping[str, Any]

# of the layouts in kernel_check.py
_RESULTS = ("y", "dx", "dweight", "dbias", "grad_output")
# said elsewhere in the table, or of the adapters and the interpreter and not of the kernel
_HIDDEN_REMARKS = {"default_eps"}
_OUTCOMES = {"right": "a LayerNorm", "inaccurate": "a LayerNorm, but inaccurate"}
_HIDDEN_OF_KERNELS = {"default_eps", "malformed_arguments", "declines_empty"}


def page(results: Mapping[str, Any]) -> str:
    """Return the whole page."""
    classes = results["classes"]
    sections = (
        _introduction(results),
        _findings(results.get("findings", ()), results["versions"]),
        _kernels(results.get("kernels", {}), results["versions"]),
        _layer_norms(_published(classes, "LayerNorm")),
        _rms_norms(_published(classes, "RMSNorm")),
        _others(_published(classes, "other")),
        _not_verified(classes),
        _versions(results),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _introduction(results: Mapping[str, Any]) -> Iterator[str]:
    classes = results["classes"]
    layers = [entry for entry in classes if entry["kind"] == "layer"]
    kinds = {kind: _published(classes, kind) for kind in ("LayerNorm", "RMSNorm", "other")}
    verified = sum(len(entries) for entries in kinds.values())
    copies = sum(entry["copies"] for entry in classes)
    packages = {place["distribution"] for entry in classes for place in entry["places"]}
    yield "# The normalisation layers of published packages"
    yield ""
    yield (
        f"{len(packages)} packages define {copies:,} modules and autograd functions with Norm in "
        f"their name. Many are copies: without names, annotations and docstrings, {len(classes)} "
        f"sources are left, {len(layers)} of them layers that contain no other layer. {verified} "
        f"are verified here: {len(kinds['LayerNorm'])} compute a LayerNorm, "
        f"{len(kinds['RMSNorm'])} an RMSNorm and {len(kinds['other'])} something else. Why the "
        "others are not is said at the end."
    )
    yield ""
    yield (
        "Each was verified with `layernorm-bench verify TARGET --quick --dtype float32`, forward "
        "and backward, and its source was read; a verdict stands here only where the two agree. "
        "A class is named by one of its copies. What is not a LayerNorm is usually not meant to "
        f"be one, whatever its name. Measured on {results['date']}, by the rules of that date, "
        f"with Python {results['python']} and torch {results['versions']['torch']} on a CPU; "
        "`tox run -e real-modules` does it again."
    )


def _findings(findings: Sequence[Entry], versions: Mapping[str, str]) -> Iterator[str]:
    yield "## Findings"
    yield ""
    yield (
        "Mistakes found on the way, in the versions named. The output below each piece of code is "
        "what it printed when this page was made. Code that imports `real_modules` is run in "
        "experiments/, with TRITON_INTERPRET=1 for kernels."
    )
    for finding in findings:
        package = finding["package"]
        yield ""
        yield f"### {package} {_version(versions, package)}: {finding['title']}"
        yield ""
        yield f"{finding['where']}. {' '.join(finding['text'].split())}"
        yield ""
        yield f"```python\n{finding['code']}\n```"
        yield ""
        yield f"```text\n{finding['printed']}\n```"


def _kernels(kernels: Mapping[str, Entry], versions: Mapping[str, str]) -> Iterator[str]:
    yield "## Public Triton kernels"
    yield ""
    yield (
        "Run on the CPU through Triton's interpreter (experiments/real_modules/interpreter.py says "
        "what is replaced: questions about the GPU, and no arithmetic), in float32, against the "
        "same formula in float64. Races, and what a compiler does to the arithmetic, do not show. "
        "✓: y and every gradient are right."
    )
    layouts = list(next(iter(kernels.values()))["check"]) if kernels else []
    yield ""
    yield f"| kernel | version | {' | '.join(layouts)} | verify |"
    yield "|---|---|" + "---|" * (len(layouts) + 1)
    for name, found in kernels.items():
        package = name.removesuffix("_layer_norm").removesuffix("_rms_norm").removesuffix("_gated")
        cells = [_kernel_cell(found["check"].get(layout, {})) for layout in layouts]
        verdict = _kernel_verdict(found.get("verdict")) if "layer_norm" in name else "–"
        yield f"| {name} | {_version(versions, package)} | {' | '.join(cells)} | {verdict} |"


def _kernel_cell(results: Mapping[str, str]) -> str:
    said = {name: results[name] for name in _RESULTS if name in results}
    wrong = [f"{name} {said[name]}" for name in said if said[name] != "right"]
    if not said:
        return "not run"
    right = "✓" if "dx" in said else "✓ forward only"
    return right if not wrong else _plain("; ".join(wrong).replace(" none", ": no gradient"))


def _kernel_verdict(verdict: Entry | None) -> str:
    if verdict is None:
        return "not run"
    remarks = [
        remark["text"]
        for remark in verdict["remarks"]
        if remark["kind"] not in _HIDDEN_OF_KERNELS and "InterpreterError" not in remark["text"]
    ]
    if verdict["outcome"] != "wrong":
        outcome = _OUTCOMES.get(verdict["outcome"], verdict["outcome"].replace("_", " "))
        return _plain("; ".join([outcome, *remarks[:2]]))
    # the interpreter keeps its state in globals: two threads disturb each other there
    violations = [text for text in verdict["violations"] if "thread" not in text]
    if not violations and not verdict["failed"]:
        return _plain("; ".join(["a LayerNorm", *remarks[:2]]))
    mistakes = [*verdict["suspects"][:1], *violations[:2]] or [str(verdict["failure"])]
    return _plain("; ".join(["**wrong**", *mistakes]))


def _layer_norms(entries: Sequence[Entry]) -> Iterator[str]:
    yield "## LayerNorm"
    yield ""
    yield "| class | package | copies | axes | default eps | weight, bias | remarks |"
    yield "|---|---|---|---|---|---|---|"
    for entry in entries:
        verdict, reading = entry["verdict"], entry["reading"]
        remarks = [remark["text"] for remark in verdict["remarks"] if _is_shown(remark)]
        wrong = [f"**{reading['wrong']}**"] if reading["wrong"] else []
        eps = verdict["default_eps"] or reading["eps"]
        offset = reading["computes"] != "LayerNorm"
        cells = (
            _axes(verdict["instead_axes"] if offset else verdict["axes"]),
            "–" if eps is None else f"{eps:g}",
            "1 + weight" if offset else _affines(verdict["affines"]),
            _plain("; ".join([*wrong, *_note(reading), *remarks])),
        )
        yield f"{_name(entry)} {' | '.join(cells)} |"


def _rms_norms(entries: Sequence[Entry]) -> Iterator[str]:
    yield "## RMSNorm"
    yield ""
    yield "| class | package | copies | axis | default eps | computes |"
    yield "|---|---|---|---|---|---|"
    for entry in entries:
        verdict, reading = entry["verdict"], entry["reading"]
        eps = "–" if reading["eps"] is None else f"{reading['eps']:g}"
        computes = _plain("; ".join([verdict["instead"] or "RMSNorm", *_note(reading)]))
        yield f"{_name(entry)} {reading['axis']} | {eps} | {computes} |"


def _others(entries: Sequence[Entry]) -> Iterator[str]:
    yield "## Other"
    yield ""
    yield "| class | package | copies | computes |"
    yield "|---|---|---|---|"
    for entry in entries:
        reading = entry["reading"]
        yield f"{_name(entry)} {_plain('; '.join([reading['computes'], *_note(reading)]))} |"


def _not_verified(classes: Sequence[Entry]) -> Iterator[str]:
    """Group the layers without a verdict by its reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for entry in classes:
        if not _is_published(entry) and entry["kind"] == "layer":
            by_reason[_why_not(entry)].append(_short(entry))
    blocks, functions = (
        sum(entry["kind"] == kind for entry in classes) for kind in ("block", "function")
    )
    yield "## Not verified"
    yield ""
    yield f"- contains other layers, as an adaptive or a wrapped normalisation does: {blocks}"
    yield f"- an autograd function, called by the modules and kernels above: {functions}"
    for reason, names in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        yield f"- {_plain(reason)} ({len(names)}): {', '.join(names)}"


def _why_not(entry: Entry) -> str:
    reading, verdict = entry["reading"], entry["verdict"]
    if reading is None:
        return "not read yet"
    if reading["skip"]:
        return reading["skip"]
    if verdict is None:
        return "cannot be imported here"
    if entry["contradiction"]:
        return "the verdict is being looked into"
    return "the verifier could not call it"


def _versions(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## Versions"
    yield ""
    named = (f"{name} {number}" for name, number in sorted(results["versions"].items(), key=_lower))
    yield ", ".join(named) + "."


def _lower(item: tuple[str, str]) -> str:
    return item[0].lower()


def _published(classes: Iterable[Entry], kind: str) -> list[Entry]:
    """Return the entries of a kind whose verdict agrees with the reading, the most copied first."""
    return [entry for entry in classes if _is_published(entry) and _kind(entry) == kind]


def _is_published(entry: Entry) -> bool:
    verdict, reading = entry["verdict"], entry["reading"]
    if not verdict or not reading or reading["skip"] or entry["contradiction"]:
        return False
    return verdict["outcome"] != "not_verified"


def _kind(entry: Entry) -> str:
    kind = str(entry["reading"]["computes"]).removesuffix(" with 1 + weight")
    return kind if kind in {"LayerNorm", "RMSNorm"} else "other"


def _name(entry: Entry) -> str:
    """Return the first three cells of a row: class, package and copies."""
    module, _, name = entry["reading"]["target"].rpartition(":")
    place = next(
        (
            location
            for location in entry["places"]
            if (location["module"], location["name"]) == (module, name)
        ),
        entry["places"][0],
    )
    return f"| `{module}:{name}` | {place['distribution']} | {entry['copies']} |"


def _short(entry: Entry) -> str:
    place = entry["places"][0]
    return f"{place['module'].partition('.')[0]}:{place['name']}"


def _is_shown(remark: Mapping[str, str]) -> bool:
    return remark["kind"] not in _HIDDEN_REMARKS


def _note(reading: Mapping[str, Any]) -> list[str]:
    with_arguments = [f"with {', '.join(reading['init'])}"] if reading["init"] else []
    return [*with_arguments, *([reading["note"]] if reading["note"] else [])]


def _axes(axes: str | None) -> str:
    return (axes or "").removeprefix("the ").removesuffix(" of x")


def _affines(affines: Sequence[str]) -> str:
    names = {"both": "weight and bias", "weight": "weight", "bias": "bias", "none": "neither"}
    return ", ".join(names[affine] for affine in affines)


def _version(versions: Mapping[str, str], package: str) -> str:
    """Return a version by the name of a distribution, or of the module that it installs."""
    plain = {name.replace("-", "_").lower(): number for name, number in versions.items()}
    aliases = {"liger": "liger_kernel", "fla": "fla_core", "conch": "conch_triton_kernels"}
    name = package.replace("-", "_").lower()
    return plain.get(aliases.get(name, name), "")


def _plain(text: str) -> str:
    """Keep a text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
