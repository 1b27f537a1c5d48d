//! A job that is submitted or changed: its wish is checked, and becomes a part of its `place`.

use gpuos_config::options::JobOptions;
use gpuos_core::limits::Share;
use gpuos_placement::plan::TopologyRequest;

use super::event::{Edit, Event, Resources, Value};
use super::memory;
use super::options::{self, Site, named, said};
use super::place::{Arrangement, Place};
use super::refused;
use super::resources::{
    CLOCKS, LEAF, MEM, MEM_BEYOND, MIG, MIG_GPU, MPS, NGPUS, NVLINK, POWER, SHARE, SHARE_GPU,
    SHARE_PARTS, of_users,
};
use super::select::Select;
use super::shares;
use super::slices;

/// Levels that PBS knows, and the resource that vnodes of one domain have in common; `any` is all of the cluster.
const LEVELS: [(&str, Option<&str>); 4] = [
    ("node", Some("host")),
    ("nvlink", Some(NVLINK)),
    ("leaf", Some(LEAF)),
    ("any", None),
];

const SELECT_FORM: &str = "-l select=N:resource=value[:...][+...]";
const PLACE_FORM: &str =
    "-l place=[free|pack|scatter|vscatter][:excl|shared|exclhost][:group=RESOURCE]";

/// The resource that vnodes of one domain have in common; none where all are in one.
///
/// # Errors
/// There is no such level.
pub(super) fn shared_resource(wish: &TopologyRequest) -> Result<Option<&'static str>, String> {
    match LEVELS.iter().find(|(level, _)| *level == wish.level) {
        Some((_, resource)) => Ok(*resource),
        None => {
            let levels = LEVELS.map(|(level, _)| level).join(", ");
            Err(refused::no_level(wish, &wish.level, levels).to_string())
        }
    }
}

/// A job that is submitted.
pub(super) fn queued(event: &Event) -> Result<Vec<Edit>, String> {
    let job = &event.job.resources;
    shares::not_by_hand(job)?;
    memory::not_by_hand(job)?;
    if !says_anything(job) {
        return Ok(Vec::new());
    }
    let options = options::read(job, Site::of(event))?;
    edits(job, &options, &Before::default(), event)
}

/// A job that is changed: what it is to be is looked at as a whole.
pub(super) fn modified(event: &Event) -> Result<Vec<Edit>, String> {
    let (old, changed) = (&event.old.resources, &event.job.resources);
    if shares::wished(old).is_none() || said(changed, SHARE_PARTS).is_some() {
        shares::not_by_hand(changed)?;
    }
    if memory::wished(old).is_none() || said(changed, MEM_BEYOND).is_some() {
        memory::not_by_hand(changed)?;
    }
    let about_us = |name: &String| {
        let place = ["select", "place"]
            .iter()
            .any(|one| name.eq_ignore_ascii_case(one));
        place || is_ours(name)
    };
    if !changed.keys().any(about_us) || !(says_anything(old) || says_anything(changed)) {
        return Ok(Vec::new());
    }
    let mut whole = old.clone();
    for (name, value) in changed {
        whole.retain(|known, _| !known.eq_ignore_ascii_case(name));
        whole.insert(name.clone(), value.clone());
    }
    let options = options::read(&whole, Site::of(event))?;
    // What a wish of before made of the place goes with it. That one was checked when it came.
    let before = options::read(old, Site::of(event)).ok();
    let share = shares::wished(old);
    let had_chunks = Select::parse(said(old, "select").unwrap_or_default());
    let had_chunks = had_chunks.map_or(0, |select| slices::chunks(&select));
    let before = before.map_or_else(
        || Before {
            share,
            ..Before::default()
        },
        |options| Before {
            share,
            is_scattered: options.mig.is_some()
                && had_chunks > 1
                && said(changed, "place").is_none(),
            group: match (options.topology, options.mig, options.share) {
                (_, Some(_), _) => Some(MIG_GPU),
                (_, None, Some(_)) => Some(SHARE_GPU),
                (wish, None, None) => wish
                    .as_ref()
                    .and_then(|wish| shared_resource(wish).ok().flatten()),
            },
        },
    );
    let edits = edits(&whole, &options, &before, event)?;
    let writes = |edit: &Edit| matches!(edit, Edit::Resource { name, .. } if name == "select");
    let mut beside = ["mem", "ncpus", NGPUS].into_iter();
    match beside.find(|name| said(changed, name).is_some()) {
        // PBS would make chunks of it itself, and does not where the hook writes them.
        Some(beside) if said(changed, "select").is_none() && edits.iter().any(writes) => {
            let value = said(changed, beside).unwrap_or_default();
            Err(refused::beside_chunks(value, named(beside)).to_string())
        }
        _ => Ok(edits),
    }
}

fn is_ours(name: &str) -> bool {
    of_users().any(|resource| resource.name.eq_ignore_ascii_case(name))
}

/// Whether a job says something to gpuos: by an option, or by one in the wrong place.
fn says_anything(job: &Resources) -> bool {
    let chunks = said(job, "select").unwrap_or_default().to_ascii_lowercase();
    job.keys().any(|name| is_ours(name))
        || of_users().any(|resource| chunks.contains(&format!("{}=", resource.name)))
}

/// What an earlier wish made of a job.
#[derive(Default)]
struct Before {
    /// The resource by which it held the job together.
    group: Option<&'static str>,
    /// The share that was counted.
    share: Option<Share>,
    /// Its slices were of several chunks, each of which had a vnode of its own.
    is_scattered: bool,
}

/// The new `select` and `place` of a job, as far as they are others.
fn edits(
    job: &Resources,
    options: &JobOptions,
    before: &Before,
    event: &Event,
) -> Result<Vec<Edit>, String> {
    let wish = options.topology.as_ref();
    let shared = wish.map(shared_resource).transpose()?.flatten();
    let select = match said(job, "select") {
        None => None,
        Some(text) => {
            let unread = |why| refused::unread(text, "-l select", why, SELECT_FORM).to_string();
            Some(Select::parse(text).map_err(unread)?)
        }
    };
    if let Some(select) = &select {
        no_option_in_a_chunk(select)?;
    }
    if let Some(share) = options.share {
        goes_with_share(share, job, options, select.as_ref())?;
    }
    if let Some(asked) = &options.memory {
        memory::goes_with(asked, options)?;
    }
    for resource in of_users().filter(|resource| about_gpus(resource.name, options)) {
        let value = said(job, resource.name).unwrap_or_default();
        if !has_gpus(job, select.as_ref()) {
            return Err(refused::no_gpus(value, named(resource.name), resource.name).to_string());
        }
    }
    let given = said(job, "place").unwrap_or_default();
    let mut place = match given {
        "" => Place::default(),
        text => {
            let unread = |why| refused::unread(text, "-l place", why, PLACE_FORM).to_string();
            Place::parse(text).map_err(unread)?
        }
    };
    if place
        .group
        .as_deref()
        .is_some_and(|group| Some(group) == before.group)
    {
        place.group = None;
    }
    if before.is_scattered && place.arrangement == Some(Arrangement::Vscatter) {
        place.arrangement = None;
    }
    let without_share = |select: &Select| match options.share.or(before.share) {
        Some(_) => shares::uncounted(select, before.share),
        None => select.clone(),
    };
    let bare = select.as_ref().map(memory::uncounted);
    let mut chunks = bare.as_ref().map(slices::uncounted);
    if let Some(request) = &options.mig {
        if has_gpus(job, select.as_ref()) {
            return Err(refused::beside_gpus(request, named(MIG)).to_string());
        }
        let chunk = chunks.as_ref();
        let counted = slices::counted(request, chunk, (&mut place, given), &event.boards)?;
        chunks = Some(counted);
    } else if before.group != Some(MIG_GPU) {
        // What a user has written there without slices is none of ours.
        chunks.clone_from(&bare);
    }
    chunks = chunks.as_ref().map(without_share);
    if let Some(asked) = &options.memory {
        chunks = Some(memory::counted(
            asked,
            chunks.as_ref(),
            event.memory.as_ref(),
        )?);
    }
    if let Some(share) = options.share {
        let counted = shares::counted(share, chunks.as_ref(), (&place, given), event.shares)?;
        chunks = Some(counted);
        place.group = Some(SHARE_GPU.into());
    }
    if let (Some(wish), Some(shared)) = (wish, shared) {
        let Some(select) = &select else {
            return Err(refused::no_select(wish, named("gpuos_topology")).to_string());
        };
        goes_with(wish, shared, select, &place, given)?;
        let fits = fits(wish, select, event)?;
        // A planner follows a wish as far as there is room; PBS knows groups only, and would wait for one for ever.
        if fits && (wish.required || !event.planner) {
            place.group = Some(shared.into());
        }
    }
    let text = |name: &str, value: String| Edit::Resource {
        name: name.into(),
        value: Value::Text(value),
    };
    let chunks = chunks.filter(|chunks| Some(chunks) != select.as_ref());
    let mut edits: Vec<Edit> = chunks
        .into_iter()
        .map(|chunks| text("select", chunks.to_string()))
        .collect();
    if place != Place::parse(given).unwrap_or_default() {
        // Without a word PBS would take the site's default for all of it.
        place.arrangement.get_or_insert(Arrangement::Free);
        edits.push(text("place", place.to_string()));
    }
    Ok(edits)
}

/// Whether an option is there that means nothing without GPUs.
fn about_gpus(name: &str, options: &JobOptions) -> bool {
    match name {
        "gpuos_topology" => options.topology.is_some(),
        "gpuos_placement" => options.placement.is_some(),
        POWER => options.power.is_some(),
        CLOCKS => options.clocks.is_some(),
        MPS => options.mps.is_some(),
        MEM => options.memory.is_some(),
        // What else there is was refused already.
        _ => false,
    }
}

fn has_gpus(job: &Resources, select: Option<&Select>) -> bool {
    let some = |count: &str| count.trim() != "0";
    match select {
        Some(select) => select.values(NGPUS).any(some),
        // Beside chunks it is PBS's sum, which stays as it was when chunks are others.
        None => said(job, NGPUS).is_some_and(some),
    }
}

/// Refuses what does not go with a share of a GPU.
fn goes_with_share(
    share: Share,
    job: &Resources,
    options: &JobOptions,
    select: Option<&Select>,
) -> Result<(), String> {
    let others = "for others on the GPU would have it too";
    let all = [
        (NGPUS, has_gpus(job, select), "which are whole GPUs"),
        (MIG, options.mig.is_some(), "which gives slices of its own"),
        (MPS, options.mps.is_some(), "which takes whole GPUs"),
        (POWER, options.power.is_some(), others),
        (CLOCKS, options.clocks.is_some(), others),
    ];
    match all.into_iter().find(|(_, asked, _)| *asked) {
        Some((beside, _, why)) => {
            let beside = match beside {
                NGPUS => NGPUS.to_owned(),
                option => named(option),
            };
            Err(refused::share_goes_not_with(share, named(SHARE), beside, why).to_string())
        }
        None => Ok(()),
    }
}

fn no_option_in_a_chunk(select: &Select) -> Result<(), String> {
    for resource in of_users() {
        if let Some(value) = select.values(resource.name).next() {
            let error = refused::in_a_chunk(value, named(resource.name), resource.name);
            return Err(error.to_string());
        }
    }
    Ok(())
}

/// Whether the largest domain of a level has as many GPUs as the job, as far as it is known.
///
/// # Errors
/// It has not, and the job requires the level.
fn fits(wish: &TopologyRequest, select: &Select, event: &Event) -> Result<bool, String> {
    let Some(&largest) = event.largest.get(&wish.level) else {
        return Ok(true);
    };
    let gpus = select.count(NGPUS);
    match gpus > largest {
        true if wish.required => {
            Err(refused::too_large(wish, gpus, &wish.level, largest).to_string())
        }
        larger => Ok(!larger),
    }
}

/// Refuses a wish that the rest of the request rules out.
fn goes_with(
    wish: &TopologyRequest,
    shared: &str,
    select: &Select,
    place: &Place,
    given: &str,
) -> Result<(), String> {
    if place.group.as_deref().is_some_and(|group| group != shared) {
        return Err(refused::other_group(wish, given).to_string());
    }
    let chunks: u64 = select
        .0
        .iter()
        .map(|chunk| u64::from(chunk.count.unwrap_or(1)))
        .sum();
    if wish.level == "node" && place.arrangement == Some(Arrangement::Scatter) && chunks > 1 {
        return Err(refused::scattered(wish).to_string());
    }
    let mut domains = select.values(shared);
    let first = domains.next();
    match first.and_then(|one| Some((one, domains.find(|other| *other != one)?))) {
        Some((one, other)) => Err(refused::two_domains(wish, shared, one, other).to_string()),
        None => Ok(()),
    }
}
