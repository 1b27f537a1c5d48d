//! `gpuos sim`: a trace replayed against placement policies. Each protocol is a module of its
//! own that answers a [`Report`].

mod gangs;
mod lifetimes;
mod mig;
mod openb;
mod replay;

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_sim::policy::{Contender, Name};
use gpuos_sim::trace::{self, Job, Nodes};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::{Cli, Protocol, SimArgs};
use crate::reply::Reply;
use crate::table::count;

/// The node list that is taken when none is named, beside the trace.
const NODE_LIST: &str = "openb_node_list_gpu_node.csv";

/// What a protocol brings back.
struct Report {
    /// The table for people, and what its figures mean.
    text: String,
    /// Fields of the answer's JSON.
    json: Value,
    csv: String,
    /// Where the protocol has a plot.
    svg: Option<String>,
}

/// What a protocol is given.
struct Input<'a> {
    args: &'a SimArgs,
    /// Name of the trace, without folder and endings.
    name: String,
    nodes: Nodes,
    jobs: Vec<Job>,
    bar: ProgressBar,
}

impl Input<'_> {
    /// The policy, with what it decides on.
    fn contender(&self, policy: Name) -> Contender {
        Contender {
            policy,
            gpu_jobs_only: self.args.whole_gpus,
        }
    }
}

pub fn run(args: &SimArgs) -> Result<Reply> {
    // Known before the work, not after it.
    for file in [&args.csv, &args.svg].into_iter().flatten() {
        let folder = file
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!(
                "cannot write {}: there is no folder {}",
                file.display(),
                folder.display()
            );
        }
    }
    if args.protocol == Protocol::Lifetimes && args.svg.is_some() {
        let problem = "--svg plots allocation against arrived load: --protocol lifetimes has no \
                       such curve; use --csv";
        return Err(Cli::command()
            .error(ErrorKind::ArgumentConflict, problem)
            .into());
    }
    if args.protocol == Protocol::Mig {
        return mig::run(args);
    }
    if let Some(option) = args.mig.first_given() {
        let problem = format!("{option} goes with --protocol mig");
        return Err(Cli::command()
            .error(ErrorKind::ArgumentConflict, problem)
            .into());
    }
    if args.protocol == Protocol::Gangs {
        return gangs::run(args);
    }
    if let Some(option) = args.gangs.first_given() {
        let problem = format!("{option} goes with --protocol gangs");
        return Err(Cli::command()
            .error(ErrorKind::ArgumentConflict, problem)
            .into());
    }
    if args.protocol == Protocol::Replay {
        return replay::run(args);
    }
    // Before its node list, which is looked for beside it.
    let trace = args.trace();
    std::fs::File::open(trace).with_context(|| format!("cannot read {}", trace.display()))?;
    let nodes_file = match &args.nodes {
        Some(file) => file.clone(),
        None => beside(trace).with_context(|| {
            let place = trace.with_file_name(NODE_LIST);
            format!(
                "there is no node list {}: put it beside the trace, or name one with --nodes; Philly's jobs need \
                 --protocol gangs",
                place.display()
            )
        })?,
    };
    let nodes = read(&nodes_file, trace::nodes)?;
    let mut jobs = read(args.trace(), |text| trace::jobs(text, &nodes))?;
    if args.whole_gpus {
        trace::whole(&mut jobs);
    }
    let name = args.trace().file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let input = Input {
        args,
        name: name.split('.').next().unwrap_or_default().to_string(),
        bar: bar(),
        nodes,
        jobs,
    };
    let report = match args.protocol {
        Protocol::Openb => openb::run(&input)?,
        Protocol::Lifetimes => lifetimes::run(&input)?,
        // Answered above: they have no node list.
        Protocol::Gangs => return gangs::run(args),
        Protocol::Replay => return replay::run(args),
        Protocol::Mig => return mig::run(args),
    };
    input.bar.finish_and_clear();
    let text = format!(
        "{}: {} on {} with {} GPUs, {}\n{}",
        input.name,
        count(input.jobs.len(), "job"),
        count(input.nodes.nodes.len(), "node"),
        input.nodes.milli() / 1000,
        count(args.seeds.iter().count(), "seed"),
        report.text
    );
    write(args, &report.csv, report.svg.as_ref())?;
    let mut json = json!({
        "trace": input.name,
        "protocol": args.protocol.name(),
        "jobs": input.jobs.len(),
        "nodes": input.nodes.nodes.len(),
        "gpus": input.nodes.milli() / 1000,
    });
    if let (Value::Object(all), Value::Object(more)) = (&mut json, report.json) {
        all.extend(more);
    }
    Ok(Reply {
        schema: "gpuos.sim/1",
        json,
        text,
        yes: true,
    })
}

/// Writes the files that were asked for.
fn write(args: &SimArgs, csv: &String, svg: Option<&String>) -> Result<()> {
    for (file, content) in [(&args.csv, Some(csv)), (&args.svg, svg)] {
        if let (Some(file), Some(content)) = (file, content) {
            std::fs::write(file, content)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// The node list beside a trace, gzipped or not, if there is one.
fn beside(trace: &Path) -> Option<PathBuf> {
    let plain = trace.with_file_name(NODE_LIST);
    let packed = trace.with_file_name(format!("{NODE_LIST}.gz"));
    [plain, packed].into_iter().find(|file| file.exists())
}

/// Reads and parses a file; gzip is recognised by its first bytes.
fn read<T, E: std::fmt::Display>(path: &Path, parse: impl Fn(&str) -> Result<T, E>) -> Result<T> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&bytes[..])
            .read_to_end(&mut plain)
            .with_context(|| format!("cannot unpack {name}"))?;
        plain
    } else {
        bytes
    };
    let text = String::from_utf8(bytes).map_err(|e| {
        let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = good.iter().filter(|&&byte| byte == b'\n').count() + 1;
        anyhow!("{name}, line {line}: not UTF-8 text")
    })?;
    parse(&text).map_err(|e| anyhow!("{name}, {e}"))
}

/// A progress bar on standard error; nothing where that is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:24} [{bar:40}] {percent:>3} %  {eta} left");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Does so many runs under a bar; `work` tells when it begins one, and what it is.
fn with_bar<T>(runs: usize, work: impl FnOnce(&mut dyn FnMut(String)) -> T) -> T {
    let bar = bar();
    bar.set_length(runs as u64);
    let mut begun = 0;
    let done = work(&mut |what| {
        bar.set_position(begun);
        bar.set_message(what);
        begun += 1;
    });
    bar.finish_and_clear();
    done
}

/// `95.391`.
fn percent(ppm: f64) -> String {
    format!("{:.3}", ppm / 1e4)
}
