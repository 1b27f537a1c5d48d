//! What is done about which fault: rules as data, shipped in `crates/gpuos_core/data/health-rules.toml` and
//! overridden by `[health]` and `[[health.rule]]` of gpuos.toml.
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::event::RecoveryAction;

/// The shipped rules, for people who want one to start from.
pub const DATA: &str = include_str!("../../data/health-rules.toml");

/// What a rule looks at. The figure of a flag is 1 while it is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Signal {
    /// An Xid of this number; the figure counts them.
    Xid(u32),
    /// NVML's recovery action.
    Recovery(RecoveryAction),
    /// The GPU is lost.
    Lost,
    /// Something that is measured of a GPU.
    Gauge(Gauge),
    /// Something that is measured of the node.
    Node(NodeGauge),
}

/// Who says so. A stronger one decides against a weaker one about the same part of the GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Authority {
    /// Counters and flags.
    Counter,
    /// The Xid, and that a GPU is lost.
    Xid,
    /// NVML's recovery action.
    Recovery,
}

/// What is measured of a GPU. Counters count within the rule's time; the others are as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Gauge {
    /// Corrected ECC errors, counter.
    EccCorrected,
    /// Uncorrected ECC errors, counter.
    EccUncorrected,
    /// Uncorrected ECC errors in the life of the board.
    EccAggregate,
    /// Flag: on-chip memory passed NVIDIA's threshold.
    SramThreshold,
    /// Flag: a row is remapped at the next reset.
    RowPending,
    /// Flag: a row could not be remapped.
    RowFailure,
    /// Rows remapped in the life of the board.
    RowsRemapped,
    /// Memory banks with few or no spare rows.
    RowsLow,
    /// Flag: a page is retired at the next reset.
    PagePending,
    /// Pages retired.
    Pages,
    /// NVLink replays, counter.
    NvlinkReplays,
    /// NVLink recoveries, counter.
    NvlinkRecoveries,
    /// NVLink CRC errors, counter.
    NvlinkCrc,
    /// NVLinks that are down.
    NvlinkDown,
    /// PCIe replays, counter.
    PcieReplays,
    /// PCIe lanes that are missing.
    PcieWidth,
    /// PCIe generations that are missing while the GPU works.
    PcieGen,
    /// Flag: heat holds the clocks down.
    Thermal,
    /// Degrees above the point 5 degrees below the slowdown temperature.
    Hot,
    /// Degrees warmer than over the last day at about the same power.
    Warming,
    /// Flag: the power brake is on.
    PowerBrake,
    /// Flag: a watched job does not compute.
    Hang,
    /// Flag: the GPU does not answer, and others do.
    Silent,
}

/// What is measured of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeGauge {
    /// Flag: NVML does not answer.
    LibrarySilent,
    /// Network adapters whose link is down.
    NicDown,
    /// Corrected errors of host memory, counter.
    MemoryCorrected,
    /// Uncorrected errors of host memory, counter.
    MemoryUncorrected,
    /// Seconds for which a file system has not answered.
    FileSystemStall,
}

/// What is done with the GPU, or the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Nothing but a line in the audit log.
    Ignore,
    /// A line in the log.
    Warn,
    /// Jobs take other GPUs first, until it is over.
    Degrade,
    /// The affected steps are killed; the GPU goes on.
    KillStep,
    /// The GPU goes on, and is reset as soon as nobody has it.
    ResetWhenIdle,
    /// The affected jobs are requeued, and the GPU is checked before it gets another.
    Requeue,
    /// The GPU gets no more jobs.
    DrainGpu,
    /// The GPU and the node get no more jobs.
    DrainNode,
}

/// What is done with the jobs on a GPU that is drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobsAre {
    /// They go on until they end.
    RunOut,
    /// Their steps on the GPU are killed.
    KillStep,
    /// They are requeued; of a job that may not be, the steps on the GPU are killed.
    Requeue,
}

/// What brings a drained GPU back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cure {
    /// A check that it passes once the trouble is over.
    Check,
    /// A reset, then a check.
    Reset,
    /// A reboot of the node, then a check.
    Reboot,
    /// An administrator.
    Admin,
}

/// One rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Its name, unique.
    pub name: String,
    /// What it looks at.
    pub signal: Signal,
    /// What happened, for people: "double-bit ECC error".
    pub about: String,
    /// What is done.
    pub action: Action,
    /// What is done with jobs, where the GPU is drained.
    pub jobs: JobsAre,
    /// What brings the GPU back, where it is drained.
    pub cure: Cure,
    /// The whole GPU is hit, even if the event names a MIG instance.
    pub whole_gpu: bool,
    /// The figure at which it acts.
    pub threshold: u64,
    /// Time in which events and counters are counted, in s.
    pub within_s: u32,
    /// How long the figure must stay there, in s.
    pub hold_s: u32,
    /// Part of the GPU that it is about: stronger rules of the same part decide.
    pub part: String,
    /// Where the fact comes from.
    pub source: String,
}

/// Numbers that hold for all rules: `[health]` in gpuos.toml.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// So often within [`Limits::returns_within_s`] a GPU comes back by itself; then an administrator has to
    /// look.
    pub max_returns: u32,
    /// See there, in s.
    pub returns_within_s: u32,
    /// Failed resets or checks in a row after which the GPU goes offline.
    pub attempts: u32,
    /// Whether GPUs are reset at all; if not, an administrator does it.
    pub auto_reset: bool,
    /// After so many s a reset counts as failed.
    pub reset_timeout_s: u32,
    /// After so many s a check counts as failed.
    pub check_timeout_s: u32,
    /// For so many s a GPU must be seen without a job before it is reset or checked.
    pub settle_s: u32,
    /// For so many s a figure must stay below its threshold before a GPU is not degraded any more.
    pub calm_s: u32,
    /// Publications that may follow each other at once.
    pub publish_burst: u32,
    /// One more publication every so many s.
    pub publish_every_s: u32,
    /// After so many s a publication counts as failed, and jobs are requeued without it.
    pub publish_wait_s: u32,
    /// Publications are spread over so many ms, those that take no GPU out over ten times as many.
    pub publish_spread_ms: u32,
    /// A step that was to be killed, or a job to be requeued, and is still there, is told again after so many s.
    pub retry_s: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_returns: 3,
            returns_within_s: 86_400,
            attempts: 2,
            auto_reset: true,
            reset_timeout_s: 120,
            check_timeout_s: 300,
            settle_s: 10,
            calm_s: 600,
            publish_burst: 3,
            publish_every_s: 20,
            publish_wait_s: 15,
            publish_spread_ms: 1000,
            retry_s: 30,
        }
    }
}

/// All rules and limits. The default is what gpuos ships.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The limits.
    pub limits: Limits,
    list: Arc<List>,
}

/// Rules, and which of them are about what is measured: they are looked at often.
#[derive(Clone, PartialEq, Eq, Debug)]
struct List {
    all: Vec<Rule>,
    gauges: Vec<(usize, Gauge)>,
    node: Vec<(usize, NodeGauge)>,
}

impl List {
    fn new(all: Vec<Rule>) -> List {
        let numbered = || all.iter().enumerate();
        let gauge = |(at, rule): (usize, &Rule)| match rule.signal {
            Signal::Gauge(gauge) => Some((at, gauge)),
            _ => None,
        };
        let node = |(at, rule): (usize, &Rule)| match rule.signal {
            Signal::Node(gauge) => Some((at, gauge)),
            _ => None,
        };
        List {
            gauges: numbered().filter_map(gauge).collect(),
            node: numbered().filter_map(node).collect(),
            all,
        }
    }
}

// A test reads the data file, so that it cannot be broken here.
static SHIPPED: LazyLock<Arc<List>> = LazyLock::new(|| {
    let rules = super::table::shipped();
    Arc::new(List::new(rules.unwrap_or_default()))
});

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            limits: Limits::default(),
            list: SHIPPED.clone(),
        }
    }
}

impl Rules {
    /// Rules and limits together.
    pub fn new(rules: Vec<Rule>, limits: Limits) -> Rules {
        Rules {
            limits,
            list: Arc::new(List::new(rules)),
        }
    }

    /// All rules, those that gpuos ships first.
    pub fn all(&self) -> &[Rule] {
        &self.list.all
    }

    /// The rules about what is measured of a GPU.
    pub(super) fn gauges(&self) -> impl Iterator<Item = (&Rule, Gauge)> {
        let rules = self.list.gauges.iter();
        rules.map(|(at, gauge)| (&self.list.all[*at], *gauge))
    }

    /// The rules about what is measured of the node.
    pub(super) fn node(&self) -> impl Iterator<Item = (&Rule, NodeGauge)> {
        let rules = self.list.node.iter();
        rules.map(|(at, gauge)| (&self.list.all[*at], *gauge))
    }

    /// A rule by name.
    pub fn by_name(&self, name: &str) -> Option<&Rule> {
        self.list.all.iter().find(|rule| rule.name == name)
    }

    /// The rule for a signal, the first one.
    pub fn of(&self, signal: Signal) -> Option<&Rule> {
        self.list.all.iter().find(|rule| rule.signal == signal)
    }

    /// The rule for an Xid: its own, else that for numbers nobody knows (Xid 0).
    pub fn xid(&self, code: u32) -> Option<&Rule> {
        let own = self.of(Signal::Xid(code));
        own.or_else(|| self.of(Signal::Xid(0)))
    }
}

impl Signal {
    /// Who says so.
    pub fn authority(self) -> Authority {
        match self {
            Signal::Recovery(_) => Authority::Recovery,
            Signal::Xid(_) | Signal::Lost => Authority::Xid,
            Signal::Gauge(_) | Signal::Node(_) => Authority::Counter,
        }
    }
}

impl Action {
    /// Whether the GPU gets no more jobs.
    pub fn takes_out(self) -> bool {
        matches!(self, Action::Requeue | Action::DrainGpu | Action::DrainNode)
    }

    /// Whether the GPU counts as degraded.
    pub fn degrades(self) -> bool {
        matches!(self, Action::Degrade | Action::ResetWhenIdle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_rules_are_whole() {
        let rules = super::super::table::shipped().unwrap_or_else(|error| panic!("{error}"));
        assert!(rules.len() > 100, "{}", rules.len());
        for rule in &rules {
            assert!(
                !rule.about.is_empty() && rule.source.len() > 8,
                "{}",
                rule.name
            );
            let same = |other: &&Rule| {
                matches!(other.signal, Signal::Xid(_)) && other.signal == rule.signal
            };
            assert!(rules.iter().filter(same).count() <= 1, "{}", rule.name);
        }
    }
}
