//! Rules as tables: the shipped ones, and `[[health.rule]]` of a site, which have the same form.
use gpuos_model::reading::{Check, ConfigError, read};
use serde::Deserialize;
use toml::Spanned;

use super::event::RecoveryAction;
use super::rules::{Action, Cure, Gauge, JobsAre, NodeGauge, Rule, Signal};

/// The most rules, shipped ones and own ones together.
const MOST: usize = 1024;
/// The highest Xid that a rule may be about.
const LAST_XID: i64 = 100_000;

const ACTIONS: [(&str, Action); 8] = [
    ("ignore", Action::Ignore),
    ("warn", Action::Warn),
    ("degrade", Action::Degrade),
    ("kill-step", Action::KillStep),
    ("requeue", Action::Requeue),
    ("reset-when-idle", Action::ResetWhenIdle),
    ("drain-gpu", Action::DrainGpu),
    ("drain-node", Action::DrainNode),
];

const JOBS: [(&str, JobsAre); 3] = [
    ("run-out", JobsAre::RunOut),
    ("kill-step", JobsAre::KillStep),
    ("requeue", JobsAre::Requeue),
];

const CURES: [(&str, Cure); 4] = [
    ("check", Cure::Check),
    ("reset", Cure::Reset),
    ("reboot", Cure::Reboot),
    ("admin", Cure::Admin),
];

const RECOVERIES: [(&str, RecoveryAction); 5] = [
    ("gpu-reset", RecoveryAction::GpuReset),
    ("node-reboot", RecoveryAction::NodeReboot),
    ("drain-p2p", RecoveryAction::DrainP2p),
    ("drain-and-reset", RecoveryAction::DrainAndReset),
    ("other", RecoveryAction::Other(0)),
];

/// What a rule can look at, besides Xids and recovery actions.
const SIGNALS: [(&str, Signal); 29] = [
    ("lost", Signal::Lost),
    ("ecc-corrected", Signal::Gauge(Gauge::EccCorrected)),
    ("ecc-uncorrected", Signal::Gauge(Gauge::EccUncorrected)),
    ("ecc-aggregate", Signal::Gauge(Gauge::EccAggregate)),
    ("sram-threshold", Signal::Gauge(Gauge::SramThreshold)),
    ("row-pending", Signal::Gauge(Gauge::RowPending)),
    ("row-failure", Signal::Gauge(Gauge::RowFailure)),
    ("rows-remapped", Signal::Gauge(Gauge::RowsRemapped)),
    ("rows-low", Signal::Gauge(Gauge::RowsLow)),
    ("page-pending", Signal::Gauge(Gauge::PagePending)),
    ("pages", Signal::Gauge(Gauge::Pages)),
    ("nvlink-replays", Signal::Gauge(Gauge::NvlinkReplays)),
    ("nvlink-recoveries", Signal::Gauge(Gauge::NvlinkRecoveries)),
    ("nvlink-crc", Signal::Gauge(Gauge::NvlinkCrc)),
    ("nvlink-down", Signal::Gauge(Gauge::NvlinkDown)),
    ("pcie-replays", Signal::Gauge(Gauge::PcieReplays)),
    ("pcie-width", Signal::Gauge(Gauge::PcieWidth)),
    ("pcie-generation", Signal::Gauge(Gauge::PcieGen)),
    ("thermal", Signal::Gauge(Gauge::Thermal)),
    ("warming", Signal::Gauge(Gauge::Warming)),
    ("hot", Signal::Gauge(Gauge::Hot)),
    ("power-brake", Signal::Gauge(Gauge::PowerBrake)),
    ("hang", Signal::Gauge(Gauge::Hang)),
    ("silent", Signal::Gauge(Gauge::Silent)),
    ("library-silent", Signal::Node(NodeGauge::LibrarySilent)),
    ("nic-down", Signal::Node(NodeGauge::NicDown)),
    (
        "host-memory-corrected",
        Signal::Node(NodeGauge::MemoryCorrected),
    ),
    (
        "host-memory-uncorrected",
        Signal::Node(NodeGauge::MemoryUncorrected),
    ),
    ("file-system", Signal::Node(NodeGauge::FileSystemStall)),
];

/// The shipped health rules.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    rule: Vec<Spanned<RawRule>>,
}

/// A `[[health.rule]]` table as it is written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[health.rule]]")]
pub struct RawRule {
    name: Option<Spanned<String>>,
    xid: Option<Spanned<i64>>,
    recovery: Option<Spanned<String>>,
    on: Option<Spanned<String>>,
    about: Option<Spanned<String>>,
    action: Option<Spanned<String>>,
    jobs: Option<Spanned<String>>,
    then: Option<Spanned<String>>,
    whole_gpu: Option<bool>,
    threshold: Option<Spanned<i64>>,
    within: Option<Spanned<String>>,
    hold: Option<Spanned<String>>,
    part: Option<Spanned<String>>,
    source: Option<Spanned<String>>,
}

/// The rules that gpuos ships.
///
/// # Errors
/// A mistake in the data file.
pub fn shipped() -> Result<Vec<Rule>, ConfigError> {
    let (raw, check): (File, _) = read(super::rules::DATA, "health-rules.toml")?;
    merge(check, &raw.rule, Vec::new())
}

/// Puts tables over rules that are known: one with a known name changes what it says, another is added.
///
/// # Errors
/// The first mistake in a table.
pub fn merge(
    check: Check,
    tables: &[Spanned<RawRule>],
    mut known: Vec<Rule>,
) -> Result<Vec<Rule>, ConfigError> {
    let mut named = std::collections::BTreeSet::new();
    for table in tables {
        let name = check.need(table, "[[health.rule]]", "name", &table.get_ref().name)?;
        let name = check.name("name", name)?;
        if !named.insert(name.clone()) {
            let message = format!("health rule {name} is described twice; write both as one");
            return Err(check.error(table, message));
        }
        match known.iter().position(|rule| rule.name == name) {
            Some(at) => known[at] = over(check, table, known[at].clone())?,
            None if known.len() < MOST => {
                let rule = new(check, table, name)?;
                known.push(over(check, table, rule)?);
            }
            None => return Err(check.error(table, format!("more than {MOST} health rules"))),
        }
    }
    Ok(known)
}

/// A rule with what all rules have that do not say it.
fn new(check: Check, table: &Spanned<RawRule>, name: String) -> Result<Rule, ConfigError> {
    let raw = table.get_ref();
    let Some(signal) = signal(check, raw)? else {
        let message = format!(
            "there is no health rule {name} to change, and a new one needs xid =, recovery = or on =; \
             docs/admin/health.md names all rules"
        );
        return Err(check.error(table, message));
    };
    check.need(table, "[[health.rule]]", "action", &raw.action)?;
    Ok(Rule {
        about: match signal {
            Signal::Xid(code) => format!("Xid {code}"),
            _ => name.replace('-', " "),
        },
        name,
        signal,
        action: Action::Warn,
        jobs: JobsAre::RunOut,
        cure: Cure::Reset,
        whole_gpu: false,
        threshold: 1,
        within_s: 3600,
        hold_s: 0,
        part: "gpu".into(),
        source: String::new(),
    })
}

fn signal(check: Check, raw: &RawRule) -> Result<Option<Signal>, ConfigError> {
    if let Some(xid) = &raw.xid {
        let code = check.int("xid", &raw.xid, 0..=LAST_XID, 0)?;
        if raw.recovery.is_some() || raw.on.is_some() {
            let message = "a health rule is about one thing: keep one of xid, recovery and on";
            return Err(check.error(xid, message));
        }
        return Ok(Some(Signal::Xid(code as u32)));
    }
    if let Some(recovery) = &raw.recovery {
        if raw.on.is_some() {
            let message = "a health rule is about one thing: keep one of xid, recovery and on";
            return Err(check.error(recovery, message));
        }
        let action = check.word("recovery", &raw.recovery, &RECOVERIES, RecoveryAction::None)?;
        return Ok(Some(Signal::Recovery(action)));
    }
    match &raw.on {
        Some(_) => Ok(Some(check.word("on", &raw.on, &SIGNALS, Signal::Lost)?)),
        None => Ok(None),
    }
}

fn over(check: Check, table: &Spanned<RawRule>, rule: Rule) -> Result<Rule, ConfigError> {
    let raw = table.get_ref();
    let text = |key: &str, value: &Option<Spanned<String>>, default: String| match value {
        Some(_) => check.text(key, value),
        None => Ok(default),
    };
    let threshold = i64::try_from(rule.threshold).unwrap_or(i64::MAX);
    let within = check.seconds("within", &raw.within)?;
    let hold = check.seconds("hold", &raw.hold)?;
    Ok(Rule {
        signal: signal(check, raw)?.unwrap_or(rule.signal),
        about: text("about", &raw.about, rule.about)?,
        action: check.word("action", &raw.action, &ACTIONS, rule.action)?,
        jobs: check.word("jobs", &raw.jobs, &JOBS, rule.jobs)?,
        cure: check.word("then", &raw.then, &CURES, rule.cure)?,
        whole_gpu: raw.whole_gpu.unwrap_or(rule.whole_gpu),
        threshold: check.int("threshold", &raw.threshold, 1..=i64::MAX, threshold)? as u64,
        within_s: within.unwrap_or(rule.within_s),
        hold_s: hold.unwrap_or(rule.hold_s),
        part: match &raw.part {
            Some(part) => check.name("part", part)?,
            None => rule.part,
        },
        source: text("source", &raw.source, rule.source)?,
        name: rule.name,
    })
}
