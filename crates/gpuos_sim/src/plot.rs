//! A plot of lines, as SVG.

use std::fmt::Write;

/// One line of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by ascending x.
    pub points: Vec<(f64, f64)>,
}

/// Title and names of the axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Titles<'a> {
    /// Above the plot.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// Beside it.
    pub y: &'a str,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Colours that people with colour blindness can tell apart (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#000000",
];

/// Draws the lines. The axes go from and to whole steps around all points.
pub fn svg(titles: Titles<'_>, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let xs = Axis::over(points().map(|p| p.0), WIDTH - LEFT - RIGHT);
    let ys = Axis::over(points().map(|p| p.1), HEIGHT - TOP - BOTTOM);
    let x = |value: f64| LEFT + xs.along(value);
    let y = |value: f64| HEIGHT - BOTTOM - ys.along(value);
    let (left, right) = (LEFT, WIDTH - RIGHT);
    let (top, bottom) = (TOP, HEIGHT - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(titles.title)
    );
    for tick in xs.ticks() {
        let at = x(tick);
        let _ = write!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\n\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>\n",
            bottom + 18.0
        );
    }
    for tick in ys.ticks() {
        let at = y(tick);
        let _ = write!(
            out,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>\n",
            left - 6.0,
            at + 4.0
        );
    }
    let (middle, centre) = ((left + right) / 2.0, (top + bottom) / 2.0);
    let _ = write!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(16 {centre}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        HEIGHT - 12.0,
        escaped(titles.x),
        escaped(titles.y)
    );
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = line
            .points
            .iter()
            .map(|&(px, py)| format!("{:.1},{:.1}", x(px), y(py)))
            .collect();
        let row = top + 12.0 + 18.0 * index as f64;
        let _ = write!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" points=\"{}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{row}\" x2=\"{:.1}\" y2=\"{row}\" stroke=\"{colour}\" \
             stroke-width=\"3\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            path.join(" "),
            right + 12.0,
            right + 34.0,
            right + 40.0,
            row + 4.0,
            escaped(&line.name)
        );
    }
    out + "</svg>\n"
}

/// An axis from `low` to `high`, both a multiple of `step`, drawn `length` long.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
    length: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, length: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        // The largest of 1, 2, 5 times a power of ten that makes at least five steps.
        let span = (high - low).max(1e-9);
        let power = 10f64.powf((span / 5.0).log10().floor());
        let fine = [5.0, 2.0].map(|factor| factor * power);
        let step = fine.into_iter().find(|s| span / s >= 5.0).unwrap_or(power);
        Axis {
            low: (low / step).floor() * step,
            high: (high / step).ceil().max((low / step).floor() + 1.0) * step,
            step,
            length,
        }
    }

    fn along(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low) * self.length
    }

    /// The marks, rounded to what is worth printing.
    fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        let tick = |n: usize| self.low + n as f64 * self.step;
        (0..=count).map(|n| (tick(n) * 1e6).round() / 1e6).collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
