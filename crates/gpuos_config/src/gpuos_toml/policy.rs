//! `[policy]` and `[[policy.rule]]`: what holds for jobs that say nothing themselves.
use gpuos_model::reading::{Check, ConfigError, quoted};
use gpuos_placement::cost::{OBJECTIVES, Objectives};
use gpuos_placement::plan::{Placement, TopologyRequest};
use toml::Spanned;

use super::raw::{RawObjectives, RawPolicy, RawPolicyRule};
use crate::options::{OptionError, placement_of, topology_of};

/// The most `[[policy.rule]]` tables.
const MAX_RULES: usize = 256;

/// `[policy]`: what holds for jobs that say nothing themselves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// Rule among equally close places.
    pub placement: Placement,
    /// Preferred closeness; never required, so that no job waits for what it did not ask for.
    pub topology: Option<TopologyRequest>,
    /// What is weighed; `None` = nothing was said, and no node type is preferred.
    pub objectives: Option<Objectives>,
    /// What holds instead in a partition or for a QOS, in the order of the file.
    pub rules: Vec<PolicyRule>,
}

/// `[[policy.rule]]`: another policy for a partition, a QOS, or both together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PolicyRule {
    /// Partition that it is for; any when absent.
    pub partition: Option<String>,
    /// QOS that it is for; any when absent.
    pub qos: Option<String>,
    /// Instead of [`Policy::placement`].
    pub placement: Option<Placement>,
    /// Instead of [`Policy::topology`].
    pub topology: Option<TopologyRequest>,
    /// Instead of [`Policy::objectives`].
    pub objectives: Option<Objectives>,
}

impl Policy {
    /// The rules for a job, the one that counts first: in the order of the file.
    fn rules_for<'a>(
        &'a self,
        partition: &'a str,
        qos: &'a str,
    ) -> impl Iterator<Item = &'a PolicyRule> {
        let is = |name: &Option<String>, job: &str| name.as_ref().is_none_or(|name| name == job);
        let rules = self.rules.iter();
        rules.filter(move |rule| is(&rule.partition, partition) && is(&rule.qos, qos))
    }

    /// Whether anything is weighed for jobs of some partition or QOS.
    pub fn weighs(&self) -> bool {
        let mut rules = self.rules.iter();
        self.objectives.is_some() || rules.any(|rule| rule.objectives.is_some())
    }

    /// What is weighed for a job of a partition and a QOS (empty when it has none).
    pub fn objectives_for(&self, partition: &str, qos: &str) -> Option<Objectives> {
        let mut rules = self.rules_for(partition, qos);
        let own = rules.find_map(|rule| rule.objectives);
        own.or(self.objectives)
    }

    /// The placement rule for a job of a partition and a QOS.
    pub fn placement_for<'a>(&'a self, partition: &'a str, qos: &'a str) -> &'a Placement {
        let mut rules = self.rules_for(partition, qos);
        let own = rules.find_map(|rule| rule.placement.as_ref());
        own.unwrap_or(&self.placement)
    }

    /// The preferred closeness for a job of a partition and a QOS.
    pub fn topology_for<'a>(
        &'a self,
        partition: &'a str,
        qos: &'a str,
    ) -> Option<&'a TopologyRequest> {
        let mut rules = self.rules_for(partition, qos);
        let own = rules.find_map(|rule| rule.topology.as_ref());
        own.or(self.topology.as_ref())
    }

    pub(super) fn read(check: Check, raw: &RawPolicy) -> Result<Policy, ConfigError> {
        let mut policy = Policy {
            placement: placement(check, &raw.placement)?.unwrap_or_default(),
            topology: topology(check, &raw.topology)?,
            objectives: objectives(check, &raw.objectives)?,
            rules: Vec::new(),
        };
        for table in &raw.rule {
            if policy.rules.len() == MAX_RULES {
                let message = format!("more than {MAX_RULES} [[policy.rule]]");
                return Err(check.error(table, message));
            }
            let rule = rule(check, table)?;
            let same =
                |other: &PolicyRule| (&other.partition, &other.qos) == (&rule.partition, &rule.qos);
            if policy.rules.iter().any(same) {
                let message = "another [[policy.rule]] is for the same jobs; write both as one";
                return Err(check.error(table, message));
            }
            policy.rules.push(rule);
        }
        Ok(policy)
    }
}

fn rule(check: Check, table: &Spanned<RawPolicyRule>) -> Result<PolicyRule, ConfigError> {
    let raw = table.get_ref();
    let name = |key: &str, value: &Option<Spanned<String>>| match value {
        Some(value) => check.name(key, value).map(Some),
        None => Ok(None),
    };
    let rule = PolicyRule {
        partition: name("partition", &raw.partition)?,
        qos: name("qos", &raw.qos)?,
        placement: placement(check, &raw.placement)?,
        topology: topology(check, &raw.topology)?,
        objectives: objectives(check, &raw.objectives)?,
    };
    if rule.partition.is_none() && rule.qos.is_none() {
        let message = "[[policy.rule]] is for all jobs; add partition = or qos =, or write its keys \
                       into [policy]";
        return Err(check.error(table, message));
    }
    Ok(rule)
}

fn placement(
    check: Check,
    value: &Option<Spanned<String>>,
) -> Result<Option<Placement>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let placement = placement_of("placement", value.get_ref()).map_err(at(check, value))?;
    if let Placement::Affinity(_) | Placement::AntiAffinity(_) = placement {
        let form = "\"default\", \"best-fit\", \"frag\", \"backfill\", \"pack\", \"spread\" or \"first-fit\"; affinity is for single jobs";
        return Err(check.refuse("placement", value, quoted(value.get_ref()), form));
    }
    Ok(Some(placement))
}

fn topology(
    check: Check,
    value: &Option<Spanned<String>>,
) -> Result<Option<TopologyRequest>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let wish = topology_of("topology", value.get_ref()).map_err(at(check, value))?;
    if wish.required {
        let form = format!(
            "{}; only a job itself can require a level",
            quoted(&wish.level)
        );
        return Err(check.refuse("topology", value, quoted(value.get_ref()), form));
    }
    Ok(Some(wish))
}

/// Weights that do not add up contradict each other: which of them is meant cannot be known.
fn objectives(
    check: Check,
    value: &Option<Spanned<RawObjectives>>,
) -> Result<Option<Objectives>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let raw = value.get_ref();
    let weights = [
        raw.throughput,
        raw.latency,
        raw.energy,
        raw.cost,
        raw.fairness,
    ];
    let weights = weights.map(|weight| weight.unwrap_or(0));
    Objectives::new(weights).map(Some).map_err(|sum| {
        let given = weights.iter().zip(OBJECTIVES).filter(|(weight, _)| **weight != 0);
        let given: Vec<String> = given.map(|(w, (word, _))| format!("{word} {w}")).collect();
        let given = match given.is_empty() {
            true => "nothing".into(),
            false => given.join(", "),
        };
        check.error(
            value,
            format!(
                "the weights of objectives contradict each other: {given} make {sum}; write percent \
                 from 0 to 100 that add up to 100"
            ),
        )
    })
}

fn at<'a, T>(
    check: Check<'a>,
    value: &Spanned<T>,
) -> impl Fn(OptionError) -> ConfigError + use<'a, T> {
    let place = check.place(value);
    move |error| place.error(check.source.file, error.to_string())
}
