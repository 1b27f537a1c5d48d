//! Curves and plots.

use gpuos_sim::curve::{Curve, mean};
use gpuos_sim::plot::{Line, Titles, svg};
use gpuos_sim::protocol::inflation::Standing;

#[test]
fn a_curve_has_a_figure_for_each_percent() {
    let mut curve = Curve::new();
    for (arrived, allocated) in [(100, 100), (349, 300), (1000, 620), (1299, 700)] {
        curve.push(&Standing {
            arrived,
            allocated,
            capacity: 1000,
            rejected: 0,
            rejected_milli: 0,
        });
    }
    assert_eq!(
        [0, 10, 11, 34].map(|at| curve.at(at)),
        [100_000, 100_000, 300_000, 300_000]
    );
    // The first arrival that reaches a percent counts for it; the last for all that follow.
    assert_eq!(
        [35, 100, 101, 130].map(|at| curve.at(at)),
        [620_000, 620_000, 700_000, 700_000]
    );
}

#[test]
fn means_and_deviations_are_those_of_a_sample() {
    assert_eq!(mean(&[1.0, 2.0, 3.0]), (2.0, 1.0));
    assert_eq!(mean(&[4.0]), (4.0, 0.0));
    assert_eq!(mean(&[]), (0.0, 0.0));
}

#[test]
fn a_plot_has_its_lines_and_names_inside_the_frame() {
    let titles = Titles {
        title: "a < b",
        x: "load",
        y: "part",
    };
    let line = |name: &str, points: &[(f64, f64)]| Line {
        name: name.into(),
        points: points.to_vec(),
    };
    let text = svg(
        titles,
        &[
            line("one", &[(70.0, 70.0), (130.0, 95.3)]),
            line("two", &[(70.0, 69.2)]),
        ],
    );
    assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    assert_eq!(text.matches("<polyline").count(), 2);
    for part in [
        ">a &lt; b<",
        ">load<",
        ">part<",
        ">one<",
        ">two<",
        ">130<",
        ">95<",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(svg(titles, &[]).ends_with("</svg>\n"));
    let flat = svg(titles, &[line("flat", &[(1.0, 5.0), (2.0, 5.0)])]);
    assert!(!flat.contains("NaN"), "{flat}");
}
