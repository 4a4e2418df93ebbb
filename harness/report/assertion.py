"""A verdict as an assertion, for test suites: it runs in their process."""

from __future__ import annotations

from harness.report.document import terminal_lines
from harness.report.verdict import document_of_verdict
from harness.verify.result import VerifyOptions
from harness.verify.verification import Target, by_keyword, verify_target

__all__ = ["assert_layer_norm"]


@by_keyword(VerifyOptions)
def assert_layer_norm(target: Target, options: VerifyOptions) -> None:
    """Raise unless ``target`` is a LayerNorm, naming the mistake; for test suites.

    Args:
        target: as :func:`harness.verify.verification.verify` takes it.
        options: keyword arguments, as :func:`harness.verify.verification.verify` takes them.

    Raises:
        AssertionError: it is wrong, inaccurate or could not be verified; the message holds the
            verdict.
    """
    verdict = verify_target(target, options)
    if not verdict.is_accepted(strict=options.strict):
        *document, _ = document_of_verdict(verdict)  # without the line on the command's options
        lines = terminal_lines(document)
        raise AssertionError("\n".join(line for line, _ in lines))
