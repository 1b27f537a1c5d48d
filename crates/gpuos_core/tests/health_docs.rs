//! docs/reference/health-rules.md has every rule as it is.

use gpuos_core::health::{Action, Cure, JobsAre, NodeGauge, Rule, Rules, Signal};

use crate::page;

const HEAD: &str = "\
# Health rules

Which fault leads to what, unless gpuos.toml says otherwise ([how rules are changed](../admin/health.md#changing-rules)). \"Catalogue\" is
the immediate action in [NVIDIA's Xid catalogue](https://docs.nvidia.com/deploy/xid-errors/), as NVIDIA's
[NVSentinel](https://github.com/NVIDIA/NVSentinel) lists it by number; where gpuos does otherwise the source says so. An empty field does
not apply. This page is made of the table in the code by `make reference`.

| rule | what happened | when | action | jobs | then | source |
| --- | --- | --- | --- | --- | --- | --- |
";

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
fn the_page_has_every_rule_as_it_is() {
    let rules = Rules::default();
    let rows = rules.all().iter().map(|rule| row(rule) + "\n");
    page::hold(
        "reference/health-rules.md",
        &(HEAD.to_string() + &rows.collect::<String>()),
        "make reference",
    );
}
