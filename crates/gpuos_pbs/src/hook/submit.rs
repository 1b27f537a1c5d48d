//! A job or a reservation that is submitted or changed: its wish is checked, and becomes a part of its `place` and `select`.

use gpuos_config::options::JobOptions;
use gpuos_core::limits::Share;
use gpuos_placement::plan::TopologyRequest;

use super::event::{Edit, Event, Resources, Value};
use super::memory;
use super::options::{self, Site, named, said};
use super::place::{Arrangement, Place};
use super::refused;
use super::resources::{
    CHECKPOINT, CLOCKS, FORMER, LEAF, LINKED, MEM, MEM_BEYOND, MIG, MPS, NGPUS, NVLINK, PLACEMENT,
    POWER, SHARE, SHARE_PARTS, TOPOLOGY, of_users,
};
use super::select::{Select, mentions};
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

/// How a wish holds the GPUs of a job together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Together {
    /// The resource that its vnodes have in common.
    group: Option<&'static str>,
    /// So many free GPUs of a host have to be linked with each other: which ones gpuosd chooses there.
    linked: Option<u64>,
}

impl Together {
    /// # Errors
    /// There is no such level.
    fn of(wish: &TopologyRequest, select: Option<&Select>, event: &Event) -> Result<Self, String> {
        let group = shared_resource(wish)?;
        let gpus = select.map_or(0, |select| select.count(NGPUS));
        let of_a_host = event.largest.get("node").is_some_and(|node| gpus <= *node);
        if group != Some(NVLINK) || !event.several_sets || !of_a_host {
            return Ok(Together {
                group,
                linked: None,
            });
        }
        // No vnode says in which of its host's sets a job is.
        Ok(Together {
            group: Some("host"),
            linked: Some(gpus).filter(|gpus| wish.required && *gpus > 1),
        })
    }
}

/// What a reservation has nothing to do with.
const OF_JOBS_ALONE: [&str; 5] = [PLACEMENT, CHECKPOINT, POWER, CLOCKS, MPS];

/// A reservation that is submitted.
pub(super) fn reserved(event: &Event) -> Result<Vec<Edit>, String> {
    not_of_jobs_alone(&event.job.resources)?;
    queued(event)
}

/// A reservation that is changed.
pub(super) fn reservation_modified(event: &Event) -> Result<Vec<Edit>, String> {
    not_of_jobs_alone(&event.job.resources)?;
    modified(event)
}

fn not_of_jobs_alone(reservation: &Resources) -> Result<(), String> {
    let mut own = OF_JOBS_ALONE.iter();
    match own.find_map(|name| Some((*name, options::wish(reservation, name)?))) {
        Some((name, value)) => Err(refused::of_jobs_alone(value, named(name)).to_string()),
        None => Ok(()),
    }
}

/// A job that is submitted. One that another server sends has its counts already, which are made anew.
pub(super) fn queued(event: &Event) -> Result<Vec<Edit>, String> {
    let job = &event.job.resources;
    if shares::wished(job).is_none() {
        shares::not_by_hand(job)?;
    }
    if memory::wished(job).is_none() || said(job, MEM_BEYOND).is_some() {
        memory::not_by_hand(job)?;
    }
    if !says_anything(job) {
        return Ok(Vec::new());
    }
    let options = options::read(job, Site::of(event))?;
    // Only another server's hook can have counted one: there is a place for what is parked, too.
    let chunks = said(job, "select").unwrap_or_default();
    let before = Before {
        share: options.share.filter(|_| mentions(chunks, SHARE_PARTS)),
        group: None,
    };
    edits(job, &options, &before, event)
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
    let had = Select::parse(said(old, "select").unwrap_or_default()).ok();
    let wished = before.and_then(|before| before.topology);
    let before = Before {
        share,
        group: wished.and_then(|wish| Together::of(&wish, had.as_ref(), event).ok()?.group),
    };
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
}

/// The new `select` and `place` of a job, as far as they are others.
fn edits(
    job: &Resources,
    options: &JobOptions,
    before: &Before,
    event: &Event,
) -> Result<Vec<Edit>, String> {
    let wish = options.topology.as_ref();
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
    let together = wish
        .map(|wish| Together::of(wish, select.as_ref(), event))
        .transpose()?;
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
    // What holds a job together by the vnode of its GPU is of a release before this one.
    let is_ours = |group: &str| Some(group) == before.group || FORMER.contains(&group);
    if place.group.as_deref().is_some_and(is_ours) {
        place.group = None;
    }
    // So is a vnode for each of several chunks with slices, which was a GPU and would be a host.
    let is_former = select.as_ref().is_some_and(slices::are_former);
    if is_former && place.arrangement == Some(Arrangement::Vscatter) {
        place.arrangement = None;
    }
    let without_share = |select: &Select| match options.share.or(before.share) {
        Some(_) => shares::uncounted(select, before.share),
        None => select.clone(),
    };
    let without = |select: &Select| unlinked(&slices::uncounted(&memory::uncounted(select)));
    let mut chunks = select.as_ref().map(without);
    if let Some(request) = &options.mig {
        if has_gpus(job, select.as_ref()) {
            return Err(refused::beside_gpus(request, named(MIG)).to_string());
        }
        chunks = Some(slices::counted(request, chunks.as_ref(), &event.boards)?);
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
    }
    let shared = together.and_then(|together| together.group);
    if let (Some(wish), Some(shared)) = (wish, shared) {
        let Some(select) = &select else {
            return Err(refused::no_select(wish, named(TOPOLOGY)).to_string());
        };
        goes_with(wish, shared, select, &place, given)?;
        let fits = fits(wish, select, event)?;
        // A planner follows a wish as far as there is room; PBS knows groups only, and would wait for one for ever.
        if fits && (wish.required || !event.planner) {
            place.group = Some(shared.into());
        }
        if let Some(linked) = together.and_then(|together| together.linked) {
            chunks = chunks.map(|chunks| with_links(chunks, linked));
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

/// The chunks with GPUs, of which hosts have to have so many that are linked.
fn with_links(mut chunks: Select, linked: u64) -> Select {
    let with_gpus = chunks.0.iter_mut().filter(|chunk| chunk.number(NGPUS) > 0);
    for chunk in with_gpus {
        chunk.wants.push((LINKED.into(), linked.to_string()));
    }
    chunks
}

/// The chunks without that.
fn unlinked(select: &Select) -> Select {
    let mut select = select.clone();
    select
        .0
        .iter_mut()
        .for_each(|chunk| chunk.take_out(&[LINKED]));
    select
}

/// Whether an option is there that means nothing without GPUs.
fn about_gpus(name: &str, options: &JobOptions) -> bool {
    match name {
        TOPOLOGY => options.topology.is_some(),
        PLACEMENT => options.placement.is_some(),
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
    if shared == "host" && place.arrangement == Some(Arrangement::Scatter) && chunks > 1 {
        return Err(refused::scattered(wish).to_string());
    }
    let mut domains = select.values(shared);
    let first = domains.next();
    match first.and_then(|one| Some((one, domains.find(|other| *other != one)?))) {
        Some((one, other)) => Err(refused::two_domains(wish, shared, one, other).to_string()),
        None => Ok(()),
    }
}
