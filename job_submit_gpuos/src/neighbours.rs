//! Classes, levels and places that the options about other jobs name.

use gpuos_config::options::{JobOptions, placement_text};
use gpuos_placement::plan::Placement;
use gpuos_placement::rules::Rules;
use gpuos_placement::rules::Target;

use crate::messages::refused;
use crate::refusal::Refusal;

/// Refuses names that the cluster does not have. `levels` are those that a job can name, `any` last.
pub fn check(options: &JobOptions, rules: &Rules, levels: &[String]) -> Result<(), Refusal> {
    let known = || levels[..levels.len() - 1].join(", ");
    let level = |level: &str| level != "any" && levels.iter().any(|l| l == level);
    let class = options.class.as_ref();
    if let Some((name, known)) = class.and_then(|n| Some((n, rules.check_class(n).err()?))) {
        return Err(refused::no_class(name, known).into());
    }
    if let Some(wanted) = options.exclusive.as_ref().filter(|wanted| !level(wanted)) {
        return Err(refused::no_level_to_have(wanted, wanted, known()).into());
    }
    let Some(rule @ (Placement::Affinity(names) | Placement::AntiAffinity(names))) =
        &options.placement
    else {
        return Ok(());
    };
    for word in names {
        let given = || placement_text(rule);
        let error = match Target::of(word) {
            Target::Domain {
                level: Some(of), ..
            } if of != "rack" && !level(of) => {
                let levels = format!("one of {}", known());
                refused::no_level_to_be_near(given(), of, levels)
            }
            Target::Power(name) if !rules.power.iter().any(|p| p.name == name) => {
                let all: Vec<&str> = rules.power.iter().map(|p| p.name.as_str()).collect();
                let accepted = match all.is_empty() {
                    true => "no power=: gpuos.toml describes none".into(),
                    false => format!("one of {}", all.join(", ")),
                };
                refused::no_power_domain(given(), name, accepted)
            }
            _ => continue,
        };
        return Err(error.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuos_config::gpuos_toml::Config;

    fn said(toml: &str, name: &str, value: &str) -> Option<String> {
        let mut options = JobOptions::default();
        options.set(name, value).expect("an option");
        let config = Config::parse(toml, "gpuos.toml").expect("a configuration");
        let levels = ["nvlink", "node", "leaf", "any"].map(String::from);
        check(&options, config.rules(), &levels)
            .err()
            .map(|refusal| refusal.sentence)
    }

    #[test]
    fn names_that_the_cluster_lacks_are_refused() {
        let classes = "[[class]]\nname = \"io\"\n[[class]]\nname = \"train\"\n";
        let power = "[[power-domain]]\nname = \"pdu1\"\nnodes = \"n1\"\n";
        assert_eq!(said("", "gpuos-class", "free"), None);
        assert_eq!(said(classes, "gpuos-class", "IO"), None);
        assert_eq!(
            said(classes, "gpuos-class", "free").unwrap(),
            "--gpuos-class=free: this cluster has no such class; write one of io, train"
        );
        assert_eq!(said("", "gpuos-exclusive", "leaf"), None);
        assert_eq!(
            said("", "gpuos-exclusive", "spine").unwrap(),
            "--gpuos-exclusive=spine: this cluster has no level 'spine'; write one of nvlink, node, leaf"
        );
        for good in [
            "bob",
            "class=x",
            "leaf=l1",
            "switch=l1",
            "rack=r1",
            "power=pdu1",
        ] {
            assert_eq!(
                said(power, "gpuos-placement", &format!("affinity:{good}")),
                None
            );
        }
        assert_eq!(
            said("", "gpuos-placement", "anti-affinity:pod=p1").unwrap(),
            "--gpuos-placement=anti-affinity:pod=p1: this cluster has no level 'pod'; write class, power, switch \
             or one of nvlink, node, leaf"
        );
        assert_eq!(
            said(power, "gpuos-placement", "affinity:power=p").unwrap(),
            "--gpuos-placement=affinity:power=p: this cluster has no power domain 'p'; write one of pdu1"
        );
    }
}
