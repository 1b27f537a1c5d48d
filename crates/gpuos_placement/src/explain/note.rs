//! The note on a decision that a job carries in Slurm's `SystemComment`.
//!
//! One line, at most [`MAX_NOTE`] bytes, for people and for `gpuos why`:
//! `gpuos: level=leaf domain=l3 bus=50 gpus=n[1-7]:0-7,n8:0-3`.
use std::ops::Range;

use gpuos_model::cluster::Cluster;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::hostlist::{compress, expand};

use super::level_reached;
use crate::cost::Objectives;
use crate::plan::{Choice, Request, TopologyRequest};

/// The longest note, in bytes.
pub const MAX_NOTE: usize = 512;

/// The longest level or domain name that a note keeps, in bytes.
const MAX_WORD: usize = 64;

/// The level in a note on a job with slices of GPUs.
const SLICE: &str = "slice";

/// Longer than any list of GPU indexes of a node.
const MAX_GPU_LIST: usize = 3 * MAX_GPUS;

/// What is kept for nodes and GPUs at least, in bytes.
const LEAST_GPUS: usize = 64;

const MARK: &str = "gpuos: ";

/// How every note begins; the mark alone may be somebody's text.
const START: &str = "gpuos: level=";

/// What stands between a note and another text in the same field.
const BESIDE: &str = " | ";

/// The GPUs of one node in a note.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NodeGpus {
    /// Node name.
    pub node: String,
    /// GPUs chosen there; empty where Slurm chose them.
    pub gpus: GpuSet,
}

/// By how much a place is worth more to a job than another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueGain {
    /// What was weighed.
    pub objectives: Objectives,
    /// In percent of the other place.
    pub percent: u32,
    /// Name of a node there.
    pub than: String,
}

/// How many of a job's nodes hold checkpoints of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Nodes that do.
    pub nodes: u32,
    /// Nodes of the job.
    pub of: u32,
}

/// A decision, as a job carries it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Note {
    /// Level reached: `nvlink`, `node`, a level of the fabric or `any`.
    pub level: String,
    /// Domain of that level; empty when it has none.
    pub domain: String,
    /// What the job wished.
    pub wish: Option<TopologyRequest>,
    /// Modelled ring bandwidth per GPU in GB/s.
    pub bus_gbps: f32,
    /// Usability lost, in GPUs.
    pub usability_lost: f32,
    /// Nodes that had room for a part of the job.
    pub feasible_nodes: u32,
    /// Domains of the level reached that had room for the whole job.
    pub feasible_domains: u32,
    /// Which choice Slurm took: 0 is the best one.
    pub attempt: u32,
    /// What was weighed, where that made a difference to a node of another type.
    pub worth: Option<ValueGain>,
    /// Which of its nodes hold checkpoints of the job, where such nodes were known and preferred.
    pub held: Option<Held>,
    /// The job's class, as it said itself (`--gpuos-class`).
    pub class: Option<String>,
    /// The level of the domains that it has to itself (`--gpuos-exclusive`).
    pub alone: Option<String>,
    /// Instances of a job with slices of GPUs, on each of its nodes: `3g.40gb:1,1g.10gb:2`.
    pub mig: Option<String>,
    /// Nodes and GPUs.
    pub gpus: Vec<NodeGpus>,
    /// Nodes that did not fit into the note.
    pub more_nodes: u32,
}

impl Note {
    /// The note on a choice; `attempt` counts from 0.
    pub fn new(choice: &Choice, request: &Request, cluster: &Cluster, attempt: u32) -> Note {
        let (level, domain) = level_reached(choice, cluster);
        let gpus = choice.nodes.iter().filter_map(|chosen| {
            Some(NodeGpus {
                node: cluster.nodes.get(chosen.node as usize)?.name.clone(),
                gpus: chosen.gpus,
            })
        });
        Note {
            level: level.into(),
            domain: domain.unwrap_or_default().into(),
            wish: request.topology.clone(),
            bus_gbps: choice.bus_gbps,
            usability_lost: choice.usability_lost,
            feasible_nodes: choice.feasible_nodes,
            feasible_domains: choice.feasible_domains,
            attempt,
            worth: None,
            held: None,
            class: None,
            alone: None,
            mig: None,
            gpus: gpus.collect(),
            more_nodes: 0,
        }
    }

    /// The note on a job with slices of GPUs: its instances on each node, and its nodes.
    pub fn of_slices(mig: String, nodes: impl IntoIterator<Item = String>) -> Note {
        let gpus = GpuSet::EMPTY;
        let nodes = nodes.into_iter().map(|node| NodeGpus { node, gpus });
        Note {
            level: SLICE.into(),
            mig: Some(mig),
            gpus: nodes.collect(),
            ..Note::default()
        }
    }

    /// The note on a job without GPUs: its nodes, and how many of them hold checkpoints of it.
    pub fn of_nodes(held: Held, nodes: impl IntoIterator<Item = String>) -> Note {
        let gpus = GpuSet::EMPTY;
        let nodes = nodes.into_iter().map(|node| NodeGpus { node, gpus });
        Note {
            level: "any".into(),
            held: Some(held),
            gpus: nodes.collect(),
            ..Note::default()
        }
    }

    /// The note as one line of at most [`MAX_NOTE`] bytes. Nodes with the same GPUs are
    /// written together, so their order can change; nodes that do not fit are counted.
    pub fn encode(&self) -> String {
        // Made while slurmctld starts a job: into one buffer, without the machinery of `format`.
        let mut out = String::with_capacity(MAX_NOTE);
        out.push_str(START);
        push_word(&mut out, &self.level);
        if !self.domain.is_empty() {
            out.push_str(" domain=");
            push_word(&mut out, &self.domain);
        }
        if let Some(wish) = &self.wish {
            out.push_str(" wish=");
            out.push_str(&wish_text(wish));
        }
        out.push_str(" bus=");
        push_number(&mut out, self.bus_gbps);
        out.push_str(" lost=");
        push_number(&mut out, self.usability_lost);
        for (name, value) in [
            (" nodes=", self.feasible_nodes),
            (" domains=", self.feasible_domains),
            (" try=", self.attempt),
        ] {
            if value > 0 || name != " try=" {
                out.push_str(name);
                push_whole(&mut out, u64::from(value));
            }
        }
        if let Some(worth) = &self.worth {
            let ValueGain {
                objectives,
                percent,
                than,
            } = worth;
            out.push_str(&format!(" by={objectives} more={percent} than="));
            push_word(&mut out, than);
        }
        if let Some(Held { nodes, of }) = self.held {
            out.push_str(" held=");
            push_whole(&mut out, u64::from(nodes));
            out.push('/');
            push_whole(&mut out, u64::from(of));
        }
        // Whole or not at all: gpuosd makes what it says.
        if let Some(mig) = &self.mig
            && out.len() + " mig=".len() + mig.len() < MAX_NOTE - LEAST_GPUS
            && mig.bytes().all(|b| b.is_ascii_graphic() && b != b'|')
        {
            out.push_str(" mig=");
            out.push_str(mig);
        }
        for (name, value) in [(" class=", &self.class), (" alone=", &self.alone)] {
            // The nodes need some room too.
            if let Some(value) = value
                && out.len() + name.len() + value.len() < MAX_NOTE - LEAST_GPUS
            {
                out.push_str(name);
                push_word(&mut out, value);
            }
        }
        out.push_str(" gpus=");
        let room = MAX_NOTE - out.len();
        match self.gpus.as_slice() {
            [one]
                if self.more_nodes == 0
                    && !one.node.is_empty()
                    && one.node.len() + MAX_GPU_LIST < room =>
            {
                out.push_str(&one.node);
                out.push(':');
                push_gpus(&mut out, one.gpus);
            }
            _ => out.push_str(&self.gpu_list(room)),
        }
        out
    }

    /// The nodes and GPUs in at most `room` bytes.
    fn gpu_list(&self, room: usize) -> String {
        let groups = self.groups();
        let total: usize = groups.iter().map(|(_, nodes)| nodes.len()).sum();
        // The first `kept` nodes: fewer of them never need more room, so halving finds the most.
        let list = |kept: usize| {
            let mut left = kept;
            let mut parts = Vec::new();
            for (gpus, nodes) in &groups {
                let nodes = &nodes[..left.min(nodes.len())];
                left -= nodes.len();
                let hosts = compress(nodes.iter().copied());
                for hosts in split(&hosts).filter(|hosts| !hosts.is_empty()) {
                    parts.push(format!("{hosts}:{gpus}"));
                }
            }
            let more = (total - kept).saturating_add(self.more_nodes as usize);
            if more > 0 {
                parts.push(format!("+{more}"));
            }
            parts.join(",")
        };
        let whole = list(total);
        if whole.len() <= room {
            return whole;
        }
        let (mut fits, mut too_many) = (0, total);
        while too_many - fits > 1 {
            let middle = (fits + too_many) / 2;
            match list(middle).len() <= room {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        list(fits)
    }

    /// Nodes by equal GPU sets, in the order of their first node.
    fn groups(&self) -> Vec<(GpuSet, Vec<&str>)> {
        let mut groups: Vec<(GpuSet, Vec<&str>)> = Vec::new();
        for NodeGpus { node, gpus } in &self.gpus {
            match groups.iter_mut().find(|(other, _)| other == gpus) {
                Some((_, nodes)) => nodes.push(node),
                None => groups.push((*gpus, vec![node])),
            }
        }
        groups
    }

    /// The note in a job's comment, which may hold other texts beside it. `None` when there
    /// is no note, or one that is damaged.
    pub fn parse(comment: &str) -> Option<Note> {
        let line = &comment[find(comment)?][MARK.len()..];
        let mut note = Note::default();
        let (mut by, mut more, mut than) = (None, None, None);
        for field in line.split_whitespace() {
            let (name, value) = field.split_once('=')?;
            match name {
                "level" => note.level = value.into(),
                "domain" => note.domain = value.into(),
                "wish" => note.wish = Some(TopologyRequest::parse(value).ok()?),
                "bus" => note.bus_gbps = value.parse().ok()?,
                "lost" => note.usability_lost = value.parse().ok()?,
                "nodes" => note.feasible_nodes = value.parse().ok()?,
                "domains" => note.feasible_domains = value.parse().ok()?,
                "try" => note.attempt = value.parse().ok()?,
                "by" => by = Some(value.parse().ok()?),
                "more" => more = Some(value.parse().ok()?),
                "than" => than = Some(value.to_string()),
                "held" => note.held = read_held(value),
                "class" => note.class = Some(value.into()),
                "mig" => note.mig = Some(value.into()),
                "alone" => note.alone = Some(value.into()),
                "gpus" => note.read_gpus(value)?,
                // A field of a later release.
                _ => {}
            }
        }
        if let (Some(objectives), Some(percent), Some(than)) = (by, more, than) {
            note.worth = Some(ValueGain {
                objectives,
                percent,
                than,
            });
        }
        (!note.level.is_empty()).then_some(note)
    }

    fn read_gpus(&mut self, text: &str) -> Option<()> {
        // Commas stand between nodes and within index lists: `n1:0,2,n2:1`.
        let mut parts: Vec<(&str, String)> = Vec::new();
        for part in split(text).filter(|part| !part.is_empty()) {
            if let Some(more) = part.strip_prefix('+') {
                self.more_nodes = more.parse().ok()?;
            } else if let Some((hosts, gpus)) = part.split_once(':') {
                parts.push((hosts, gpus.into()));
            } else {
                let (_, gpus) = parts.last_mut()?;
                *gpus = format!("{gpus},{part}");
            }
        }
        for (hosts, gpus) in parts {
            let gpus = parse_gpus(&gpus)?;
            let nodes = expand(hosts).ok()?;
            self.gpus
                .extend(nodes.into_iter().map(|node| NodeGpus { node, gpus }));
        }
        Some(())
    }

    /// The comment with this note in place of an older one; other texts in it are kept.
    pub fn write_into(&self, comment: &str) -> String {
        beside(comment, &self.encode())
    }
}

/// The comment with an encoded note in place of an older one, as [`Note::write_into`] for callers
/// that have the note's text already.
pub fn beside(comment: &str, note: &str) -> String {
    let others = without(comment);
    match others.is_empty() {
        true => note.into(),
        false => format!("{others}{BESIDE}{note}"),
    }
}

/// The comment without gpuos's note.
pub fn without(comment: &str) -> String {
    let mut others = comment.trim().to_string();
    while let Some(note) = find(&others) {
        let before = others[..note.start].trim_end();
        let before = before.strip_suffix(BESIDE.trim()).unwrap_or(before);
        let after = others[note.end..].trim_start();
        let after = after.strip_prefix(BESIDE.trim()).unwrap_or(after);
        let parts = [before.trim(), after.trim()];
        let left: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        others = left.join(BESIDE);
    }
    others
}

/// Where the first note stands: at the start, or after [`BESIDE`]. A text before it may end in a
/// bar itself, so the comment is not cut into parts from the left.
fn find(comment: &str) -> Option<Range<usize>> {
    let starts = |at: usize| {
        let before = &comment[..at];
        let trimmed = before.trim_end();
        trimmed.is_empty() || trimmed.len() < before.len() && trimmed.ends_with(" |")
    };
    let mut marks = comment.match_indices(START).map(|(at, _)| at);
    let start = marks.find(|&at| starts(at))?;
    let end = comment[start..].find(BESIDE);
    Some(start..end.map_or(comment.len(), |end| start + end))
}

fn read_held(text: &str) -> Option<Held> {
    let (nodes, of) = text.split_once('/')?;
    Some(Held {
        nodes: nodes.parse().ok()?,
        of: of.parse().ok()?,
    })
}

/// Reads what [`GpuSet`] displays as: `0-3,6`, `-` for none.
pub fn parse_gpus(text: &str) -> Option<GpuSet> {
    if text == "-" {
        return Some(GpuSet::EMPTY);
    }
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let value = digits.then(|| text.parse::<usize>().ok())?;
        value.filter(|&index| index < MAX_GPUS)
    };
    let mut set = GpuSet::EMPTY;
    for range in text.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (number(low)?, number(high)?);
        if low > high {
            return None;
        }
        set = (low..=high).fold(set, GpuSet::with);
    }
    Some(set)
}

/// Cuts a list at the commas outside brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut open = false;
    list.split(move |c| {
        open = (open || c == '[') && c != ']';
        c == ',' && !open
    })
}

/// Adds a value without what would break the line apart, and not too long.
fn push_word(out: &mut String, text: &str) {
    let clean = |c: char| match c.is_ascii_graphic() && c != '|' {
        true => c,
        false => '_',
    };
    out.extend(text.chars().map(clean).take(MAX_WORD));
}

/// Adds a whole number.
fn push_whole(out: &mut String, value: u64) {
    if value >= 10 {
        push_whole(out, value / 10);
    }
    out.push(char::from(b'0' + (value % 10) as u8));
}

/// Adds what [`number`] makes of a figure.
fn push_number(out: &mut String, value: f32) {
    // A figure times ten is exact in twice the digits, so it is rounded once, as `format` does.
    let tenths = (f64::from(value) * 10.0).round_ties_even();
    if !(0.0..1e15).contains(&tenths) || value.is_sign_negative() {
        return out.push_str(&number(value));
    }
    let tenths = tenths as u64;
    push_whole(out, tenths / 10);
    if !tenths.is_multiple_of(10) {
        out.push('.');
        push_whole(out, tenths % 10);
    }
}

/// Adds GPU indexes as [`GpuSet`] displays them.
fn push_gpus(out: &mut String, gpus: GpuSet) {
    if gpus.is_empty() {
        return out.push('-');
    }
    let mut rest = gpus.0;
    let mut comma = false;
    while rest != 0 {
        let low = rest.trailing_zeros();
        let ones = (rest >> low).trailing_ones();
        if comma {
            out.push(',');
        }
        comma = true;
        push_whole(out, u64::from(low));
        if ones > 1 {
            out.push('-');
            push_whole(out, u64::from(low + ones - 1));
        }
        rest &= u64::MAX.checked_shl(low + ones).unwrap_or(0);
    }
}

/// The wish with a level name that fits.
fn wish_text(wish: &TopologyRequest) -> String {
    TopologyRequest {
        level: {
            let mut level = String::new();
            push_word(&mut level, &wish.level);
            level
        },
        required: wish.required,
    }
    .to_string()
}

/// A figure with as many digits as people read.
pub(super) fn number(value: f32) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(String::from).unwrap_or(text)
}
