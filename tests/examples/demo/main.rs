//! `make demo`: the same jobs in a stock Slurm cluster and in one with gpuos, side by side.
//!
//! Both run on this machine, of the same release, on the same invented nodes: real munged,
//! slurmctld, slurmd and sbatch, device files as GPUs. First with the Slurm that is installed,
//! then with the one of Debian 13, where debootstrap can fetch it.

mod side;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use gpuos_lab::Suite;
use gpuos_model::cluster::NodeType;
use gpuos_model::node_types;

use side::{Job, LEAF, NODES, Side, leaves, links, place};

/// Column widths of the table.
const REQUEST: usize = 36;
const COLUMN: usize = 34;
/// Width of the sentences under it.
const WIDTH: usize = 94;

fn main() -> ExitCode {
    let mut suites = Vec::new();
    for name in std::env::args().skip(1) {
        match name.parse::<Suite>() {
            Ok(suite) => suites.push(suite),
            Err(e) => {
                eprintln!("demo: {e}");
                return ExitCode::from(2);
            }
        }
    }
    if suites.is_empty() {
        suites = vec![Suite::Native, Suite::Debian("trixie".into())];
    }
    let begin = Instant::now();
    for suite in &suites {
        if let Err(e) = compare(suite) {
            eprintln!("demo: {e:#}");
            return ExitCode::from(1);
        }
    }
    println!(
        "\nAll clusters have ended; {} s. What next: docs/admin/install.md.",
        begin.elapsed().as_secs()
    );
    ExitCode::SUCCESS
}

fn progress(text: &str) {
    eprintln!("  ... {text}");
}

/// The two clusters of a release.
struct Pair {
    stock: Side,
    gpuos: Side,
    node_type: NodeType,
}

fn compare(suite: &Suite) -> Result<()> {
    let name = match suite {
        Suite::Native => "the Slurm of this machine".to_string(),
        other => format!("the Slurm of {other}"),
    };
    println!("\n=== {name} ===");
    progress(&format!(
        "starting two clusters of {NODES} nodes; a suite that is not there yet is fetched first"
    ));
    let up = Side::up(suite, false).and_then(|stock| Ok((stock, Side::up(suite, true)?)));
    let (stock, gpuos) = match up {
        Ok(sides) => sides,
        Err(e) if e.is_environment() && *suite != Suite::Native => {
            println!("skipped: {e}");
            return Ok(());
        }
        Err(e) => return Err(e.into()),
    };
    let pair = Pair {
        stock,
        gpuos,
        node_type: node_types::by_name("pairs-8").context("node type pairs-8")?,
    };
    println!(
        "Slurm {}, twice: {NODES} nodes of type {} ({} GPUs in NVLink pairs 0-1 2-3 4-5 6-7, {} sockets),\n\
         leaf switches leaf1 = n1-n{LEAF} and leaf2 = n{}-n{NODES}. slurm.conf is the same but for gpuos's lines.\n\
         The leaf switches stand in gpuos.toml alone: stock Slurm would need topology.conf to know of them.",
        pair.gpuos.version(),
        pair.node_type.name,
        pair.node_type.gpus,
        pair.node_type.sockets,
        LEAF + 1,
    );
    match pair.gpuos.passes_through() {
        Some(line) => println!("skipped: gpuos does not steer this release: {line}"),
        None => pair.scenes()?,
    }
    pair.stock.down()?;
    pair.gpuos.down()
}

/// One line of the table.
fn row(request: &str, stock: &str, gpuos: &str) {
    println!("  {request:REQUEST$}  {stock:COLUMN$}  {gpuos}");
}

/// A paragraph under a line of the table. A row of columns stays as it is.
fn paragraph(text: &str) {
    let indented = |line: &str| println!("{}", format!("      {line}").trim_end());
    if text.trim().contains("  ") {
        return indented(text);
    }
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.len() + word.len() > WIDTH {
            indented(&line);
            line.clear();
        }
        line += word;
        line.push(' ');
    }
    indented(&line);
}

impl Pair {
    fn scenes(&self) -> Result<()> {
        println!("\n$ gpuos topo n1        (its legend is left out here)");
        let topo = self.gpuos.gpuos(&["topo", "n1"])?;
        for line in topo.lines().take_while(|line| !line.starts_with("Legend")) {
            println!("{line}");
        }
        row("request", self.stock.title, self.gpuos.title);
        row(
            &"-".repeat(REQUEST),
            &"-".repeat(COLUMN),
            &"-".repeat(COLUMN),
        );
        println!("  Each alone on n1, by -w n1, which is left out here:");
        self.linked(&["--gres=gpu:2"])?;
        self.linked(&["-N1", "--gpus-per-node=4"])?;
        // 36 cores: more than a socket has.
        self.linked(&["-N1", "-n4", "-c9", "--gpus-per-task=1"])?;
        self.unbroken()?;
        self.gang()?;
        self.waiting()
    }

    /// The same job on an empty node of each.
    fn linked(&self, options: &[&str]) -> Result<()> {
        let options = [options, &["-w", "n1"]].concat();
        let stock = self.stock.start(&options)?;
        let gpuos = self.gpuos.start(&options)?;
        let request = options[..options.len() - 2].join(" ");
        let request = format!("sbatch {request}");
        self.show_links(&request, stock, gpuos)?;
        self.why(gpuos)?;
        self.stock.end(&[stock])?;
        self.gpuos.end(&[gpuos])
    }

    fn show_links(&self, request: &str, stock: Job, gpuos: Job) -> Result<()> {
        let (stock, gpuos) = (self.stock.gpus(stock)?, self.gpuos.gpus(gpuos)?);
        row(request, &place(&stock), &place(&gpuos));
        let among = |gpus: &gpuos_tests::show::Gpus| {
            let set = gpus.values().next().cloned().unwrap_or_default();
            links(&self.node_type, &set)
        };
        row("  links among them", &among(&stock), &among(&gpuos));
        Ok(())
    }

    /// GPUs 0, 1 and 3 of a node are free. A job of one GPU comes, then one of two.
    fn unbroken(&self) -> Result<()> {
        println!();
        progress("filling n1, but for GPUs 0, 1 and 3");
        let kept_stock = self.stock.leave_free("n1", &[0, 1, 3])?;
        let kept_gpuos = self.gpuos.leave_free("n1", &[0, 1, 3])?;
        println!(
            "  On n1 only GPUs 0, 1 and 3 are free; a job of one GPU comes, then one of two, both with -w n1:"
        );
        let one = ["--gres=gpu:1", "-w", "n1"];
        let (stock, gpuos) = (self.stock.start(&one)?, self.gpuos.start(&one)?);
        row(
            "sbatch --gres=gpu:1",
            &place(&self.stock.gpus(stock)?),
            &place(&self.gpuos.gpus(gpuos)?),
        );
        self.why(gpuos)?;
        let two = ["--gres=gpu:2", "-w", "n1"];
        let (next_stock, next_gpuos) = (self.stock.start(&two)?, self.gpuos.start(&two)?);
        self.show_links("sbatch --gres=gpu:2", next_stock, next_gpuos)?;
        self.stock
            .end(&[kept_stock, vec![stock, next_stock]].concat())?;
        self.gpuos
            .end(&[kept_gpuos, vec![gpuos, next_gpuos]].concat())
    }

    /// A gang of eight nodes; n3 is busy, so leaf1 has no room for it.
    fn gang(&self) -> Result<()> {
        println!("\n  A 1-GPU job runs on n3. Eight whole nodes are asked for:");
        let busy = ["--gres=gpu:1", "-w", "n3"];
        let busy = (self.stock.start(&busy)?, self.gpuos.start(&busy)?);
        let gang = ["-N8", "--gpus-per-node=8"];
        let (stock, gpuos) = (self.stock.start(&gang)?, self.gpuos.start(&gang)?);
        let placed = (self.stock.gpus(stock)?, self.gpuos.gpus(gpuos)?);
        row(
            "sbatch -N8 --gpus-per-node=8",
            &place(&placed.0),
            &place(&placed.1),
        );
        row("  leaf switches", &leaves(&placed.0), &leaves(&placed.1));
        self.why(gpuos)?;
        self.stock.end(&[busy.0, stock])?;
        self.gpuos.end(&[busy.1, gpuos])
    }

    /// Neither leaf has eight free nodes: `required` waits, the default does not.
    fn waiting(&self) -> Result<()> {
        println!("\n  1-GPU jobs run on n3 and n12, so no leaf has eight free nodes:");
        let one = |side: &Side, node| side.start(&["--gres=gpu:1", "-w", node]);
        let stock_busy = [one(&self.stock, "n3")?, one(&self.stock, "n12")?];
        let gpuos_busy = [one(&self.gpuos, "n3")?, one(&self.gpuos, "n12")?];
        let gang = ["-N8", "--gpus-per-node=8"];
        let with = |wish| [&gang[..], &[wish]].concat();
        let stock = self.stock.start(&gang)?;
        let waits = self.gpuos.submit(&with("--gpuos-topology=leaf:required"))?;
        let (state, reason) = self.gpuos.reason(waits)?;
        row(
            "sbatch -N8 --gpus-per-node=8",
            &leaves(&self.stock.gpus(stock)?),
            "(see the next lines)",
        );
        row(
            "  --gpuos-topology=leaf:required",
            "(no such option)",
            &state,
        );
        println!("      $ squeue -j {} -o %r", waits.0);
        paragraph(&reason);
        println!("      $ gpuos why {}", waits.0);
        let why = self.gpuos.why_waiting(waits)?;
        // The first paragraph says what squeue said.
        for line in why.lines().skip_while(|line| !line.is_empty()).skip(1) {
            if !line.starts_with("Reason in Slurm") {
                paragraph(line);
            }
        }
        let runs = self.gpuos.start(&with("--gpuos-topology=leaf"))?;
        let placed = self.gpuos.gpus(runs)?;
        row(
            "  --gpuos-topology=leaf",
            "(no such option)",
            &leaves(&placed),
        );
        self.why(runs)?;
        self.gpuos.end(&[runs, gpuos_busy[1]])?;
        self.gpuos.running(waits)?;
        println!("  The preferred gang and the job on n12 end:");
        let placed = self.gpuos.gpus(waits)?;
        row("  the one that waited", "", &leaves(&placed));
        self.stock.end(&[&stock_busy[..], &[stock]].concat())?;
        self.gpuos.end(&[gpuos_busy[0], waits])
    }

    /// Why gpuos put a job where it is: the first sentences of `gpuos why`.
    fn why(&self, job: Job) -> Result<()> {
        let text = self.gpuos.gpuos(&["why", &job.0.to_string()])?;
        paragraph(text.lines().next().unwrap_or_default());
        Ok(())
    }
}
