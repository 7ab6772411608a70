r"""Grade one completion, and show the answers as grading/equality.py compares them.

    python -m scripts.grade '\boxed{48+24}' 72

prints the status and reward of verify.py, here `wrong, reward 0`, and the two texts. Where
several boxes may be one answer, both readings are printed: the last box, and all of them.
"""

from grading.spelling import canonicalize
from plumbing.errors import print_line
from scripts.command import exit_on_error, make_parser
from verify import Verifier, read_answers


def main(argv: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("completion", help=r"text with \boxed{...}")
    parser.add_argument("gold", help="reference answer")
    with exit_on_error("grade"):
        args = parser.parse_args(argv)
        with Verifier(workers=1) as verifier:
            [verdict] = verifier.grade([args.completion], [args.gold])
    print_line(f"{verdict.status}, reward {verdict.reward:g}")
    print_line(f"reference answer: {canonicalize(args.gold)}")
    for answer in read_answers(args.completion):
        print_line(f"answer: {canonicalize(answer)}")


if __name__ == "__main__":
    main()
