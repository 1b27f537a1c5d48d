//! The tables in docs/results that are made of the CSV files beside them. `make results` writes both.

#[path = "../../reference/parts.rs"]
mod parts;

/// A CSV file of docs/results.
struct Csv {
    names: csv::StringRecord,
    lines: Vec<csv::StringRecord>,
}

/// One line of it.
#[derive(Clone, Copy)]
struct Line<'a>(&'a Csv, &'a csv::StringRecord);

impl Csv {
    /// A file `docs/NAME`.
    fn read(name: &str) -> Csv {
        let path = parts::page::docs(name);
        let shown = path.display();
        let mut reader = csv::Reader::from_path(&path).unwrap_or_else(|e| panic!("{shown}: {e}"));
        let names = reader.headers().cloned();
        let lines = reader.records().collect::<Result<Vec<_>, _>>();
        Csv {
            names: names.unwrap_or_else(|e| panic!("{shown}: {e}")),
            lines: lines.unwrap_or_else(|e| panic!("{shown}: {e}")),
        }
    }

    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|line| Line(self, line))
    }
}

impl<'a> Line<'a> {
    fn get(self, name: &str) -> &'a str {
        let at = self.0.names.iter().position(|own| own == name);
        &self.1[at.unwrap_or_else(|| panic!("no column {name}"))]
    }

    fn all(self, names: &[&str]) -> Vec<&'a str> {
        names.iter().map(|name| self.get(name)).collect()
    }
}

/// Each of some words once, in their order.
fn once<'a, T: PartialEq>(all: impl Iterator<Item = T> + 'a) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// `26702` as `26,702`; what has a point stays.
fn grouped(number: &str) -> String {
    if number.contains('.') || number.len() < 4 {
        return number.into();
    }
    let of = |(at, c): (usize, char)| {
        let comma = at > 0 && (number.len() - at).is_multiple_of(3);
        comma.then_some(',').into_iter().chain([c])
    };
    number.chars().enumerate().flat_map(of).collect()
}

/// A table with the first columns as words, and so many numbers; between empty lines, where markers need none.
fn table(head: &[String], words: usize, rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | ").trim_start());
    let mut rule = vec!["---".to_string(); words];
    rule.resize(head.len(), "---:".into());
    let rows = rows.iter().map(|row| {
        assert_eq!(row.len(), head.len(), "{row:?}");
        line(row)
    });
    format!(
        "\n\n{}{}{}\n",
        line(head),
        line(&rule),
        rows.collect::<String>()
    )
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_string()).collect()
}

/// The day of measurement, or the first and the last.
fn days<'a>(lines: impl Iterator<Item = Line<'a>>) -> String {
    let mut days: Vec<&str> = lines.map(|line| line.get("date")).collect();
    days.sort_unstable();
    days.dedup();
    match days[..] {
        [first, .., last] => format!("{first} to {last}"),
        _ => days.concat(),
    }
}

/// `64 nodes x 8 GPUs` as `64 x 8 GPUs`.
fn short(job: &str) -> String {
    job.replace(" nodes x", " x").replace(" node x", " x")
}

fn load(load: &str) -> &str {
    if load == "idle" { load } else { "full" }
}

fn call(call: &str) -> &str {
    match call {
        "WILL_RUN" => "forecast",
        call if call.ends_with("no room") => "refusal",
        _ => "start",
    }
}

/// Of each kind of cell a row, with three columns for each release.
fn job_tests(csv: &Csv, nodes: &str) -> String {
    let lines: Vec<_> = csv.lines().filter(|l| l.get("nodes") == nodes).collect();
    let releases = once(lines.iter().map(|line| line.get("slurm")));
    let cells = ["job", "load", "call"];
    let mut head = words(&cells);
    for release in &releases {
        head.extend([
            format!("{release}: stock"),
            "gpuos".into(),
            "times faster".into(),
        ]);
    }
    let row = |cell: Vec<&str>| {
        let mut row = vec![short(cell[0]), load(cell[1]).into(), call(cell[2]).into()];
        for release in &releases {
            let mut own = lines.iter().filter(|line| line.get("slurm") == *release);
            row.extend(match own.find(|line| line.all(&cells) == cell) {
                Some(line) => {
                    let faster = line.get("times_faster");
                    let faster = match line.get("reached") {
                        "yes" => faster.to_string(),
                        _ => format!("**{faster}**"),
                    };
                    let us = |name| grouped(line.get(name));
                    [us("stock_median_us"), us("gpuos_median_us"), faster]
                }
                None => ["-"; 3].map(String::from),
            });
        }
        row
    };
    let kinds = once(lines.iter().map(|line| line.all(&cells)));
    table(&head, 3, &kinds.into_iter().map(row).collect::<Vec<_>>())
}

/// What a job's start and end cost besides, stock/gpuos.
fn starts_and_ends(csv: &Csv) -> String {
    let lines: Vec<_> = csv
        .lines()
        .filter(|l| !l.get("stock_start_us").is_empty())
        .collect();
    let releases = once(lines.iter().map(|line| line.get("slurm")));
    let cells = ["nodes", "job", "load"];
    let mut head = words(&cells);
    for release in &releases {
        head.extend([format!("{release}: start"), "end".into()]);
    }
    let row = |cell: Vec<&str>| {
        let mut row = vec![grouped(cell[0]), short(cell[1]), load(cell[2]).into()];
        for release in &releases {
            let mut own = lines.iter().filter(|line| line.get("slurm") == *release);
            row.extend(match own.find(|line| line.all(&cells) == cell) {
                Some(line) => ["start", "end"].map(|what| {
                    let us = |who| grouped(line.get(&format!("{who}_{what}_us")));
                    format!("{}/{}", us("stock"), us("gpuos"))
                }),
                None => ["-"; 2].map(String::from),
            });
        }
        row
    };
    let kinds = once(lines.iter().map(|line| line.all(&cells)));
    table(&head, 3, &kinds.into_iter().map(row).collect::<Vec<_>>())
}

/// Microseconds as milliseconds of three digits or so.
fn ms(us: f64) -> String {
    let ms = us / 1000.0;
    if ms >= 10.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.2}")
    }
}

/// Of each release a table of the calls that start jobs.
fn huge(csv: &Csv) -> String {
    let releases = once(csv.lines().map(|line| line.get("slurm")));
    let of = |release: &str| {
        let head = words(&[
            &format!("Slurm {release}"),
            "load",
            "candidates",
            "stock",
            "gpuos (95th percentile)",
            "of it in cons_tres",
            "gpuos's own",
            "times faster",
        ]);
        let own = csv.lines().filter(|line| line.get("slurm") == release);
        let starts = own.filter(|line| line.get("call").ends_with("starts"));
        let row = |line: Line<'_>| {
            let us = |name| line.get(name).parse::<f64>().expect("a number");
            let (gpuos, inner) = (us("gpuos_median_us"), us("in_cons_tres_median_us"));
            vec![
                line.get("job").to_string(),
                line.get("load").to_string(),
                grouped(line.get("candidates")),
                ms(us("stock_median_us")),
                format!("{} ({})", ms(gpuos), ms(us("gpuos_p95_us"))),
                ms(inner),
                ms(gpuos - inner),
                line.get("times_faster").to_string(),
            ]
        };
        table(&head, 2, &starts.map(row).collect::<Vec<_>>())
    };
    let tables: Vec<String> = releases.into_iter().map(of).collect();
    // One empty line between two of them.
    tables.concat().replace("\n\n\n", "\n\n")
}

/// What the page calls a figure of the replay; the others have the name that the CSV has.
const FIGURES: [(&str, &str); 7] = [
    (
        "mean wait of jobs on several nodes, s",
        "mean wait, several nodes, s",
    ),
    (
        "mean wait of jobs with several GPUs of one node, s",
        "mean wait, several GPUs of one node, s",
    ),
    ("mean wait of jobs with one GPU, s", "mean wait, one GPU, s"),
    (
        "ring bandwidth of both, by GPU time, GB/s",
        "both, by GPU time, GB/s",
    ),
    ("leaves that a job on several nodes lies in", "leaf span"),
    (
        "processor time, job tests that are to start a job, ms",
        "processor time, job tests to start a job, ms",
    ),
    (
        "processor time of all job tests, ms",
        "processor time, all job tests, ms",
    ),
];

/// The lines of the replays that are as the first one.
fn as_first(csv: &Csv) -> Vec<Line<'_>> {
    let cells = ["jobs", "submitted_in_s", "load", "nodes", "leaf"];
    let first = csv.lines().next().expect("a line").all(&cells);
    csv.lines()
        .filter(|line| line.all(&cells) == first)
        .collect()
}

/// Of each figure a row, stock/gpuos.
fn replay(lines: &[Line<'_>]) -> String {
    let releases = once(lines.iter().map(|line| line.get("slurm")));
    let mut head = vec![String::new()];
    head.extend(releases.iter().map(|release| (*release).to_string()));
    let row = |figure: &str| {
        let named = FIGURES.iter().find(|(name, _)| *name == figure);
        let mut row = vec![named.map_or(figure, |(_, short)| short).to_string()];
        row.extend(releases.iter().map(|release| {
            let mut own = lines.iter().filter(|line| line.get("slurm") == *release);
            let line = own.find(|line| line.get("figure") == figure);
            let both =
                |l: &Line<'_>| format!("{}/{}", grouped(l.get("stock")), grouped(l.get("gpuos")));
            line.map_or("-".into(), both)
        }));
        row
    };
    let figures = once(lines.iter().map(|line| line.get("figure")));
    table(&head, 1, &figures.into_iter().map(row).collect::<Vec<_>>())
}

/// Decisions of the planner by the size of the cluster, p50/p99.
fn speed(csv: &Csv) -> String {
    let requests = once(csv.lines().map(|line| line.get("request")));
    let mut head = vec!["GPUs, p50/p99".to_string()];
    head.extend(words(&requests));
    let row = |gpus: &str| {
        let mut row = vec![grouped(gpus)];
        row.extend(requests.iter().map(|request| {
            let is = |line: &Line<'_>| line.get("gpus") == gpus && line.get("request") == *request;
            let both = |l: Line<'_>| format!("{}/{}", l.get("p50_us"), l.get("p99_us"));
            csv.lines().find(is).map_or("-".into(), both)
        }));
        row
    };
    let sizes = once(csv.lines().map(|line| line.get("gpus")));
    table(&head, 1, &sizes.into_iter().map(row).collect::<Vec<_>>())
}

/// Of each cluster a row: how many times as long the newer build takes.
fn older(csv: &Csv) -> String {
    let head = words(&[
        "Slurm",
        "nodes",
        "starts",
        "cells",
        "times, geometric mean",
        "cells above 1.05",
        "open",
        "cells below 0.95",
    ]);
    let cells = ["slurm", "nodes"];
    let row = |cluster: Vec<&str>| {
        let own: Vec<_> = csv.lines().filter(|l| l.all(&cells) == cluster).collect();
        let number = |line: &Line<'_>, name| line.get(name).parse::<f64>().expect("a number");
        let logs: f64 = own.iter().map(|line| number(line, "times").ln()).sum();
        let count = |wanted: &dyn Fn(f64, f64) -> bool| {
            let with = own
                .iter()
                .filter(|line| wanted(number(line, "times_low"), number(line, "times_high")));
            with.count().to_string()
        };
        vec![
            cluster[0].to_string(),
            grouped(cluster[1]),
            own[0].get("starts").to_string(),
            own.len().to_string(),
            format!("{:.2}", (logs / own.len() as f64).exp()),
            count(&|low, _| low > 1.05),
            count(&|low, high| low <= 1.05 && high > 1.05),
            count(&|_, high| high < 0.95),
        ]
    };
    let clusters = once(csv.lines().map(|line| line.all(&cells)));
    table(&head, 1, &clusters.into_iter().map(row).collect::<Vec<_>>())
}

/// Of each part of the virtual machines' tests a row, of each machine a column.
fn machines(csv: &Csv) -> String {
    let cells = ["slurm", "architecture"];
    let all = once(csv.lines().map(|line| line.all(&cells)));
    let mut head = words(&["part", "is about"]);
    head.extend(all.iter().map(|of| format!("{}, {}", of[0], of[1])));
    let row = |part: &str| {
        let lines = csv.lines().filter(|line| line.get("part") == part);
        let lines: Vec<_> = lines.collect();
        let mut row = vec![format!("`{part}`"), lines[0].get("about").to_string()];
        row.extend(all.iter().map(|of| {
            let own = lines.iter().find(|line| line.all(&cells) == *of);
            own.map_or("-".into(), |line| held(*line))
        }));
        row
    };
    let parts = once(csv.lines().map(|line| line.get("part")));
    table(&head, 2, &parts.into_iter().map(row).collect::<Vec<_>>())
}

/// How many checks of a part held, and which day that was seen.
fn held(line: Line<'_>) -> String {
    let [held, failed, skipped] = ["held", "failed", "skipped"].map(|name| line.get(name));
    let mut text = match failed {
        "0" => format!("{held} held"),
        _ => format!("**{failed} did not hold**, {held} held"),
    };
    if skipped != "0" {
        text += &format!(", {skipped} skipped");
    }
    format!("{text} ({})", line.get("date"))
}

/// What each machine consists of.
fn systems(csv: &Csv) -> String {
    let cells = [
        "slurm",
        "architecture",
        "suite",
        "groups",
        "systemd",
        "linux",
    ];
    let head = words(&[
        "Slurm",
        "architecture",
        "Debian",
        "control groups",
        "systemd",
        "Linux",
    ]);
    let row = |of: Vec<&str>| words(&of);
    let all = once(csv.lines().map(|line| line.all(&cells)));
    table(&head, 6, &all.into_iter().map(row).collect::<Vec<_>>())
}

fn hold(page: &str, all: Vec<(&str, String)>) {
    let all: Vec<_> = all
        .into_iter()
        .map(|(name, text)| (name.to_string(), text))
        .collect();
    parts::hold(&format!("results/{page}"), &all, "make results");
}

#[test]
fn job_tests_are_what_their_csv_says() {
    let csv = Csv::read("results/benchmarks.csv");
    let parts = vec![
        ("day", days(csv.lines())),
        ("1,250 nodes", job_tests(&csv, "1250")),
        ("4 nodes", job_tests(&csv, "4")),
        ("starts and ends", starts_and_ends(&csv)),
    ];
    hold("benchmarks.md", parts);
}

#[test]
fn those_of_12_500_nodes_are_what_their_csv_says() {
    let csv = Csv::read("results/benchmarks-huge.csv");
    hold(
        "benchmarks-huge.md",
        vec![("day", days(csv.lines())), ("12,500 nodes", huge(&csv))],
    );
}

#[test]
fn the_replay_is_what_its_csv_says() {
    let csv = Csv::read("results/benchmarks-replay.csv");
    let lines = as_first(&csv);
    let parts = vec![
        ("day", days(lines.iter().copied())),
        ("replay", replay(&lines)),
    ];
    hold("benchmarks-replay.md", parts);
}

#[test]
fn two_builds_are_what_their_csv_says() {
    let csv = Csv::read("results/benchmarks-older.csv");
    let parts = vec![("day", days(csv.lines())), ("builds", older(&csv))];
    hold("benchmarks-tried.md", parts);
}

#[test]
fn the_planners_times_are_what_their_csv_says() {
    let csv = Csv::read("results/placement-speed.csv");
    hold(
        "placement-speed.md",
        vec![("day", days(csv.lines())), ("sizes", speed(&csv))],
    );
}

#[test]
fn the_machines_are_what_their_csv_says() {
    let csv = Csv::read("reference/machines.csv");
    let made = vec![
        ("machines".to_string(), systems(&csv)),
        ("parts".to_string(), machines(&csv)),
    ];
    parts::hold("reference/machines.md", &made, "make vm-table");
}

#[test]
fn large_numbers_are_grouped() {
    for (number, shown) in [
        ("999", "999"),
        ("1250", "1,250"),
        ("1234567", "1,234,567"),
        ("76.4", "76.4"),
    ] {
        assert_eq!(grouped(number), shown);
    }
}
