//! `--gpuos-mig` at submission: which board and profiles serve it, and the GRES that Slurm counts.
//!
//! Pure, as [`crate::check`]: configuration and request go in, what to ask Slurm for comes out.

use std::fmt::Display;

use gpuos_config::gpuos_toml::MigConfig;
use gpuos_config::options::{Sources, parse_gres};
use gpuos_model::messages::Message;
use gpuos_model::mig::Geometry;
use gpuos_placement::mig::{MigRequest, Serves};
use slurm_ffi::release::Release;

use crate::messages::{notes, refused};
use crate::refusal::Refusal;
use crate::shape::Shape;

/// The GRES that counts memory slices.
const GRES: &str = "gpuos";

/// From here on Slurm writes `gres/gpu:1`, before it `gres:gpu:1`.
const GRES_WITH_SLASH: Release = Release::new(23, 11, 0);

/// What a job with `--gpuos-mig` gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// What it asks of Slurm for each node, with what it asked besides.
    pub per_node: String,
    /// For its user: board, profiles and slices.
    pub sentence: Message,
}

/// Chooses board and profiles for a request.
///
/// # Errors
/// No board of a pool serves it, the tasks of a node are not known, or the job asks for slices or whole nodes
/// besides.
pub fn choose(
    mig: &MigConfig,
    (request, sources): (&MigRequest, &Sources),
    shape: &Shape,
    release: Release,
) -> Result<Chosen, Refusal> {
    if names_slices(shape) {
        return Err(refused::slices_twice(request).into());
    }
    if shape.exclusive {
        return Err(refused::slices_of_whole_nodes(request).into());
    }
    let tasks = match request.per_task {
        true => tasks_of_node(shape).ok_or_else(|| refused::tasks_unknown(request))?,
        false => 1,
    };
    let served = mig.serve(request, tasks)?;
    let (serves, slices) = (served.serves, served.slices);
    let board = &mig.boards[served.board];
    Ok(Chosen {
        per_node: with_gres(
            shape.per_node.as_deref(),
            &format!("{GRES}:{}:{slices}", board.name),
            release,
        ),
        sentence: sentence(
            &sources.named("--gpuos-mig", &request.to_string()),
            request.per_task,
            &board.name,
            &board.geometry,
            &serves,
            tasks,
            slices,
        ),
    })
}

/// Refuses a change of what a job with slices, or with a share of a GPU, asks for on each node: Slurm would take them
/// away. `option` is the one that stands for them.
pub fn check_update(option: &str, request: &impl Display, update: &Shape) -> Result<(), Refusal> {
    if update.gres_forms().next().is_none() {
        return Ok(());
    }
    Err(refused::gres_stay(request, option).into())
}

/// Tasks of each node, where the request says it.
pub fn tasks_of_node(shape: &Shape) -> Option<u32> {
    let one_node = shape.min_nodes <= 1 && shape.max_nodes == 1;
    match (shape.tasks, shape.tasks_per_node) {
        // Before the number of tasks, which sbatch of later releases makes that of the nodes then.
        (_, per_node @ 1..) => Some(per_node),
        // As many nodes as tasks, or a single task.
        (tasks, _) if tasks <= shape.min_nodes.max(1) => Some(1),
        (tasks, _) if one_node => Some(tasks),
        _ => None,
    }
}

/// Whether the job names GRES gpuos itself. What cannot be read Slurm refuses.
fn names_slices(shape: &Shape) -> bool {
    shape.gres_forms().any(|text| {
        let parsed = parse_gres("gres", text).unwrap_or_default();
        parsed.iter().any(|gres| gres.name == GRES)
    })
}

/// What a job asks of a node, as Slurm writes it, with a GRES (`gpuos:h100-80gb:4`) added.
pub fn with_gres(per_node: Option<&str>, gres: &str, release: Release) -> String {
    let mark = if release >= GRES_WITH_SLASH { '/' } else { ':' };
    let own = format!("gres{mark}{gres}");
    match per_node {
        Some(asked) => format!("{asked},{own}"),
        None => own,
    }
}

/// `gpuos: --gpuos-mig=10G: 1g.20gb of h100-80gb on each node, 2 memory slices`
fn sentence(
    named: &str,
    per_task: bool,
    board: &str,
    geometry: &Geometry,
    serves: &Serves,
    tasks: u32,
    slices: u64,
) -> Message {
    let kinds: Vec<String> = serves
        .iter()
        .map(|&(profile, count)| {
            let name = &geometry.profiles()[profile].name;
            match count {
                1 => name.clone(),
                count => format!("{count} x {name}"),
            }
        })
        .collect();
    let kinds = kinds.join(" and ");
    let slices = match slices {
        1 => "1 memory slice".to_string(),
        many => format!("{many} memory slices"),
    };
    match per_task {
        true => notes::slices_of_tasks(named, kinds, board, slices, tasks),
        false => notes::slices(named, kinds, board, slices),
    }
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;
    use gpuos_config::options::parse_mig;

    use super::*;

    const BOARDS: &str = r#"
[[mig.board]]
name = "a30-24gb"
profiles = [
  { id = 14, name = "1g.6gb", compute = 1, memory-mib = 5952, most = 4, size = 1, starts = [0, 1, 2, 3] },
  { id = 5, name = "2g.12gb", compute = 2, memory-mib = 11968, most = 2, size = 2, starts = [0, 2] },
  { id = 0, name = "4g.24gb", compute = 4, memory-mib = 24000, most = 1, size = 4, starts = [0] },
]
[[mig.board]]
name = "h100-80gb"
profiles = [
  { id = 19, name = "1g.10gb", compute = 1, memory-mib = 9856, most = 7, size = 1, starts = [0, 1, 2, 3, 4, 5, 6] },
  { id = 9, name = "3g.40gb", compute = 3, memory-mib = 40192, most = 2, size = 4, starts = [0, 4] },
  { id = 0, name = "7g.80gb", compute = 7, memory-mib = 80896, most = 1, size = 8, starts = [0] },
]
"#;
    const POOLS: &str = r#"
[[mig.pool]]
nodes = "n[1-2]"
gpus = "4-5"
board = "h100-80gb"
[[mig.pool]]
nodes = "n3"
gpus = "0"
board = "a30-24gb"
"#;
    const NEW: Release = Release::new(24, 11, 5);

    fn config(text: &str) -> MigConfig {
        Config::parse(text, "gpuos.toml").unwrap().mig
    }

    fn choose_in(text: &str, request: &str, shape: &Shape) -> Result<Chosen, String> {
        let request = parse_mig(request).unwrap();
        let plain = Sources::default();
        choose(&config(text), (&request, &plain), shape, NEW).map_err(|refusal| refusal.sentence)
    }

    fn of(request: &str, shape: &Shape) -> Result<Chosen, String> {
        choose_in(&format!("{BOARDS}{POOLS}"), request, shape)
    }

    fn gres(request: &str, shape: &Shape) -> String {
        of(request, shape).unwrap().per_node
    }

    #[test]
    fn a_request_becomes_slices_of_one_board() {
        let plain = Shape::default();
        assert_eq!(gres("1g.10gb:2,3g.40gb", &plain), "gres/gpuos:h100-80gb:6");
        // Both boards have it: that of more GPUs is taken, though its profile is larger.
        assert_eq!(gres("5G", &plain), "gres/gpuos:h100-80gb:1");
        assert_eq!(gres("2g.12gb", &plain), "gres/gpuos:a30-24gb:2");
        assert_eq!(gres("1/2", &plain), "gres/gpuos:h100-80gb:4");
        assert_eq!(
            of("1g.10gb:2,3g.40gb", &plain).unwrap().sentence,
            "gpuos: --gpuos-mig=1g.10gb:2,3g.40gb: 3g.40gb and 2 x 1g.10gb of h100-80gb on each node, 6 memory slices"
        );
    }

    #[test]
    fn what_the_job_asks_besides_is_kept() {
        let both = Shape {
            per_node: Some("gres/gpu:1,gres/shard:2".into()),
            ..Shape::default()
        };
        assert_eq!(
            gres("3g.40gb", &both),
            "gres/gpu:1,gres/shard:2,gres/gpuos:h100-80gb:4"
        );
        let old = with_gres(Some("gres:gpu:1"), "gpuos:a:4", Release::new(22, 5, 8));
        assert_eq!(old, "gres:gpu:1,gres:gpuos:a:4");
        let old = with_gres(None, "gpuos:a:4", Release::new(23, 2, 8));
        assert_eq!(old, "gres:gpuos:a:4");
    }

    #[test]
    fn each_task_gets_its_own() {
        let tasks = |tasks, per_node, nodes: (u32, u32)| Shape {
            tasks,
            tasks_per_node: per_node,
            min_nodes: nodes.0,
            max_nodes: nodes.1,
            ..Shape::default()
        };
        let request = "1g.10gb:per-task";
        let slices = |shape: &Shape| gres(request, shape);
        let three = "gres/gpuos:h100-80gb:3";
        assert_eq!(slices(&tasks(2, 3, (2, 2))), three);
        assert_eq!(slices(&tasks(0, 3, (2, 2))), three);
        assert_eq!(slices(&tasks(6, 3, (2, 2))), three);
        assert_eq!(slices(&tasks(3, 0, (1, 1))), three);
        for alone in [Shape::default(), tasks(1, 0, (1, 0)), tasks(4, 0, (4, 4))] {
            assert_eq!(slices(&alone), "gres/gpuos:h100-80gb:1");
        }
        for open in [tasks(3, 0, (1, 0)), tasks(6, 0, (2, 2))] {
            let why = of(request, &open).unwrap_err();
            assert!(why.contains("--ntasks-per-node=N"), "{why}");
        }
        let much = of("3g.40gb:per-task", &tasks(5, 0, (1, 1))).unwrap_err();
        assert!(much.contains("no node has so many at once"), "{much}");
        let said = of(request, &tasks(3, 0, (1, 1))).unwrap().sentence;
        assert!(
            said.ends_with(
                "1g.10gb of h100-80gb for each task, 3 memory slices for the 3 of a node"
            ),
            "{said}"
        );
    }

    #[test]
    fn refusals_name_what_there_is() {
        let plain = Shape::default();
        let why = of("2g.20gb", &plain).unwrap_err();
        assert!(
            why.contains("--gpuos-mig=2g.20gb: no GPU here has a profile 2g.20gb")
                && why.contains("1g.10gb, 3g.40gb, 7g.80gb")
                && why.contains("1g.6gb, 2g.12gb, 4g.24gb"),
            "{why}"
        );
        // A board without a pool does not count.
        let (_, last) = POOLS.split_at(POOLS.rfind("[[").unwrap());
        let why = choose_in(&format!("{BOARDS}{last}"), "3g.40gb", &plain).unwrap_err();
        assert!(!why.contains("7g.80gb") && why.contains("4g.24gb"), "{why}");
        let why = choose_in("", "3g.40gb", &plain).unwrap_err();
        assert!(
            why.contains("no GPU of this cluster is in MIG mode"),
            "{why}"
        );
        let why = of("3g.40gb,2g.12gb", &plain).unwrap_err();
        assert!(why.contains("no kind of GPU has all of them"), "{why}");
        let exclusive = Shape {
            exclusive: true,
            ..Shape::default()
        };
        assert!(
            of("3g.40gb", &exclusive)
                .unwrap_err()
                .contains("--exclusive")
        );
        for text in ["gres/gpuos:h100-80gb:4", "gres/gpu:1,gres:gpuos"] {
            let own = Shape {
                per_node: Some(text.into()),
                ..Shape::default()
            };
            let why = of("3g.40gb", &own).unwrap_err();
            assert!(
                why.contains("as well") && why.contains("one of the two"),
                "{why}"
            );
        }
    }

    #[test]
    fn more_gpus_than_are_steered_do_not_count() {
        let wide = POOLS.replace("4-5", "0-15");
        let text = format!("{BOARDS}{wide}");
        let plain = Shape::default();
        assert!(choose_in(&text, "7g.80gb:8", &plain).is_ok());
        assert!(choose_in(&text, "7g.80gb:9", &plain).is_err());
    }

    #[test]
    fn an_update_may_not_take_slices_away() {
        let request = parse_mig("3g.40gb").unwrap();
        let nodes = Shape {
            min_nodes: 2,
            ..Shape::default()
        };
        assert_eq!(check_update("--gpuos-mig", &request, &nodes), Ok(()));
        let gres = Shape {
            per_node: Some("gres/gpu:1".into()),
            ..Shape::default()
        };
        let why = check_update("--gpuos-mig", &request, &gres)
            .unwrap_err()
            .sentence;
        assert!(why.contains("submit it anew"), "{why}");
    }
}
