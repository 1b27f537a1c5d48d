//! `[health]` and `[[health.rule]]`, and the shipped rules, which have the same form.

use std::path::PathBuf;

use toml::Spanned;

use super::check::Check;
use super::error::ConfigError;
use super::raw::{RawHealth, RawHealthRule};
use crate::health::{
    Action, Cure, Gauge, JobsAre, Limits, NodeGauge, RecoveryAction, Rule, Rules, Signal,
};

/// The most rules, shipped ones and own ones together.
const MOST: usize = 1024;
/// The most file systems: each has a thread of its own.
const MOST_FILE_SYSTEMS: usize = 16;
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

pub(super) fn read(check: Check, raw: &RawHealth) -> Result<Rules, ConfigError> {
    let limits = limits(check, raw)?;
    let mut shipped = Rules::default();
    if raw.rule.is_empty() {
        shipped.limits = limits;
        return Ok(shipped);
    }
    let rules = rules(check, &raw.rule, shipped.all().to_vec())?;
    Ok(Rules::new(rules, limits))
}

/// `file-systems`: those that gpuosd asks whether they answer.
pub(super) fn file_systems(check: Check, raw: &RawHealth) -> Result<Vec<PathBuf>, ConfigError> {
    let paths = raw.file_systems.as_deref().unwrap_or_default();
    if let Some(one) = paths.get(MOST_FILE_SYSTEMS) {
        let message = format!("file-systems has more than {MOST_FILE_SYSTEMS} paths");
        return Err(check.error(one, message));
    }
    let path = |path| check.path("file-systems", path, "\"/home\"");
    paths.iter().map(path).collect()
}

fn limits(check: Check, raw: &RawHealth) -> Result<Limits, ConfigError> {
    let default = Limits::default();
    let number = |key: &str, value: &Option<Spanned<i64>>, range, default: u32| {
        check
            .int(key, value, range, default.into())
            .map(|number| number as u32)
    };
    let time = |key: &str, value: &Option<Spanned<String>>, default: u32| {
        check
            .seconds(key, value)
            .map(|time| time.unwrap_or(default))
    };
    Ok(Limits {
        max_returns: number("returns", &raw.returns, 1..=1000, default.max_returns)?,
        returns_within_s: time(
            "returns-within",
            &raw.returns_within,
            default.returns_within_s,
        )?,
        attempts: number("attempts", &raw.attempts, 1..=100, default.attempts)?,
        auto_reset: raw.reset.unwrap_or(default.auto_reset),
        reset_timeout_s: time("reset-timeout", &raw.reset_timeout, default.reset_timeout_s)?,
        check_timeout_s: time("check-timeout", &raw.check_timeout, default.check_timeout_s)?,
        settle_s: time("settle", &raw.settle, default.settle_s)?,
        calm_s: time("calm", &raw.calm, default.calm_s)?,
        publish_burst: number(
            "publish-burst",
            &raw.publish_burst,
            1..=100,
            default.publish_burst,
        )?,
        publish_every_s: time("publish-every", &raw.publish_every, default.publish_every_s)?,
        publish_wait_s: time("publish-wait", &raw.publish_wait, default.publish_wait_s)?,
        publish_spread_ms: time(
            "publish-spread",
            &raw.publish_spread,
            default.publish_spread_ms / 1000,
        )?
        .saturating_mul(1000),
        retry_s: time("retry", &raw.retry, default.retry_s)?,
    })
}

/// Puts tables over rules that are known: one with a known name changes what it says, another is added.
pub(super) fn rules(
    check: Check,
    tables: &[Spanned<RawHealthRule>],
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
fn new(check: Check, table: &Spanned<RawHealthRule>, name: String) -> Result<Rule, ConfigError> {
    let raw = table.get_ref();
    let Some(signal) = signal(check, raw)? else {
        let message = format!(
            "there is no health rule {name} to change, and a new one needs xid =, recovery = or on =; \
             docs/health.md names all rules"
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

fn signal(check: Check, raw: &RawHealthRule) -> Result<Option<Signal>, ConfigError> {
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

fn over(check: Check, table: &Spanned<RawHealthRule>, rule: Rule) -> Result<Rule, ConfigError> {
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
