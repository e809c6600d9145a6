"""docs/math.md and the code cite the same equations.

An equation is defined where docs/math.md writes its number in bold: **(M-12)**. It is cited wherever M-12 is written in
src/, tests/ or another document. Each cited number is defined, once; each defined one is cited by code and by a test.
"""

import re
from pathlib import Path

import pytest

DEFINITION = re.compile(r"\*\*\(M-(\d+)\)\*\*")
CITATION = re.compile(r"\bM-(\d+)\b")


def citations(files: list[Path]) -> dict[int, str]:
    """Each cited number with the first place that cites it."""
    found: dict[int, str] = {}
    for path in files:
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for number in CITATION.findall(text):
                found.setdefault(int(number), f"{path}:{line}")
    return found


def disagreements(math: str, code: list[Path], tests: list[Path], documents: list[Path]) -> list[str]:
    """What does not agree, one line each."""
    numbers = [int(number) for number in DEFINITION.findall(math)]
    defined = set(numbers)
    by_code, by_tests = citations(code), citations(tests)
    problems = [f"M-{number} is defined more than once" for number in sorted(defined) if numbers.count(number) > 1]
    for place_of in (by_code, by_tests, citations(documents)):
        problems += [
            f"{place_of[n]} cites M-{n}, which docs/math.md does not define" for n in sorted(place_of.keys() - defined)
        ]
    problems += [f"M-{number} is cited by no file in src/" for number in sorted(defined - by_code.keys())]
    problems += [f"M-{number} is cited by no file in tests/" for number in sorted(defined - by_tests.keys())]
    return problems


def test_code_tests_and_documents_agree(root: Path) -> None:
    math = root / "docs" / "math.md"
    if not math.exists():
        pytest.skip("docs/math.md is not written yet")
    text = math.read_text(encoding="utf-8")
    tests = [path for path in sorted((root / "tests").rglob("*.py")) if path != Path(__file__)]
    documents = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    problems = disagreements(text, sorted((root / "src").rglob("*.py")), tests, [p for p in documents if p.exists()])
    assert not problems, "\n".join(problems)


def test_each_kind_of_disagreement_is_found(tmp_path: Path) -> None:
    code, test, document = tmp_path / "code.py", tmp_path / "test.py", tmp_path / "document.md"
    math = "**(M-1)** k = 1\n\nsee (M-1); ARM-9 is no equation\n**(M-2)** k = 2\n**(M-12)** k = 12\n"
    code.write_text("# eqs. (M-1, M-2), (M-12)\n")
    test.write_text("# M-1, (M-2); M-12.\n")
    document.write_text("as (M-1) says; ARM-9\n")
    assert disagreements(math, [code], [test], [document]) == []

    assert disagreements(math + "**(M-2)**", [code], [test], [document]) == ["M-2 is defined more than once"]
    code.write_text("# M-1\n# M-2, M-3\n")
    test.write_text("# M-2\n# M-4, M-12\n")
    document.write_text("M-5")
    assert disagreements(math, [code], [test], [document]) == [
        f"{code}:2 cites M-3, which docs/math.md does not define",
        f"{test}:2 cites M-4, which docs/math.md does not define",
        f"{document}:1 cites M-5, which docs/math.md does not define",
        "M-12 is cited by no file in src/",
        "M-1 is cited by no file in tests/",
    ]
