//! `gpuos mem`: a trace of GPU memory under each policy (`sim`), and what a node lends (`show`).

mod show;

use anyhow::{Context, Result, anyhow, bail};
use gpuos_host::Machine;
use gpuos_memory::bound;
use gpuos_memory::patterns::{PATTERNS, Pattern};
use gpuos_memory::policy::{NAMES, named};
use gpuos_memory::replay::replay;
use gpuos_memory::trace::Trace;
use serde_json::{Value, json};

use crate::cli::{MemArgs, MemCommand, MemSimArgs, Room};
use crate::reply::Reply;
use crate::table::{Table, count};

const SCHEMA: &str = "gpuos.mem-sim/1";
/// Bytes of a trace's file; a longer one is refused before it fills the memory.
const MOST_BYTES: u64 = 1 << 30;

/// Answers `gpuos mem`.
///
/// # Errors
/// A trace that cannot be read, or too little GPU memory; no gpuosd.
pub fn run(machine: &dyn Machine, args: &MemArgs) -> Result<Reply> {
    match &args.command {
        MemCommand::Show(args) => show::run(machine, args),
        MemCommand::Sim(args) => sim(args),
    }
}

/// A trace with its name, and a line about it if it is a pattern.
struct Named {
    name: String,
    about: Option<&'static str>,
    trace: Trace,
}

fn of_pattern(pattern: &Pattern, seed: u64) -> Named {
    Named {
        name: pattern.name.into(),
        about: Some(pattern.about),
        trace: pattern.trace(seed),
    }
}

fn of_file(file: &str) -> Result<Named> {
    let names = PATTERNS.map(|pattern| pattern.name).join(", ");
    let size = std::fs::metadata(file).with_context(|| {
        format!("cannot read the trace {file}, and no pattern has this name; patterns are {names}")
    })?;
    if size.len() > MOST_BYTES {
        bail!("the trace {file} has more than 1 GiB; cut it to a shorter part of the program");
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let trace = Trace::read(&text).map_err(|why| anyhow!("{file}, {why}"))?;
    Ok(Named {
        name: file.into(),
        about: None,
        trace,
    })
}

/// The trace of a file, or of a pattern.
///
/// # Errors
/// There is neither, or the file has none.
pub fn trace_named(name: &str) -> Result<Trace> {
    match Pattern::named(name) {
        Some(pattern) => Ok(pattern.trace(1)),
        None => of_file(name).map(|named| named.trace),
    }
}

fn sim(args: &MemSimArgs) -> Result<Reply> {
    let traces = match &args.trace {
        None => PATTERNS
            .iter()
            .map(|it| of_pattern(it, args.seed))
            .collect(),
        Some(name) => match Pattern::named(name) {
            Some(pattern) => vec![of_pattern(pattern, args.seed)],
            None => vec![of_file(name)?],
        },
    };
    if args.print {
        let text: String = traces.iter().map(|named| named.trace.to_string()).collect();
        return Ok(Reply {
            schema: "gpuos.mem-trace/1",
            json: json!({ "trace": text }),
            text,
            yes: true,
        });
    }
    let policies: Vec<&str> = match args.policy.is_empty() {
        true => NAMES.to_vec(),
        false => args.policy.iter().map(String::as_str).collect(),
    };
    let mut text = String::new();
    let mut answers = Vec::new();
    for named in &traces {
        let (table, answer) = one(named, args.hbm, &policies)?;
        if !text.is_empty() {
            text.push('\n');
        }
        text += &table;
        answers.push(answer);
    }
    text += "\nfetched: touches of extents that were not in GPU memory. The bound is the least for who knows the future.\n";
    Ok(Reply {
        schema: SCHEMA,
        json: json!({ "traces": answers }),
        text,
        yes: true,
    })
}

fn gib(extents: u64, extent_mib: u32) -> String {
    let tenths = extents * u64::from(extent_mib) * 10 / 1024;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

fn one(named: &Named, room: Room, policies: &[&str]) -> Result<(String, Value)> {
    let Named { name, about, trace } = named;
    let footprint = trace.footprint();
    let mib = trace.extent_mib;
    let capacity = match room {
        Room::Percent(percent) => footprint * percent as usize / 100,
        Room::Mib(room) => usize::try_from(room / u64::from(mib))?.min(footprint),
    };
    if capacity == 0 {
        bail!("{name}: this GPU memory holds no extent of {mib} MiB; give more with --hbm");
    }
    let bound = bound::fetches(trace, capacity);
    let mut table = Table::new(&[
        "policy",
        "fetched",
        "of the bound",
        "written back",
        "over the link",
    ]);
    table.row([
        "bound".into(),
        bound.to_string(),
        "1.00".into(),
        String::new(),
        String::new(),
    ]);
    let mut answers = Vec::new();
    let mut touches = 0;
    for policy in policies {
        let mut policy = self::named(policy, capacity).context("there is no such policy")?;
        let moved = replay(trace, capacity, policy.as_mut())
            .with_context(|| format!("{name}: {} is at fault", policy.name()))?;
        touches = moved.touches;
        let over = moved.fetched + moved.written_back;
        let ratio = (bound > 0).then(|| moved.fetched as f64 / bound as f64);
        table.row([
            policy.name().into(),
            moved.fetched.to_string(),
            ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            moved.written_back.to_string(),
            gib(over, mib),
        ]);
        answers.push(json!({
            "policy": policy.name(),
            "fetched": moved.fetched,
            "written_back": moved.written_back,
        }));
    }
    let about = about.map_or_else(String::new, |about| format!(": {about}"));
    let text = format!(
        "{name}{about}\n{} of {mib} MiB ({}), {touches} touches; GPU memory for {capacity} of them ({})\n\n{}",
        count(footprint, "extent"),
        gib(footprint as u64, mib),
        gib(capacity as u64, mib),
        table.render()
    );
    let answer = json!({
        "trace": name,
        "extent_mib": mib,
        "extents": footprint,
        "touches": touches,
        "capacity": capacity,
        "bound": bound,
        "policies": answers,
    });
    Ok((text, answer))
}
