//! What the user of a job that is taken is told: what of it is ignored, or means something else than it seems to.
//!
//! Said of what a user gave himself. Defaults of the environment are for all of his jobs, and are silent where they mean
//! nothing. Pure, as [`crate::check`].

use gpuos_config::access::used;
use gpuos_config::options::{JobOptions, Source, Sources, parse_gres, placement_text};
use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_model::messages::Message;
use gpuos_placement::mig::{MigRequest, Want};
use gpuos_placement::plan::Placement;
use gpuos_placement::rules::Rules;
use gpuos_placement::rules::Target;

use crate::messages::notes;
use crate::shape::Shape;

/// Says which of some words name no job that runs or waits; `None` where that cannot be said.
pub type Unnamed<'a> = dyn Fn(&[Target<'_>]) -> Option<Vec<bool>> + 'a;

/// What a job asks for of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// Nothing.
    None,
    /// Slices or shards.
    Parts,
    /// Whole ones, or what cannot be read.
    Whole,
}

/// What a job's `--gres` and its kin ask for. Whole nodes may come with GPUs that nobody named.
pub fn gpus(shape: &Shape) -> Gpus {
    if shape.exclusive {
        return Gpus::Whole;
    }
    let mut gpus = Gpus::None;
    for text in shape.gres_forms() {
        let Ok(list) = parse_gres("gres", text) else {
            return Gpus::Whole;
        };
        for gres in list {
            match gres.name.as_str() {
                "gpu" => return Gpus::Whole,
                "gpuos" | "shard" | "mps" => gpus = Gpus::Parts,
                _ => {}
            }
        }
    }
    gpus
}

/// Options that are about GPUs; those that are about whole ones only come last.
const ABOUT_GPUS: [&str; 10] = [
    "gpuos-topology",
    "gpuos-placement",
    "gpuos-shape",
    "gpuos-profile",
    "gpuos-exclusive",
    "gpuos-power",
    "gpuos-clocks",
    "gpuos-watch",
    "gpuos-mps",
    "gpuos-mem",
];
const ABOUT_WHOLE: &[&str] = ABOUT_GPUS.split_at(5).1;

/// Takes defaults of the environment that are about GPUs out of a job without any.
pub fn silence(options: &mut JobOptions, sources: &Sources, shape: &Shape) {
    if gpus(shape) != Gpus::None || options.mig.is_some() || options.share.is_some() {
        return;
    }
    let default = |name: &&str| sources.of(name) == Source::Environment;
    for name in ABOUT_GPUS.into_iter().filter(default) {
        // Every option takes it.
        let _ = options.set(name, "off");
    }
}

/// `--gpuos-power=300W and #SBATCH --gpuos-watch=5`, of those of the names that the user gave himself.
fn own_options(options: &JobOptions, sources: &Sources, names: &[&str]) -> Vec<String> {
    let all = used(options).into_iter();
    let given = all.filter(|(name, _)| names.contains(name));
    let named = given.filter_map(|(name, value)| {
        let own = sources.of(name) != Source::Environment;
        own.then(|| sources.named(&format!("--{name}"), &value))
    });
    named.collect()
}

fn are_ignored(list: &[String], why: &Message) -> Option<Message> {
    let verb = if list.len() == 1 { "is" } else { "are" };
    (!list.is_empty()).then(|| notes::are_ignored(list.join(", "), verb, why))
}

/// What a job's own words mean together.
pub fn of_job(options: &JobOptions, sources: &Sources, shape: &Shape) -> Vec<Message> {
    let gpus = gpus(shape);
    let mut notes = Vec::new();
    match (gpus, &options.mig, options.share) {
        (Gpus::None, None, None) => {
            let list = own_options(options, sources, &ABOUT_GPUS);
            notes.extend(are_ignored(&list, &notes::no_gpus()));
        }
        (Gpus::None, Some(_), _) => {
            let list = own_options(options, sources, ABOUT_WHOLE);
            notes.extend(are_ignored(&list, &notes::about_whole_gpus()));
        }
        _ => {}
    }
    if let Some(request) = &options.mig {
        let own = || sources.named("--gpuos-mig", &request.to_string());
        notes.extend(several(own, request, shape));
        if gpus == Gpus::Whole {
            notes.push(notes::slices_beside_gpus(own()));
        }
    }
    notes
}

/// Slices of which a process would use but one, and what to write instead.
fn several(own: impl Fn() -> String, request: &MigRequest, shape: &Shape) -> Option<Message> {
    let count: u32 = request.items.iter().map(|item| u32::from(item.count)).sum();
    let tasks = crate::mig::tasks_of_node(shape)?;
    if count < 2 || (!request.per_task && tasks != 1) {
        return None;
    }
    let whose = if request.per_task {
        "each task"
    } else {
        "the one task of a node"
    };
    let next = match &request.items[..] {
        [item] => {
            let one = MigRequest {
                items: vec![gpuos_placement::mig::Item {
                    count: 1,
                    ..item.clone()
                }],
                per_task: true,
            };
            let tasks = u64::from(count) * u64::from(tasks);
            let bytes = match item.want {
                Want::Bytes(_) => ", or more memory in one slice",
                _ => "",
            };
            notes::a_slice_each(one, tasks, bytes)
        }
        _ => notes::a_process_each(),
    };
    Some(notes::several_slices(own(), whose, count, next))
}

/// Levels of which no domain has GPUs.
pub fn of_levels(options: &JobOptions, sources: &Sources, cluster: &Cluster) -> Vec<Message> {
    let has_none = |level: &str| {
        let known = cluster.fabric.levels.iter().find(|one| one.name == level);
        known.is_some_and(|level| {
            let domains = level.domain_of.iter().zip(&cluster.nodes);
            !domains.into_iter().any(|(domain, node)| {
                *domain != NO_DOMAIN && node.node_type.as_ref().is_some_and(|t| t.gpus > 0)
            })
        })
    };
    let note = |name: &str, level: Option<&String>, means: &str| {
        let level = level.filter(|level| has_none(level))?;
        let given = own_options(options, sources, &[name]);
        Some(notes::level_without_gpus(given.first()?, means, level))
    };
    let topology = options.topology.as_ref().map(|wish| &wish.level);
    let exclusive = options.exclusive.as_ref();
    let notes = [
        note("gpuos-topology", topology, "is ignored"),
        // Nodes outside of all domains of a level are one each.
        note("gpuos-exclusive", exclusive, "means nodes"),
    ];
    notes.into_iter().flatten().collect()
}

/// Names in an affinity rule that nobody has.
pub fn of_neighbours(
    options: &JobOptions,
    sources: &Sources,
    (rules, cluster): (&Rules, &Cluster),
    unnamed: &Unnamed<'_>,
) -> Vec<Message> {
    let Some(rule @ (Placement::Affinity(words) | Placement::AntiAffinity(words))) =
        &options.placement
    else {
        return Vec::new();
    };
    if sources.of("gpuos-placement") == Source::Environment {
        return Vec::new();
    }
    let mut nobody = Vec::new();
    let mut asked = Vec::new();
    for target in words.iter().map(|word| Target::of(word)) {
        match target {
            Target::Domain { level, name } if !has_domain(cluster, level, name) => {
                let what = level.unwrap_or("switch");
                nobody.push(format!("no {what} is called {name}"));
            }
            Target::Domain { .. } | Target::Power(_) => {}
            Target::Class(name) if !rules.classes.is_empty() => {
                if rules.check_class(name).is_err() {
                    nobody.push(format!("gpuos.toml describes no class {name}"));
                }
            }
            Target::Job(_) | Target::Class(_) => asked.push(target),
        }
    }
    let unnamed = match asked.is_empty() {
        true => None,
        false => unnamed(&asked),
    };
    for (target, nobody_has) in asked.iter().zip(unnamed.unwrap_or_default()) {
        match target {
            Target::Job(name) if nobody_has => nobody.push(format!(
                "no job that runs or waits has the name, number or user {name} (by number, where Slurm's records have no name of a user)"
            )),
            Target::Class(name) if nobody_has => {
                nobody.push(format!("no job that runs or waits is of class {name}"));
            }
            _ => {}
        }
    }
    let named = sources.named("--gpuos-placement", &placement_text(rule));
    let said = nobody.join(", ");
    let note = || notes::nobody_is_named(named, said);
    (!nobody.is_empty()).then(note).into_iter().collect()
}

/// Whether there is such a node, or domain of a level; what is no level means all of them.
fn has_domain(cluster: &Cluster, level: Option<&str>, name: &str) -> bool {
    let node = || cluster.nodes.iter().any(|node| node.name == name);
    let levels = &cluster.fabric.levels;
    let one = level.and_then(|level| levels.iter().find(|of| of.name == level));
    match (one, level) {
        (Some(level), _) => level.domains.iter().any(|domain| domain == name),
        (None, Some("node")) => node(),
        (None, _) => {
            node()
                || levels
                    .iter()
                    .any(|level| level.domains.iter().any(|d| d == name))
        }
    }
}

#[cfg(test)]
#[path = "notes_tests.rs"]
mod tests;
