//! docs/admin/health.md has every rule as it is.

use gpuos_core::health::{Action, Cure, Gauge, JobsAre, NodeGauge, Rule, Rules, Signal};

const DOC: &str = include_str!("../../../docs/admin/health.md");

fn row(rule: &Rule) -> String {
    let counted = match rule.signal {
        Signal::Gauge(gauge) => gauge.is_counter(),
        Signal::Node(gauge) => {
            matches!(
                gauge,
                NodeGauge::MemoryCorrected | NodeGauge::MemoryUncorrected
            )
        }
        _ => rule.threshold > 1,
    };
    let flag = matches!(rule.signal, Signal::Gauge(gauge) if gauge.is_flag());
    let mut when = match (rule.signal, rule.threshold) {
        _ if flag => "set".to_string(),
        (Signal::Gauge(_) | Signal::Node(_), number) => format!("at {number}"),
        (_, 1) => "once".to_string(),
        (_, number) => format!("{number} times"),
    };
    if counted {
        when.push_str(&format!(" in {}", time(rule.within_s)));
    }
    if rule.hold_s > 0 {
        when.push_str(&format!(" for {}", time(rule.hold_s)));
    }
    let action = match rule.action {
        Action::Ignore => "ignore",
        Action::Warn => "warn",
        Action::Degrade => "degrade",
        Action::KillStep => "kill-step",
        Action::ResetWhenIdle => "reset-when-idle",
        Action::Requeue => "requeue",
        Action::DrainGpu => "drain-gpu",
        Action::DrainNode => "drain-node",
    };
    let jobs = match rule.jobs {
        _ if !matches!(rule.action, Action::DrainGpu | Action::DrainNode) => "",
        JobsAre::RunOut => "run-out",
        JobsAre::KillStep => "kill-step",
        JobsAre::Requeue => "requeue",
    };
    let node = matches!(rule.signal, Signal::Node(_));
    let then = match rule.cure {
        _ if node || !matches!(rule.action, Action::DrainGpu | Action::DrainNode) => "",
        Cure::Check => "check",
        Cure::Reset => "reset",
        Cure::Reboot => "reboot",
        Cure::Admin => "admin",
    };
    let (name, about, source) = (&rule.name, &rule.about, &rule.source);
    let source = source.replace(
        "NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), immediate action",
        "catalogue:",
    );
    format!("| `{name}` | {about} | {when} | {action} | {jobs} | {then} | {source} |")
}

fn time(seconds: u32) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

#[test]
fn every_rule_stands_in_the_document() {
    let rules = Rules::default();
    let rows: Vec<String> = rules.all().iter().map(row).collect();
    let missing: Vec<&String> = rows
        .iter()
        .filter(|row| !DOC.contains(row.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/admin/health.md lacks these rows:\n{}",
        rows.join("\n")
    );
    let stale = DOC
        .lines()
        .filter(|line| line.starts_with("| `xid-") && !rows.iter().any(|row| row == line));
    assert_eq!(stale.count(), 0);
    assert!(Gauge::EccCorrected.is_counter());
}
