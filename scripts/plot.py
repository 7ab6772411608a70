"""Draw the paper's figures, training curves by what was spent, from run directories.

    python -m scripts.plot runs/demo-* --x device_hours

Validation accuracy is drawn as measured; all else is smoothed over the steps (moving average, 0.9),
as in the paper. Runs that differ only in their seed are one method: its mean is thick, over the
range that all its runs cover, and each run thin. The band around the accuracy is a 95% confidence
interval: of several runs over their seeds, as in the paper's App. E, by Student's t; of one run
over the validation problems, by the normal approximation. The legend says which.
"""

from scripts.command import exit_on_error, make_parser
from scripts.study import figures
from scripts.study.runs import AMOUNTS, load_methods


def main(argv=None) -> None:
    parser = make_parser(__doc__, runs=True, out="figures/training.png")
    parser.add_argument(
        "--x", choices=AMOUNTS, default="steps", help="horizontal axis (%(default)s)"
    )
    with exit_on_error("plot"):
        args = parser.parse_args(argv)
        methods = load_methods(args.runs)
        figure = figures.draw(methods, args.x)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out, dpi=150)
        print(args.out)


if __name__ == "__main__":
    main()
