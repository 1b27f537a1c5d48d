//! `--gpuos-share` at submission: the shards that Slurm counts, and what its user is told of the isolation.
//!
//! Both ways are counted in GRES `shard`, so that jobs of either kind can stand on one GPU, and a GPU has one
//! count: whole GPUs are given by GRES `gpu`, and Slurm gives none of which a shard is in use.

use gpuos_config::access::used;
use gpuos_config::options::{JobOptions, Sources, parse_gres};
use gpuos_core::limits::Share;
use gpuos_model::messages::Message;
use slurm_ffi::release::Release;

use crate::messages::{impossible, notes, refused};
use crate::mig::{Chosen, with_gres};
use crate::refusal::Refusal;
use crate::shape::Shape;

/// The GRES that counts parts of GPUs.
const GRES: &str = "shard";

/// From this release on Slurm knows that a GPU is shared until the last of its jobs has ended.
const SHARED_TO_THE_LAST: Release = Release::new(23, 11, 5);

/// Why no GPU can be shared with this Slurm and `SelectType`; an unknown one is not held against it.
pub fn impossible(release: Release, select_type: Option<&str>) -> Option<Message> {
    let other =
        select_type.filter(|name| *name != "select/gpuos" && release < SHARED_TO_THE_LAST)?;
    Some(impossible::not_shared(release, other, SHARED_TO_THE_LAST))
}

/// Turns a share of a GPU into shards, of which no GPU of the cluster has more than `of_gpu`. `turns`: jobs that share a GPU in turns with its
/// memory at most, 0 where jobs cannot. Such a job counts as so many shards that no more of them stand on a GPU.
///
/// # Errors
/// The cluster has no shards, or not as many on one GPU; the job asks for something that does not go with a
/// part of a GPU, or shares one in another way than the site has it.
pub fn choose(
    (of_gpu, turns): (u64, u32),
    share: Share,
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
    release: Release,
) -> Result<Chosen, Refusal> {
    if let Some((beside, why, undo)) = does_not_go_with((options, sources), shape) {
        return Err(refused::share_goes_not_with(share, beside, why, undo).into());
    }
    if of_gpu == 0 {
        return Err(refused::no_shards(share).into());
    }
    let in_turns = share.in_turns_mib().is_some();
    if in_turns != (turns > 0) {
        let why = match in_turns {
            true => refused::turns_are_off(share),
            false => refused::share_without_memory(share),
        };
        return Err(why.into());
    }
    let shards = match share {
        Share::TimeSlice { shards, mib, .. } => {
            let least = mib.map_or(0, |_| of_gpu.div_ceil(turns.into()));
            u64::from(shards).max(least)
        }
        Share::Mps { percent } => (of_gpu * u64::from(percent)).div_ceil(100),
    };
    if shards > of_gpu {
        return Err(refused::too_many_shards(share, of_gpu).into());
    }
    Ok(Chosen {
        per_node: with_gres(
            shape.per_node.as_deref(),
            &format!("{GRES}:{shards}"),
            release,
        ),
        sentence: sentence(
            &sources.named("--gpuos-share", &share.to_string()),
            share,
            (shards, of_gpu),
        ),
    })
}

/// Adds NVMe for what is parked, in the GRES in which Slurm counts it, where a job has asked for that.
///
/// # Errors
/// The job names that GRES itself, or the site has none.
pub fn with_nvme(
    chosen: Chosen,
    (share, gres): (Share, Option<&str>),
    shape: &Shape,
    release: Release,
) -> Result<Chosen, Refusal> {
    let gib = share.nvme_gib();
    let gres = match (gres, gib) {
        (Some(gres), _) if share.in_turns_mib().is_some() => gres,
        (_, 0) => return Ok(chosen),
        _ => return Err(refused::nvme_is_not_counted(share).into()),
    };
    let named = |text: &str| {
        let asked = parse_gres("gres", text).unwrap_or_default();
        asked.iter().any(|it| it.name == gres)
    };
    if shape.gres_forms().any(named) {
        let (beside, undo) = (format!("GRES {gres}"), "park=nvme asks for it".to_owned());
        let why = "which is for what is parked";
        return Err(refused::share_goes_not_with(share, beside, why, undo).into());
    }
    if gib == 0 {
        return Ok(chosen);
    }
    let per_node = with_gres(Some(&chosen.per_node), &format!("{gres}:{gib}"), release);
    Ok(Chosen { per_node, ..chosen })
}

/// Whether a job asks for shards by their name, where all that share a GPU have to say how much of its memory they need.
pub fn by_name(shape: &Shape) -> Result<(), Refusal> {
    let named = shape.gres_forms().find(|text| {
        // What cannot be read Slurm refuses.
        let gres = parse_gres("gres", text).unwrap_or_default();
        let mut names = gres.iter().map(|gres| gres.name.as_str());
        names.any(|name| ["shard", "mps"].contains(&name))
    });
    match named {
        Some(text) => Err(refused::shards_by_name(text).into()),
        None => Ok(()),
    }
}

/// What of a job does not go with a share of a GPU, why, and how one of the two is undone.
pub fn does_not_go_with(
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
) -> Option<(String, &'static str, String)> {
    let undo = |name: &str| format!("--gpuos-{name}=off undoes the option");
    let whole = "which takes whole GPUs";
    // What cannot be read Slurm refuses.
    let asked = shape.gres_forms();
    let mut asked = asked.flat_map(|text| parse_gres("gres", text).unwrap_or_default());
    let gres = asked.find(|gres| ["gpu", "gpuos", "shard", "mps"].contains(&gres.name.as_str()));
    if let Some(gres) = gres {
        let why = match gres.name.as_str() {
            "gpu" => "for Slurm gives a job whole GPUs or parts of one",
            "gpuos" => "which counts slices",
            _ => "which it stands for",
        };
        return Some((format!("GRES {}", gres.name), why, undo("share")));
    }
    if shape.exclusive {
        return Some(("--exclusive".into(), whole, undo("share")));
    }
    let others = "for others on the GPU would have it too";
    let all = [
        ("mig", "which gives slices of its own"),
        ("mps", whole),
        ("power", others),
        ("clocks", others),
        ("mem", "for whole GPUs alone have it"),
    ];
    let used = used(options);
    all.into_iter().find_map(|(short, why)| {
        let name = format!("gpuos-{short}");
        let (_, value) = used.iter().find(|(used, _)| *used == name)?;
        let named = sources.named(&format!("--{name}"), value);
        Some((named, why, undo(short)))
    })
}

/// What was chosen, and what it keeps apart.
fn sentence(named: &str, share: Share, (shards, of_gpu): (u64, u64)) -> Message {
    let (threads, isolation) = match share {
        Share::TimeSlice { nvme: true, .. } => (
            String::new(),
            "memory: as much of the GPU's as mem= says while it is its turn, address spaces of its own; faults: its own; time: in turns, and what \
             it has on the GPU is parked on NVMe while others have theirs",
        ),
        Share::TimeSlice { mib: Some(_), .. } => (
            String::new(),
            "memory: as much of the GPU's as mem= says while it is its turn, address spaces of its own; faults: its own; time: in turns, and what \
             it has on the GPU is parked in the host's memory while others have theirs",
        ),
        Share::TimeSlice { .. } => (
            String::new(),
            "memory: no limit, address spaces of its own; faults: its own; time: in turns with others on the GPU",
        ),
        Share::Mps { percent } => (
            format!(" and {percent}% of its threads"),
            "memory: a limit that its programs can lift, address spaces of its own; faults: one of your programs may \
             end all of yours on the GPU; time: beside yours, in turns with others",
        ),
    };
    notes::share(named, shards, of_gpu, threads, isolation)
}

#[cfg(test)]
mod tests {
    use gpuos_config::options::parse_share;

    use super::*;

    const OLD: Release = Release::new(22, 5, 8);
    const NEW: Release = Release::new(24, 11, 5);

    fn said(list: &[(&str, &str)]) -> JobOptions {
        let mut options = JobOptions::default();
        for (name, value) in list {
            options.set(&format!("gpuos-{name}"), value).unwrap();
        }
        options
    }

    fn of(of_gpu: u64, share: &str, shape: &Shape, options: &JobOptions) -> Result<Chosen, String> {
        let share = parse_share(share).unwrap();
        let turns = share.in_turns_mib().map_or(0, |_| 2);
        choose(
            (of_gpu, turns),
            share,
            (options, &Sources::default()),
            shape,
            NEW,
        )
        .map_err(|refusal| refusal.sentence)
    }

    #[test]
    fn an_old_slurm_shares_gpus_with_gpuos_only() {
        let (old, new) = (Release::new(23, 11, 4), Release::new(23, 11, 5));
        let why = impossible(old, Some("select/cons_tres")).unwrap();
        assert!(
            why.starts_with("Slurm 23.11.4 with SelectType=select/cons_tres gives a shared GPU"),
            "{why}"
        );
        assert_eq!(impossible(old, Some("select/gpuos")), None);
        assert_eq!(impossible(old, None), None);
        assert_eq!(impossible(new, Some("select/cons_tres")), None);
    }

    #[test]
    fn a_share_becomes_shards() {
        let (plain, none) = (Shape::default(), JobOptions::default());
        let shards = |of_gpu, share| of(of_gpu, share, &plain, &none).unwrap().per_node;
        assert_eq!(shards(4, "timeslice"), "gres/shard:1");
        assert_eq!(shards(4, "timeslice:4"), "gres/shard:4");
        // Never less than was asked for, and never nothing.
        for (of_gpu, share, count) in [
            (4, "mps:25%", 1),
            (4, "mps:26%", 2),
            (4, "mps:1%", 1),
            (4, "mps:100%", 4),
            (1, "mps:25%", 1),
            (100, "mps:33%", 33),
        ] {
            assert_eq!(
                shards(of_gpu, share),
                format!("gres/shard:{count}"),
                "{share}"
            );
        }
        let other = Shape {
            per_node: Some("gres:nic:1".into()),
            ..Shape::default()
        };
        let said = (&none, &Sources::default());
        let old = choose((4, 0), parse_share("timeslice").unwrap(), said, &other, OLD);
        assert_eq!(old.unwrap().per_node, "gres:nic:1,gres:shard:1");
        let told = of(4, "mps:30%", &plain, &none).unwrap().sentence;
        assert!(
            told.starts_with("gpuos: --gpuos-share=mps:30%: 2 of the 4 shards of a GPU on each node and 30% of its threads; ")
                && !told.contains('\n'),
            "{told}"
        );
    }

    #[test]
    fn what_does_not_go_with_it_is_refused() {
        let (plain, none) = (Shape::default(), JobOptions::default());
        let why = of(0, "timeslice", &plain, &none).unwrap_err();
        assert!(
            why.contains("GresTypes=gpu,shard") && why.contains("Name=shard"),
            "{why}"
        );
        let why = of(4, "timeslice:5", &plain, &none).unwrap_err();
        assert!(
            why.contains("has 4 shards at most; write timeslice:4 or less"),
            "{why}"
        );
        let gres = |text: &str| Shape {
            per_node: Some(text.into()),
            ..Shape::default()
        };
        let per_job = Shape {
            per_job: Some("gres/gpu:2".into()),
            ..Shape::default()
        };
        let exclusive = Shape {
            exclusive: true,
            ..Shape::default()
        };
        for (shape, options, names) in [
            (gres("gres:gpu:1"), none.clone(), "GRES gpu,"),
            (gres("gres/shard:1"), none.clone(), "GRES shard,"),
            (gres("gres/nic:1,gres/mps:50"), none.clone(), "GRES mps,"),
            (gres("gres/gpuos:h100:4"), none.clone(), "GRES gpuos,"),
            (per_job, none.clone(), "GRES gpu,"),
            (exclusive, none.clone(), "--exclusive,"),
            (plain.clone(), said(&[("mig", "1/2")]), "--gpuos-mig=1/2,"),
            (plain.clone(), said(&[("mps", "on")]), "--gpuos-mps=on,"),
            (
                plain.clone(),
                said(&[("power", "80%")]),
                "--gpuos-power=80%,",
            ),
            (
                plain.clone(),
                said(&[("clocks", "1200")]),
                "--gpuos-clocks=1200,",
            ),
        ] {
            let why = of(4, "mps:25%", &shape, &options).unwrap_err();
            let begin = format!("--gpuos-share=mps:25%: it does not go with {names}");
            assert!(
                why.starts_with(&begin) && why.contains("; write one of the two"),
                "{why}"
            );
        }
        let watch = said(&[("watch", "on"), ("class", "noisy")]);
        assert!(of(4, "timeslice", &plain, &watch).is_ok());
    }
}
